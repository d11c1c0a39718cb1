"""Faults of the machine: a disk that is full or fails, closed streams, signals, little memory, other processes.

While it lasts a command says so in a line; after it the same command ends as if nothing had been.
"""

import errno
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from example_settings import TRAINS

from campaigns import real
from campaigns.campaign import Case, Ground, Subject, attacked, ended, rotated
from campaigns.children import Arrange, Child, Outcome, memory_taken, run
from campaigns.kills import afterwards
from campaigns.operations import Operation, Operations
from campaigns.oracle import Fault, Finding, said, unheard
from campaigns.privileges import without_privileges

ERRORS = {
    "disk full": (errno.ENOSPC, {"write", "half", "open", "mkdir", "fsync", "rename"}),
    "disk fails": (errno.EIO, {"write", "half", "fsync", "read", "rename", "open", "remove"}),
    "quota": (errno.EDQUOT, {"write", "half", "open", "mkdir"}),
    "no handles": (errno.EMFILE, {"open", "read"}),
    "no permission": (errno.EACCES, {"open", "read", "rename", "mkdir", "remove", "rmdir"}),
    "read-only": (errno.EROFS, {"open", "rename", "mkdir", "remove", "rmdir", "chmod"}),
}
"""What the system says, and of which operations."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMES = 6

KEEPS = (*TRAINS, "demo")
"""Commands that save first."""

EARLY_S = 0.15
"""Before that nothing is there to be saved."""


def cases(ground: Ground, seed: int) -> Iterator[Case]:
    """All faults, in an order that a sample of can be taken from."""
    return rotated([(subject, list(cases_of(ground, subject, seed))) for subject in ground.subjects], seed)


def cases_of(ground: Ground, subject: Subject, seed: int) -> Iterator[Case]:
    """Those of one subject."""
    source = random.Random(f"{subject.label} {seed}")
    for number, operation in enumerate(subject.operations):
        for kind, (_, kinds) in ERRORS.items():
            if operation.kind in kinds:
                lasting = source.random() < 0.5
                told = f"{subject.label} | {kind} {'from' if lasting else 'at'} {number}"
                yield Case(told, partial(_suffered, ground, subject, error_at(number, kind, lasting)))
    for name, arrange in ARRANGED.items():
        mute = name.endswith(("closed", "without a reader")) or name.startswith("stderr")
        yield Case(f"{subject.label} | {name}", partial(_suffered, ground, subject, arrange, mute, name))
    for number in SIGNALS:
        for _ in range(TIMES):
            share = source.random()
            told = f"{subject.label} | {number.name} after {share:.3f}"
            yield Case(told, partial(_signaled, ground, subject, share, number))
    yield from real.cases(ground, subject)
    if subject.writes:
        yield Case(f"{subject.label} | three at once", partial(_together, ground, subject))


def _suffered(ground: Ground, subject: Subject, arrange: Arrange, mute: bool = False, name: str = "") -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        outcome = run(subject.command.words, folder, arrange, limit_s=subject.limit_s)
        return said(outcome, mute) + unheard(subject.clean, outcome, name) + afterwards(subject, folder)

    return attacked(ground, subject.template, attack)


def _signaled(ground: Ground, subject: Subject, share: float, number: signal.Signals) -> list[Finding]:
    def attack(folder: Path, beside: Path) -> list[Finding]:
        after_s = share * subject.clean.seconds
        outcome = run(subject.command.words, folder, limit_s=subject.limit_s, signal_after_s=after_s, number=number)
        return _of_signal(subject, outcome, number) + afterwards(subject, folder)

    return attacked(ground, subject.template, attack)


def _of_signal(subject: Subject, outcome: Outcome, number: signal.Signals) -> list[Finding]:
    if outcome.code != -number:
        return said(outcome)
    if subject.command.name in KEEPS and outcome.seconds > EARLY_S:
        return [Finding(Fault.LOSS, f"ended by {number.name} at once, without a checkpoint")]
    return []  # as the system has it


def _together(ground: Ground, subject: Subject) -> list[Finding]:
    """Three processes of one command: each ends as usual, and what stands in the end is whole."""

    def attack(folder: Path, beside: Path) -> list[Finding]:
        children = [Child(subject.command.words, folder) for _ in range(3)]
        outcomes = [child.ended(3 * subject.limit_s) for child in children]
        found = [finding for outcome in outcomes for finding in said(outcome)]
        if subject.clean.outcome.code == 0 and all(outcome.code for outcome in outcomes):
            found.append(Finding(Fault.LOSS, f"none of three won: {ended(outcomes[0])}"))
        return found + afterwards(subject, folder)

    return attacked(ground, subject.template, attack)


def error_at(at: int, kind: str, lasting: bool) -> Arrange:
    number, kinds = ERRORS[kind]

    def act(now: int, operation: Operation) -> None:
        if operation.kind in kinds and (now == at or (lasting and now > at)):
            raise OSError(number, os.strerror(number), operation.path or None)

    return lambda: Operations(act, reads=True).begin()


def _closed(*handles: int) -> Arrange:
    def arrange() -> None:
        for handle in handles:
            os.close(handle)
            setattr(sys, ("stdin", "stdout", "stderr")[handle], None)

    return arrange


def _stream(number: int, path: str | None = None, encoding: str = "utf-8") -> Arrange:
    """A stream that goes elsewhere: to a device, or to a pipe without a reader."""

    def arrange() -> None:
        if path is None:
            reader, handle = os.pipe()
            os.close(reader)
        else:
            handle = os.open(path, os.O_WRONLY)
        os.dup2(handle, number)
        buffering = 1 if number == 2 else -1
        stream = open(number, "w", buffering, encoding=encoding, closefd=False)  # noqa: SIM115
        setattr(sys, "stdout" if number == 1 else "stderr", stream)

    return arrange


def _ascii() -> None:
    for name, number in (("stdout", 1), ("stderr", 2)):
        errors = "strict" if number == 1 else "backslashreplace"
        setattr(sys, name, open(number, "w", 1, encoding="ascii", errors=errors, closefd=False))  # noqa: SIM115


def _limited(which: int, amount: Callable[[], int]) -> Arrange:
    def arrange() -> None:
        if which == resource.RLIMIT_FSIZE:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(which, (amount(), resource.getrlimit(which)[1]))

    return arrange


def _environment(**changes: str | None) -> Arrange:
    def arrange() -> None:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None

    return arrange


def _read_only() -> None:
    without_privileges()
    for path in (Path.cwd(), *(p for p in Path.cwd().rglob("*") if p.is_dir() and not p.is_symlink())):
        path.chmod(0o555)


ARRANGED: dict[str, Arrange] = {
    "stdout closed": _closed(1),
    "stderr closed": _closed(2),
    "stdin closed": _closed(0),
    "all closed": _closed(0, 1, 2),
    "stdout full": _stream(1, "/dev/full"),
    "stderr full": _stream(2, "/dev/full"),
    "stdout without a reader": _stream(1),
    "stderr without a reader": _stream(2),
    "streams of ASCII": _ascii,
    **{
        f"files of {size} bytes at most": _limited(resource.RLIMIT_FSIZE, lambda size=size: size)
        for size in (0, 100, 4096, 30_000, 300_000, 1_500_000)
    },
    **{f"{n} handles": _limited(resource.RLIMIT_NOFILE, lambda n=n: n) for n in (3, 8, 16)},
    **{
        f"{size} MB more": _limited(resource.RLIMIT_AS, lambda size=size: memory_taken() + (size << 20))
        for size in (0, 2, 8, 32, 128)
    },
    "no HOME": _environment(HOME=None, USERPROFILE=None),
    "HOME that is a file": _environment(HOME="/dev/null", MPLCONFIGDIR="/dev/null"),
    "TMPDIR missing": _environment(TMPDIR="/nowhere"),
    "read-only": _read_only,
}
"""By name, what a process meets from its beginning."""
