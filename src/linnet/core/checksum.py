"""Checksums of files, so that a later change is found before it changes a result.

The manifest of a folder holds the size and the BLAKE3 hash of each of its files; a JSON file that linnet reads back
holds a hash of its own content (`checksum`). A file without one (written by hand, or by an early version) is read
unchecked.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from linnet.core import migration
from linnet.core.atomic import errors_naming
from linnet.core.errors import UserError, note
from linnet.core.files import read_json, write_json

MANIFEST, CHECKSUM, VERSION = "manifest.json", "checksum", 1

_HEX_DIGITS = 32
"""128 bits: two different contents do not have the same by chance."""

CHECKSUM_MISMATCH = "is not what linnet wrote: its hash differs"


class LaterVersionError(UserError):
    """A file was written by a later version of linnet: it is not damaged, and must not be overwritten."""


def refuse_later_version(path: Path, version: Any, known: int) -> None:
    """`LaterVersionError` for a version above the known one. Check the checksum of the file first."""
    if type(version) is int and version > known:
        raise LaterVersionError(f"{path}: version {version}: of a later linnet; expected at most {known}: update it")


def hex_digest(hashed: blake3) -> str:
    """The first 128 bits of a hash in hexadecimal."""
    return hashed.hexdigest()[:_HEX_DIGITS]


def digest(content: bytes | memoryview) -> str:
    """BLAKE3 of some bytes, as `hex_digest`."""
    return hex_digest(blake3(content))


def file_digest(path: Path) -> str:
    """BLAKE3 of the content of a file, as `hex_digest`."""
    return hex_digest(blake3().update_mmap(path))


def with_checksum(plain: Mapping[str, Any], field: str = CHECKSUM) -> dict[str, Any]:
    """The data with the checksum of everything else in it as the last field."""
    rest = {name: value for name, value in plain.items() if name != field}
    as_read = json.loads(json.dumps(rest))  # keys become text, as they are in the file
    canonical = json.dumps(as_read, sort_keys=True, separators=(",", ":"))
    return {**rest, field: digest(canonical.encode())}


def without_checksum(plain: Any, origin: str) -> Any:
    """The data without its checksum; data without one is returned as it is.

    `UserError`, which begins with `origin`, if the checksum does not match.
    """
    if not isinstance(plain, dict):
        return plain
    field = next((name for name in (CHECKSUM, migration.CHECKSUM) if name in plain), None)
    if field is None:
        return plain
    found = plain.pop(field)
    if with_checksum(plain, field)[field] != found:
        raise UserError(
            f"{origin}: {CHECKSUM_MISMATCH}; expected it unchanged, or without the field {field!r} if it is yours"
        )
    return plain


def write_checked_json(path: str | Path, plain: Mapping[str, Any]) -> None:
    """Write a JSON file that `read_checked_json` can check, atomically."""
    write_json(path, with_checksum(plain))


def read_checked_json(path: str | Path) -> Any:
    """Read a JSON file; `UserError` if it has a checksum that does not match."""
    return without_checksum(read_json(path), str(path))


def text_with_checksum(text: str) -> str:
    """The text of a YAML file with its checksum as a last line, which is a comment in YAML."""
    return f"{text}# {CHECKSUM}: {digest(text.encode())}\n"


def _split_checksum(text: str) -> tuple[str, str | None]:
    """A text before its last line with a checksum, and that checksum; the whole text and None if it has none."""
    for field in (CHECKSUM, migration.CHECKSUM):
        body, mark, found = text.rpartition(f"# {field}: ")
        if mark:
            return body, found.strip()
    return text, None


def checksum_of_text(text: str) -> str | None:
    """The checksum in the last line of a text that `text_with_checksum` made; None if there is none."""
    return _split_checksum(text)[1]


def text_without_checksum(text: str, origin: str) -> str:
    """The text without that line; `UserError`, which begins with `origin`, if the checksum does not match."""
    body, found = _split_checksum(text)
    if found is not None and digest(body.encode()) != found:
        raise UserError(
            f"{origin}: {CHECKSUM_MISMATCH}; expected it unchanged, or without its last line if it is yours"
        )
    return body


def write_file_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the manifest of a folder: size and hash of the files with these names."""
    paths = {name: folder / name for name in names}
    files = {name: {"bytes": path.stat().st_size, "blake3": file_digest(path)} for name, path in paths.items()}
    write_checked_json(folder / MANIFEST, {"version": VERSION, "files": files})


_REMEDY = f" (without {MANIFEST} they are taken as they are)"


def check_files(folder: Path, names: Iterable[str]) -> None:
    """`UserError` for a file that differs from what the manifest says; a note if the folder has no manifest."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        note(f"{folder}: has no {MANIFEST}: its files are taken as they are")
        return
    plain = read_checked_json(manifest)
    if isinstance(plain, dict):
        refuse_later_version(manifest, plain.get("version"), VERSION)
    listed = plain.get("files") if isinstance(plain, dict) and plain.get("version") == VERSION else None
    if not isinstance(listed, dict) or not all(isinstance(entry, dict) for entry in listed.values()):
        raise UserError(f"{manifest}: expected version {VERSION} and files, each with bytes and blake3")
    for name in names:
        path = folder / name
        if name not in listed:
            if path.exists():
                raise UserError(f"{path}: not in {manifest}; expected files that linnet wrote{_REMEDY}")
            continue
        entry = listed[name]
        if not path.is_file():
            raise UserError(f"{path}: missing, {MANIFEST} lists it")
        size_bytes = path.stat().st_size
        if size_bytes != entry.get("bytes"):
            raise UserError(f"{path}: {size_bytes} bytes, {MANIFEST} says {entry.get('bytes')}{_REMEDY}")
        with errors_naming(path):  # errors of the hashing library do not name it
            found = file_digest(path)
        if found != entry.get("blake3"):
            raise UserError(f"{path}: {CHECKSUM_MISMATCH}{_REMEDY}")
