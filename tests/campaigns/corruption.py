"""Corruption: every file that a command reads, damaged in every way.

What linnet wrote itself is either named as damaged or of no influence; what a user wrote may give other results, and
never a traceback or a hang.
"""

import random
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

from campaigns.campaign import Case, Ground, Subject, attacked, rotated
from campaigns.children import run
from campaigns.damage import DAMAGES, UNSEALED, Means
from campaigns.oracle import Fault, Finding, changes, names, said
from campaigns.outputs import tree
from campaigns.privileges import without_privileges


def cases(ground: Ground, seed: int) -> Iterator[Case]:
    """All damages, in an order that a sample of can be taken from."""
    return rotated([(subject, list(cases_of(ground, subject, seed))) for subject in ground.subjects], seed)


def cases_of(ground: Ground, subject: Subject, seed: int) -> Iterator[Case]:
    """Those of one subject."""
    for name in readable(subject):
        for kind, (_, times) in DAMAGES.items():
            for number in range(times):
                told = f"{subject.label} | {name} | {kind} {number} of seed {seed}"
                yield Case(told, partial(_damaged, ground, subject, name, kind, told))


def readable(subject: Subject) -> list[str]:
    """The files that the command opens, and those beside them, which libraries may open."""
    opened = {operation.path for operation in subject.operations if operation.kind in ("read", "lock")}
    folders = {str(Path(name).parent) for name in opened if name in subject.clean.before} - {"."}
    beside = {name for name in subject.clean.before if str(Path(name).parent) in folders}
    given = {word for word in subject.command.words if word in subject.clean.before}
    found = (opened | beside | given) & subject.clean.before.keys()
    return sorted(name for name in found if (subject.template / name).is_file())


def written_by_linnet(ground: Ground, subject: Subject, name: str) -> bool:
    """Whether it wrote this file: when the workspace was made, or when the command ran before."""
    content = (subject.template / name).read_bytes()
    if sha256(content).hexdigest() in ground.store.made:
        return True
    original = subject.command.template / name
    return not original.exists() or original.read_bytes() != content


def _damaged(ground: Ground, subject: Subject, name: str, kind: str, told: str) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        means, damage = Means(folder, beside), DAMAGES[kind][0]
        if not damage(folder / name, random.Random(told), means):
            return []
        moved = tree(beside)
        outcome = run(subject.command.words, folder, without_privileges, limit_s=subject.limit_s)
        found = said(outcome)
        if tree(beside) != moved:
            found.append(Finding(Fault.LOSS, "written through a link"))
        if written_by_linnet(ground, subject, name) and not kind.startswith(UNSEALED):
            known = names(outcome, subject.clean, name)
            found += changes(subject.clean, outcome, tree(folder), name, known)
        if kind == "moved":
            (beside / f"moved{Path(name).suffix}").unlink(missing_ok=True)
        return found

    return attacked(ground, subject.template, attack)
