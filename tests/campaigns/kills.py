"""Kills: at every file operation of every command that writes, in the middle of every writing, and at random times.

Afterwards the same command has to end as if nothing had been: the same files bit for bit, nothing left over. After the
kill itself what was there before still stands.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from campaigns.campaign import Case, Ground, Subject, attacked, ended, killed_at, rotated
from campaigns.children import run
from campaigns.oracle import HALF, Fault, Finding, leftovers, said
from campaigns.outputs import Tree, same, tree

AT_RANDOM = 12
"""Kills of each command at a time that no operation decides."""


def cases(ground: Ground, seed: int) -> Iterator[Case]:
    """All kills, in an order that a sample of can be taken from."""
    subjects = [subject for subject in ground.subjects if subject.writes]
    return rotated([(subject, list(cases_of(ground, subject, seed))) for subject in subjects], seed)


def cases_of(ground: Ground, subject: Subject, seed: int) -> Iterator[Case]:
    """Those of one subject."""
    changes = sum(operation.changes for operation in subject.operations)
    source = random.Random(f"{subject.label} {seed}")
    for number in range(changes):
        again = source.randrange(changes) if number % 4 == 0 else None
        name = f"{subject.label} | at {number}" + ("" if again is None else f", then at {again}")
        yield Case(name, partial(_killed, ground, subject, [number] if again is None else [number, again]))
    for _ in range(AT_RANDOM):
        share = source.random()
        yield Case(f"{subject.label} | after {share:.4f}", partial(_killed_after, ground, subject, share))


def _killed(ground: Ground, subject: Subject, numbers: list[int]) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        for number in numbers:
            run(subject.command.words, folder, killed_at(number), limit_s=subject.limit_s)
        return afterwards(subject, folder)

    return attacked(ground, subject.template, attack)


def _killed_after(ground: Ground, subject: Subject, share: float) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        run(subject.command.words, folder, limit_s=subject.limit_s, signal_after_s=share * subject.clean.seconds)
        return afterwards(subject, folder)

    return attacked(ground, subject.template, attack)


def afterwards(subject: Subject, folder: Path) -> list[Finding]:
    """After an attack on a command that writes: what stands, and what the same command makes of it."""
    return [*standing(subject, tree(folder)), *goes_on(subject, folder)] if subject.writes else []


def standing(subject: Subject, now: Tree) -> list[Finding]:
    """What was there, and would be there in the end, is there; what the command does not change is as it was."""
    clean = subject.clean
    kept = clean.before.keys() & clean.after.keys()
    gone = sorted(name for name in kept if name not in now)
    written = {operation.path for operation in subject.operations if operation.changes} | set(clean.changed())
    untouched = [n for n in kept if n in now and not {n, *map(str, Path(n).parents)} & (written - {"", "."})]
    other = [name for name in untouched if not same(name, clean.before[name], now[name])]
    found = [Finding(Fault.LOSS, f"gone after the kill: {', '.join(gone[:6])}")] if gone else []
    return found + ([Finding(Fault.LOSS, f"changed by the kill: {', '.join(other[:6])}")] if other else [])


def goes_on(subject: Subject, folder: Path) -> list[Finding]:
    """The same command once more."""
    outcome = run(subject.command.words, folder, limit_s=subject.limit_s)
    if found := said(outcome):
        return found
    after = tree(folder)
    if outcome.code != subject.clean.outcome.code and not _complete(subject, after):
        return [Finding(Fault.LOSS, f"the same command does not go on: {ended(outcome)}")]
    found = []
    if left := leftovers(subject.clean.after, after):
        found.append(Finding(Fault.LOSS, f"left over: {', '.join(left[:6])}"))
    wrong = [name for name in subject.clean.differences(after) if not HALF.search(name) and name not in left]
    if wrong:
        found.append(Finding(Fault.CHANGE, f"other results than undisturbed: {', '.join(wrong[:6])}"))
    return found


def _complete(subject: Subject, after: Tree) -> bool:
    """Killed when all was done; the command refuses to do it twice."""
    left = set(leftovers(subject.clean.after, after))
    return not [n for n in subject.clean.differences(after) if n not in left and not HALF.search(n)]
