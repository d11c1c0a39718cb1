"""A campaign: many inputs, each run by itself, and what was wrong with it."""

import multiprocessing
import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from campaigns.children import ON_TERMINAL, Arrange, Outcome, run
from campaigns.operations import Operation, recording
from campaigns.oracle import Clean, Fault, Finding, canaries, foreign
from campaigns.outputs import differing, figures, tree
from campaigns.workspaces import Command, Store, copy_of, documented, remove

LONG_S = 4.0
"""Commands that take longer are attacked less often."""


@dataclass(frozen=True)
class Case:
    """One input: a name by which it is run alone, and what to do."""

    name: str
    attack: Callable[[], list[Finding]]


@dataclass
class Result:
    """What a campaign found."""

    campaign: str
    inputs: int = 0
    seconds: float = 0.0
    findings: list[tuple[str, Finding]] = field(default_factory=list)

    def count(self, fault: Fault) -> int:
        """Inputs with that fault."""
        return len({name for name, finding in self.findings if finding.fault == fault})


@dataclass(frozen=True)
class Subject:
    """A command in one of its states, undisturbed: what the campaigns attack."""

    label: str
    command: Command
    template: Path
    clean: Clean
    operations: tuple[Operation, ...]

    @property
    def writes(self) -> bool:
        """Whether it makes anything."""
        return any(operation.changes for operation in self.operations)

    @property
    def limit_s(self) -> float:
        """After which it hangs."""
        return max(20.0, 10 * self.clean.seconds)


class Ground:
    """Where campaigns take place: the store of originals, and the commands with what they do undisturbed."""

    def __init__(self, folder: Path, jobs: int = 2) -> None:
        self.folder, self.jobs = folder, jobs
        self.store = Store(folder / "store")
        self.subjects: list[Subject] = []

    def prepare(self, only: Callable[[str], bool] = lambda example: True) -> None:
        """Make the files; run every command undisturbed."""
        made = run(["linnet"], self.store.folder, program=lambda: self.store.fill() or 0, limit_s=600)
        assert made.code == 0, made.err
        self.store.load()
        numbered = [(n, example) for n, example in enumerate(documented()) if only(example)]
        self.subjects = [s for found in self.each(self._subjects, numbered) for s in found]

    def each(self, work: Callable[..., object], inputs: Iterable[tuple]) -> Iterator:
        """`work(*input)` of all inputs, by several processes, in order."""
        global _WORK
        _WORK = work
        if self.jobs == 1:
            yield from (work(*given) for given in inputs)
            return
        with multiprocessing.get_context("fork").Pool(self.jobs) as pool:
            yield from pool.imap(_worked, inputs)

    @contextmanager
    def workspace(self, template: Path) -> Iterator[Path]:
        """A copy of a template, with room for canaries beside it."""
        folder = Path(tempfile.mkdtemp(prefix="case-", dir=self.folder))
        try:
            yield copy_of(template, folder / "here")
        finally:
            remove(folder)

    def _subjects(self, number: int, example: str) -> list[Subject]:
        command = self.store.command(example, number)
        fresh = self.undisturbed(command, command.template, "fresh")
        if fresh.clean.outcome.code == 2:  # small settings are not for all its forms
            command = self.store.plainly(command)
            fresh = self.undisturbed(command, command.template, "fresh")
        found = [fresh]
        if fresh.clean.outcome.code or fresh.clean.outcome.hung:
            raise AssertionError(f"{example}: {fresh.clean.outcome.err}")
        if fresh.writes:
            found += [self._interrupted(fresh), self._finished(fresh)]
        return found

    def _interrupted(self, fresh: Subject) -> Subject:
        """What stands after a kill at two thirds is where the same command continues."""
        at = 2 * sum(operation.changes for operation in fresh.operations) // 3
        return self._later(fresh, "interrupted", killed_at(at))

    def _finished(self, fresh: Subject) -> Subject:
        return self._later(fresh, "finished", None)

    def _later(self, fresh: Subject, state: str, arrange: Arrange | None) -> Subject:
        template = fresh.template.with_name(f"{fresh.template.name}-{state}")
        copy_of(fresh.template, template)
        run(fresh.command.words, template, arrange, limit_s=fresh.limit_s)
        return self.undisturbed(fresh.command, template, state)

    def undisturbed(self, command: Command, template: Path, state: str) -> Subject:
        """What a command does in a workspace, by two runs of it."""
        arrange, told = recording()
        before = tree(template)
        with self.workspace(template) as folder:
            first = run(command.words, folder, arrange, limit_s=120)
            after = tree(folder)
        with self.workspace(template) as folder:
            second = run(command.words, folder, limit_s=120)
            unsettled = differing(after, tree(folder))
        clean = Clean(second, before, after, frozenset(unsettled), figures(first.out) != figures(second.out))
        return Subject(f"{command.example} [{state}]", command, template, clean, tuple(told()))


_WORK: Callable[..., object] | None = None


def _worked(given: tuple) -> object:
    assert _WORK is not None
    return _WORK(*given)


def killed_at(number: int) -> Arrange:
    """An arrangement: the process is killed before its n-th change of the disk."""
    from campaigns.operations import Operations

    def act(now: int, operation: Operation) -> None:
        if now == number:
            os.kill(os.getpid(), 9)

    return lambda: Operations(act).begin()


def attacked(
    ground: Ground, template: Path, attack: Callable[[Path, Path], list[Finding]], more: bool = False
) -> list[Finding]:
    """The findings of `attack(workspace, canaries)`, and whether a canary was harmed; `more`: one may be new."""
    with ground.workspace(template) as folder:
        beside = folder.parent / "canaries"
        before = canaries(beside)
        return [*attack(folder, beside), *foreign(before, beside, more)]


def rotated(groups: list[tuple[Subject, list[Case]]], seed: int) -> Iterator[Case]:
    """Cases in turn from every subject, each in a random order of its own; from slow ones seldom."""
    source = random.Random(seed)
    for _, cases in groups:
        source.shuffle(cases)
    waiting = [iter(cases) for _, cases in groups]
    strides = [max(1, round(subject.clean.seconds / LONG_S * 4)) if subject.clean.seconds > LONG_S / 4 else 1
               for subject, _ in groups]  # fmt: skip
    turn, live = 0, set(range(len(groups)))
    while live:
        for number in sorted(live):
            if turn % strides[number] == 0:
                case = next(waiting[number], None)
                if case is None:
                    live.discard(number)
                else:
                    yield case
        turn += 1


def fought(ground: Ground, campaign: str, cases: Iterable[Case], minutes: float | None, count: int | None) -> Result:
    """Run the cases until the time is over or so many are done."""
    result, began = Result(campaign), time.monotonic()
    limited = list(islice(cases, count)) if count is not None else list(cases)

    def attempt(number: int) -> tuple[int, list[Finding]] | None:
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            return None
        return number, _findings(limited[number])

    found: dict[int, list[Finding]] = {}
    for done in ground.each(attempt, ((n,) for n in range(len(limited)))):
        if done is None:
            break
        found[done[0]] = done[1]
    minutes = None
    for on_terminal in (False, True):  # alone: two that measure speed wait for each other; then where progress is seen
        for number in [n for n, findings in found.items() if _hangs(findings)]:
            found[number] = _again(found[number], partial(ground.each, attempt, [(number,)]), on_terminal)
    result.inputs = len(found)
    result.findings = [(limited[number].name, finding) for number in sorted(found) for finding in found[number]]
    result.seconds = time.monotonic() - began
    return result


def _hangs(findings: list[Finding]) -> bool:
    return any(one.fault is Fault.HANG for one in findings)


def _again(before: list[Finding], attempts: Callable[[], Iterator], on_terminal: bool) -> list[Finding]:
    """What a second attempt finds; on a terminal only whether it hangs there as well: all else looks otherwise."""
    ON_TERMINAL[0] = on_terminal
    try:
        ((_, now),) = attempts()
    finally:
        ON_TERMINAL[0] = False
    if not on_terminal:
        return now
    return before if _hangs(now) else [one for one in before if one.fault is not Fault.HANG]


def _findings(case: Case) -> list[Finding]:
    try:
        return case.attack()
    except Exception:
        return [Finding(Fault.TRACEBACK, f"of the campaign itself: {traceback.format_exc()[-1500:]}")]


def ended(outcome: Outcome) -> str:
    """For a finding: what a command said."""
    return f"exit code {outcome.code}: {' | '.join(outcome.err.splitlines()[-3:])[-400:]}"
