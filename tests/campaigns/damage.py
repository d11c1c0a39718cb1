"""Ways to damage a file: each takes its path, a source of chance, and what it may use."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

UNSEALED = "without_checksum:"
"""How kinds begin that may give other results."""

Damage = Callable[[Path, random.Random, "Means"], bool]
"""False where the file cannot be damaged so: it is empty, or has no digit."""


class Means:
    """What damage may use: the canaries, and the other files of the workspace."""

    def __init__(self, folder: Path, beside: Path) -> None:
        self.folder, self.beside = folder, beside


def flip(path: Path, chance: random.Random, means: Means) -> bool:
    """One bit."""
    content = bytearray(path.read_bytes())
    if not content:
        return False
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return True


def cut(keep: Callable[[int], int]) -> Damage:
    """The end of the file is missing."""

    def truncate(path: Path, chance: random.Random, means: Means) -> bool:
        size = path.stat().st_size
        if size == 0:
            return False
        os.truncate(path, keep(size))
        return True

    return truncate


def zero(path: Path, chance: random.Random, means: Means) -> bool:
    """A block that never reached the disk."""
    content = bytearray(path.read_bytes())
    if not any(content):
        return False
    begin = chance.randrange(len(content)) // 512 * 512
    block = content[begin : begin + 512]
    content[begin : begin + 512] = bytes(len(block))
    path.write_bytes(content)
    return any(block)


def append(path: Path, chance: random.Random, means: Means) -> bool:
    """More than was written."""
    with path.open("ab") as file:
        file.write(chance.choice([b"\0" * 64, b"\n{}", b"garbage", b"\n\n", b"}"]))
    return True


def byte(path: Path, chance: random.Random, means: Means) -> bool:
    """A byte that is in no UTF-8 text, put in."""
    content = path.read_bytes()
    at = chance.randrange(len(content) + 1)
    path.write_bytes(content[:at] + b"\xff" + content[at:])
    return True


def line_twice(path: Path, chance: random.Random, means: Means) -> bool:
    """A line that stands twice."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return False
    at = chance.randrange(len(lines))
    path.write_bytes(b"".join([*lines[: at + 1], *lines[at:]]))
    return True


def line_gone(path: Path, chance: random.Random, means: Means) -> bool:
    """A line that is missing."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return False
    del lines[chance.randrange(len(lines))]
    path.write_bytes(b"".join(lines))
    return True


def digit(path: Path, chance: random.Random, means: Means) -> bool:
    """A digit of a text that is another."""
    if not _is_text(path):
        return False
    content = bytearray(path.read_bytes())
    digits = [match.start() for match in re.finditer(rb"\d", content)]
    if not digits:
        return False
    at = chance.choice(digits)
    content[at] = ord(str((int(chr(content[at])) + chance.choice([1, 9])) % 10))
    path.write_bytes(content)
    return True


def value(change: Callable[[dict, str], None]) -> Damage:
    """One place of a JSON document, or of a line of JSON lines."""

    def edit(path: Path, chance: random.Random, means: Means) -> bool:
        if path.suffix not in (".json", ".jsonl"):
            return False
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        if not any(lines):
            return False
        at = chance.choice([n for n, line in enumerate(lines) if line.strip()])
        document = json.loads(lines[at])
        places = _places(document)
        if not places:
            return False
        holder, key = chance.choice(places)
        change(holder, key)
        lines[at] = json.dumps(document)
        path.write_text("\n".join(lines) + "\n")
        return True

    return edit


def without_checksum(change: Callable[[dict, str], None]) -> Damage:
    """One place of a document that was made by hand or by an earlier linnet: no checksum covers it."""

    def edit(path: Path, chance: random.Random, means: Means) -> bool:
        if path.suffix not in (".json", ".jsonl"):
            return False
        manifest = path.with_name("manifest.json")
        if manifest != path and manifest.exists() and "files" in json.loads(manifest.read_text()):
            manifest.unlink()
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        plain = [json.loads(text) for text in texts]
        for document in plain:
            if isinstance(document, dict):
                document.pop("checksum", None)
        path.write_text("\n".join(map(json.dumps, plain)))
        return value(change)(path, chance, means)

    return edit


def _places(document: object) -> list[tuple[dict, str]]:
    if isinstance(document, list):
        return [place for inner in document[:50] for place in _places(inner)]
    if not isinstance(document, dict):
        return []
    return [(document, k) for k in document] + [p for inner in list(document.values())[:200] for p in _places(inner)]


def _other(holder: dict, key: str) -> None:
    found = holder[key]
    holder[key] = found + 1 if isinstance(found, int | float) else f"{found}x" if isinstance(found, str) else 0


def swap(path: Path, chance: random.Random, means: Means) -> bool:
    """The content of another file of its kind."""
    content = path.read_bytes()
    others = [p for p in sorted(means.folder.rglob(f"*{path.suffix}")) if p.is_file() and p.read_bytes() != content]
    if not others:
        return False
    path.write_bytes(chance.choice(others).read_bytes())
    return True


def delete(path: Path, chance: random.Random, means: Means) -> bool:
    """Gone."""
    path.unlink()
    return True


def folder(path: Path, chance: random.Random, means: Means) -> bool:
    """A folder in its place."""
    path.unlink()
    path.mkdir()
    return True


def pipe(path: Path, chance: random.Random, means: Means) -> bool:
    """A pipe in its place, which nobody writes to."""
    path.unlink()
    os.mkfifo(path)
    return True


def dangling(path: Path, chance: random.Random, means: Means) -> bool:
    """A link to nothing."""
    path.unlink()
    path.symlink_to(means.beside / "nothing")
    return True


def linked(path: Path, chance: random.Random, means: Means) -> bool:
    """A link to a file of somebody else, with other content."""
    path.unlink()
    path.symlink_to(means.beside / "foreign.json")
    return True


def moved(path: Path, chance: random.Random, means: Means) -> bool:
    """A link to its own content elsewhere: to be read, not to be written through."""
    kept = means.beside / f"moved{path.suffix}"
    shutil.move(path, kept)
    path.symlink_to(kept)
    return True


def unreadable(path: Path, chance: random.Random, means: Means) -> bool:
    """No permission; the command loses the right to read everything."""
    path.chmod(0)
    return True


def _is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_text("utf-8")
    except ValueError:
        return False


DAMAGES: dict[str, tuple[Damage, int]] = {
    "flip": (flip, 6),
    "empty": (cut(lambda size: 0), 1),
    "half": (cut(lambda size: size // 2), 1),
    "one short": (cut(lambda size: size - 1), 1),
    "zeros": (zero, 2),
    "append": (append, 3),
    "byte": (byte, 2),
    "line twice": (line_twice, 2),
    "line gone": (line_gone, 2),
    "digit": (digit, 4),
    "key gone": (value(lambda holder, key: holder.pop(key)), 4),
    "null": (value(lambda holder, key: holder.__setitem__(key, None)), 3),
    "other value": (value(_other), 4),
    "nested": (value(lambda holder, key: holder.__setitem__(key, {"a": [holder[key]]})), 2),
    f"{UNSEALED} null": (without_checksum(lambda holder, key: holder.__setitem__(key, None)), 3),
    f"{UNSEALED} text": (without_checksum(lambda holder, key: holder.__setitem__(key, "x")), 3),
    f"{UNSEALED} list": (without_checksum(lambda holder, key: holder.__setitem__(key, [-1])), 2),
    f"{UNSEALED} zero": (without_checksum(lambda holder, key: holder.__setitem__(key, 0)), 3),
    f"{UNSEALED} huge": (without_checksum(lambda holder, key: holder.__setitem__(key, 10**15)), 2),
    f"{UNSEALED} key gone": (without_checksum(lambda holder, key: holder.pop(key)), 3),
    "swap": (swap, 2),
    "delete": (delete, 1),
    "folder": (folder, 1),
    "pipe": (pipe, 1),
    "dangling": (dangling, 1),
    "linked": (linked, 1),
    "moved": (moved, 1),
    "unreadable": (unreadable, 1),
}
"""By name: the damage, and how often it is done to a file, each time elsewhere."""
