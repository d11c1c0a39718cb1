"""Hostile files in the place of every file that a command reads, under hostile names, and where it writes: links."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from campaigns.campaign import Case, Ground, Subject, attacked, rotated
from campaigns.children import run
from campaigns.corruption import readable
from campaigns.hostile_files import NAMES, makers
from campaigns.oracle import Fault, Finding, said
from campaigns.privileges import without_privileges
from campaigns.workspaces import remove

EXPORTERS = ("link to a file", "link to a folder", "dangling link", "pipe", "folder", "file", "full device")
"""What may stand where something is to be written."""


def cases(ground: Ground, seed: int) -> Iterator[Case]:
    """All inputs, in an order that a sample of can be taken from."""
    return rotated([(subject, list(_of(ground, subject))) for subject in ground.subjects], seed)


def _of(ground: Ground, subject: Subject) -> Iterator[Case]:
    for name in readable(subject):
        for kind in makers(name):
            yield Case(f"{subject.label} | {name} | {kind}", partial(_replaced, ground, subject, name, kind))
    for name in _written(subject):
        for way in EXPORTERS:
            yield Case(f"{subject.label} | {name} as {way}", partial(_in_the_way, ground, subject, name, way))
    if subject.label.endswith("[fresh]"):
        for word in dict.fromkeys(subject.command.words):
            if _is_path(subject, word):
                for number in range(len(NAMES)):
                    told = f"{subject.label} | {word} under name {number}"
                    yield Case(told, partial(_renamed, ground, subject, word, number))
            elif not word.startswith("-"):
                for number in range(len(NAMES)):
                    told = f"{subject.label} | {word} is word {number}"
                    yield Case(told, partial(_reworded, ground, subject, word, number))


def _written(subject: Subject) -> list[str]:
    """What the command makes or opens to write, folders included."""
    made = set(subject.clean.changed())
    locks = {o.path for o in subject.operations if o.changes and o.path and "partial" not in o.path}
    found = {name for name in made | locks if "partial" not in name and name not in (".", "")}
    return sorted(found - _ways_there(subject))


def _ways_there(subject: Subject) -> set[str]:
    """The folders on the way to what it makes: where a user keeps things, by links or not."""
    holding = {str(Path(name).parent) for name in subject.clean.changed() if subject.clean.after.get(name) != b"<d>"}
    depth = min((name.count("/") for name in holding if name != "."), default=0)
    return {name for name in subject.clean.after if name.count("/") < depth and name not in holding}


def _is_path(subject: Subject, word: str) -> bool:
    return (subject.template / word).exists() or word in subject.command.outputs


def _replaced(ground: Ground, subject: Subject, name: str, kind: str) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        path = folder / name
        path.unlink()
        makers(name)[kind](path)
        outcome = run(subject.command.words, folder, without_privileges, limit_s=subject.limit_s)
        traces = [Finding(Fault.LOSS, "a pickle was run")] if (folder / "unpickled").exists() else []
        return said(outcome) + traces

    return attacked(ground, subject.template, attack)


def _in_the_way(ground: Ground, subject: Subject, name: str, way: str) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            remove(path)
        path.unlink(missing_ok=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return []
        _put(way, path, beside)
        return said(run(subject.command.words, folder, without_privileges, limit_s=subject.limit_s))

    return attacked(ground, subject.template, attack, more=name in _named(subject))


def _named(subject: Subject) -> set[str]:
    """What a user may have made a link of on purpose."""
    return {*subject.command.outputs, *(name for name in subject.clean.after if "/" not in name)}


def _put(way: str, path: Path, beside: Path) -> None:
    if way == "link to a file":
        path.symlink_to(beside / "foreign.json")
    elif way == "link to a folder":
        path.symlink_to(beside / "foreign")
    elif way == "dangling link":
        path.symlink_to(beside / "nothing")
    elif way == "full device":
        path.symlink_to("/dev/full")
    elif way == "pipe":
        makers("")["pipe"](path)
    elif way == "folder":
        path.mkdir()
        (path / "kept.txt").write_text("kept")
    else:
        path.write_text("of somebody")


def _renamed(ground: Ground, subject: Subject, word: str, number: int) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        new = str(Path(word).with_name(NAMES[number] + Path(word).suffix))
        if (folder / word).exists():
            (folder / word).rename(folder / new)
        words = [new if given == word else given for given in subject.command.words]
        return said(run(words, folder, without_privileges, limit_s=subject.limit_s))

    return attacked(ground, subject.template, attack)


def _reworded(ground: Ground, subject: Subject, word: str, number: int) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        words = [NAMES[number] if given == word else given for given in subject.command.words]
        return said(run(words, folder, without_privileges, limit_s=subject.limit_s))

    return attacked(ground, subject.template, attack)
