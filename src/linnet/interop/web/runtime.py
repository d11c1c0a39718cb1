"""onnxruntime-web: one fixed version, from npm or from where somebody has put it; two of its files are enough."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError
from linnet.core.files import cache_folder, parse_json

NAME, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Of the package, as npm writes it."""

FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
"""What a page loads: the interface, and the runtime for one thread and for many."""

PACKED = f"{NAME}-{VERSION}.tgz"
NPM_SECONDS = 300


def copy_runtime(out: Path, source: str | Path | None = None) -> list[str]:
    """Write the files into a folder, and give their names.

    source: a folder of the package (`node_modules/onnxruntime-web`), or what `npm pack` makes of it; None: from npm, or
    from the user's cache where it was fetched before. `UserError` where it is neither there nor to be had.
    """
    found = _packed() if source is None else Path(source)
    files = _of_folder(found) if found.is_dir() else _of_package(found)
    for name, content in files.items():
        (out / name).write_bytes(content)
    return list(files)


def _of_folder(folder: Path) -> dict[str, bytes]:
    description = folder / "package.json"
    paths = {name: folder / "dist" / name for name in FILES}
    for path in (description, *paths.values()):
        if not path.is_file():
            raise UserError(f"{path}: missing", field="runtime", value=folder, accepted=f"a folder of {NAME} {VERSION}")
    plain = parse_json(description.read_text(encoding="utf-8"), str(description))
    version = plain.get("version") if isinstance(plain, dict) else None
    if version != VERSION:
        raise UserError(f"version {version}", field="runtime", value=folder, accepted=f"{NAME} {VERSION}")
    return {name: path.read_bytes() for name, path in paths.items()}


def _of_package(path: Path) -> dict[str, bytes]:
    accepted = f"a folder of {NAME} {VERSION}, or what `npm pack {NAME}@{VERSION}` makes"
    if not path.is_file():
        raise UserError("no such file or folder", field="runtime", value=path, accepted=accepted)
    content = path.read_bytes()
    if _integrity(content) != INTEGRITY:
        raise UserError("its SHA-512 is another", field="runtime", value=path, accepted=accepted)
    with tarfile.open(path) as package:
        return {name: _member(package, f"package/dist/{name}") for name in FILES}


def _member(package: tarfile.TarFile, name: str) -> bytes:
    file = package.extractfile(name)
    assert file is not None, "the hash is that of a package that has it"
    return file.read()


def _integrity(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def _packed() -> Path:
    """The package in the cache; fetched where it is not there yet, or is not what it was."""
    kept = cache_folder() / PACKED
    if not (kept.is_file() and _integrity(kept.read_bytes()) == INTEGRITY):
        _fetch(kept)
    return kept


def _fetch(target: Path) -> None:
    npm, wanted = shutil.which("npm"), f"{NAME}@{VERSION}"
    accepted = f"a folder of {NAME} {VERSION}, or what `npm pack {wanted}` makes"
    if npm is None:
        raise UserError(f"{wanted} comes from npm, which is not installed", field="runtime", accepted=accepted)
    with tempfile.TemporaryDirectory() as folder:
        try:
            command = [npm, "pack", wanted, "--pack-destination", folder]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=NPM_SECONDS)
            content = (Path(folder) / PACKED).read_bytes()
        except (subprocess.SubprocessError, OSError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            reason = said[-1] if said else type(error).__name__
            raise UserError(f"npm cannot fetch {wanted} ({reason})", field="runtime", accepted=accepted) from error
    if _integrity(content) != INTEGRITY:
        raise UserError(f"npm's {wanted}: its SHA-512 is another", field="runtime", accepted=accepted)
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)
