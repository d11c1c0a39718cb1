"""What a command made, in a form that two runs of it have in common: times, speeds and memory are left out."""

import json
import os
import re
import stat
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

VOLATILE = {
    "seconds", "tokens_per_s", "share_of_peak", "waiting_share", "waited_s", "memory_bytes", "eta_s", "command", "made",
    "date", "commit", "machine", "latency_s", "measured", "throughput", "elapsed_s", "time", "times", "created",
    "hostname", "pid",
}  # fmt: skip
"""Fields of JSON and YAML, and columns of CSV, that differ from run to run."""

HASH = re.compile(r"\b[0-9a-f]{32,}\b")
"""Of a file that has such fields; what matters is compared by itself."""

HASHED = {"bytes", "blake3"}
"""The fields of a manifest's entry: of a file that is compared by itself as well."""

SPOKEN = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d\S*(?: [A-Z]{3,4})?|(?:ETA )?[\d.,]+ ?(?:[kMGT]?B|k|M|G)?(?: |&nbsp;)?"
    r"(?:tokens/s|tokens per second|% of peak|s|ms|µs|min|h|MB|GB|kB)\b"
)
"""Dates, times, speeds and memory in text."""

UNSEEN = {"__pycache__"}

Tree = dict[str, bytes]


def tree(folder: Path) -> Tree:
    """Every file below a folder: its content, of a binary one the hash; of a folder, link or pipe, what it is."""
    found: Tree = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - UNSEEN)
        for name in (*folders, *files):
            path = Path(parent, name)
            found[os.path.relpath(path, folder)] = _content(path)
    return found


def _content(path: Path) -> bytes:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return b"<link to " + os.fsencode(path.readlink()) + b">"
    if not stat.S_ISREG(mode):
        return f"<{stat.filemode(mode)[0]}>".encode()
    try:
        content = path.read_bytes()
        return content if path.suffix in _READERS else blake2b(content, digest_size=20).digest()
    except OSError as error:
        return f"<{error.strerror}>".encode()


def settled(name: str, content: bytes) -> Any:
    """A file's content without what differs from run to run."""
    try:
        return _READERS.get(Path(name).suffix, lambda plain: plain)(content)
    except (ValueError, yaml.YAMLError, RecursionError):
        return content


def settled_text(text: str) -> str:
    """Of a terminal or a page."""
    return HASH.sub("#", SPOKEN.sub("~", text))


def without(value: Any) -> Any:
    """Plain data without volatile fields and hashes."""
    if isinstance(value, dict):
        if value.keys() == HASHED:
            return "#"
        return {key: without(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [without(inner) for inner in value]
    return "#" if isinstance(value, str) and HASH.fullmatch(value) else value


def figures(out: str) -> Any:
    """Standard output."""
    try:
        return without(json.loads(out))
    except (ValueError, RecursionError):
        return settled_text(out)


def differing(left: Tree, right: Tree) -> list[str]:
    """Names that only one of two trees has, or that have other contents."""
    names = sorted(left.keys() | right.keys())
    return [n for n in names if n not in left or n not in right or not same(n, left[n], right[n])]


def same(name: str, left: bytes, right: bytes) -> bool:
    """Whether two contents of a file are one, but for what differs from run to run."""
    return left == right or settled(name, left) == settled(name, right)


def _rows(content: bytes) -> Any:
    lines = [line.split(",") for line in content.decode().splitlines()]
    kept = [n for n, column in enumerate(lines[0]) if column not in VOLATILE] if lines else []
    return [[line[n] for n in kept if n < len(line)] for line in lines]


def _lines(content: bytes) -> Any:
    return [without(json.loads(line)) for line in _split(content)]


def _split(content: bytes) -> Iterable[str]:
    return content.decode().splitlines()


_READERS = {
    ".json": lambda content: without(json.loads(content)),
    ".jsonl": _lines,
    ".yaml": lambda content: without(yaml.load(content, yaml.CSafeLoader)),
    ".csv": _rows,
    **dict.fromkeys((".html", ".svg", ".txt", ".md"), lambda content: settled_text(content.decode())),
}
