"""The frame of the campaigns notices what it is there for: broken commands, each broken in one way, are found out."""

import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from campaigns import children, corruption, faults, kills, oracle
from campaigns.campaign import Case, Ground, Subject, attacked, fought, killed_at
from campaigns.children import run
from campaigns.damage import DAMAGES
from campaigns.operations import Operation, recording
from campaigns.oracle import Fault, changes, names, said
from campaigns.outputs import tree
from campaigns.workspaces import Command

Program = Callable[[], int]


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], tuple[Ground, Subject]]:
    """A command that a function is."""

    def make(program: Program) -> tuple[Ground, Subject]:
        monkeypatch.setattr(children, "command_line", program)
        monkeypatch.setattr(children, "GRACE_S", 0.2)
        template = tmp_path / "store" / "template"
        template.mkdir(parents=True)
        (template / "given.json").write_text(json.dumps({"value": 7, "more": [1, 2]}))
        ground = Ground(tmp_path, jobs=1)
        ground.store.made = {corruption.sha256((template / "given.json").read_bytes()).hexdigest()}
        return ground, ground.undisturbed(Command("linnet spec", ("spec",), template), template, "fresh")

    return make


def sound() -> int:
    """Reads, checks, writes under a temporary name; what stands already is made anew."""
    try:
        assert Path("given.json").is_file()
        value = json.loads(Path("given.json").read_text())
        assert value == {"value": 7, "more": [1, 2]}
    except (OSError, ValueError, AssertionError):
        print("error: given.json: damaged", file=sys.stderr)
        return 2
    Path("made.partial").write_text("made of 7")
    Path("made.partial").rename("made.txt")
    print(value["value"])
    return 0


def believing() -> int:
    """Believes whatever it reads."""
    print(json.loads(Path("given.json").read_text()).get("value"))
    return 0


def careless() -> int:
    """Writes where it stands, and refuses to go on from what it left."""
    if Path("made.txt").exists():
        print("error: made.txt: exists", file=sys.stderr)
        return 2
    with Path("made.txt").open("w") as file:
        file.write("made of 7")
    return 0


def littering() -> int:
    """Takes a new temporary name each time."""
    temporary = Path(f".made.{os.getpid()}.partial")
    temporary.write_text("made of 7")
    temporary.rename("made.txt")
    return 0


def linked() -> int:
    """Writes through links."""
    content = Path("given.json").read_text()
    Path("given.json").write_text(content)
    with Path("given.json").open("a") as file:
        file.write("\n")
    return 0


def findings(ground: Ground, subject: Subject, module: object) -> set[Fault]:
    return {finding.fault for case in module.cases_of(ground, subject, 0) for finding in case.attack()}


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (lambda: int("x"), Fault.TRACEBACK),
        (os.abort, Fault.TRACEBACK),
        (lambda: 3, Fault.TRACEBACK),
        (lambda: 2, Fault.TRACEBACK),
        (lambda: print("error: " + 400 * "x", file=sys.stderr) or 2, Fault.TRACEBACK),
        (lambda: print("error: \x1b[31m", file=sys.stderr) or 2, Fault.TRACEBACK),
        (lambda: bytearray(1 << 40) and 0, Fault.TRACEBACK),
    ],
)
def test_what_a_command_must_not_do(program: Program, fault: Fault, tmp_path: Path):
    assert [finding.fault for finding in said(run(["x"], tmp_path, program=program))] == [fault]


def test_silent_work_is_a_hang(tmp_path: Path):
    outcome = run(["x"], tmp_path, program=lambda: time.sleep(600) or 0, limit_s=0.3)
    assert [finding.fault for finding in said(outcome)] == [Fault.HANG]


class Turns:
    """The clock of a parent whose child works in turns: it waits for one of them, and a second has passed.

    Real time has no effect: however busy the machine is, the child takes as many turns before a limit.
    """

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.now_s = 0.0

    def turn(self) -> None:
        """Of the child."""
        os.write(self.writer, b".")
        time.sleep(0.001)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        while not select.select([self.reader], [], [], 0.02)[0]:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
        else:
            os.read(self.reader, 1)
        self.now_s += 1.0


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    clock = Turns()
    monkeypatch.setattr(children, "time", clock)
    yield clock
    os.close(clock.reader)
    os.close(clock.writer)


def test_long_work_that_says_so_and_can_be_ended_is_no_hang(turns: Turns, tmp_path: Path):
    def work() -> int:
        try:
            while True:
                print("step", file=sys.stderr)
                turns.turn()
        except KeyboardInterrupt:
            return 1

    outcome = run(["x"], tmp_path, program=work, limit_s=9)
    assert outcome.hung and said(outcome) == []


@pytest.mark.parametrize("shows_progress", [True, False])
def test_long_work_that_shows_progress_on_a_terminal_is_no_hang(shows_progress: bool, turns: Turns, tmp_path: Path):
    def work() -> int:
        while True:
            if shows_progress and sys.stderr.isatty():
                print("step", file=sys.stderr)
            turns.turn()

    case = Case("long", lambda: said(run(["x"], tmp_path, program=work, limit_s=9)))
    found = fought(Ground(tmp_path / "ground", jobs=1), "fuzz", [case], None, None).findings
    assert [finding.fault for _, finding in found] == ([] if shows_progress else [Fault.HANG])


@pytest.mark.parametrize("times", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_a_sound_command_stands_all_of_it(
    times: int, subject: Callable[[Program], tuple[Ground, Subject]], monkeypatch: pytest.MonkeyPatch
):
    """Each kind of damage, and four kills at random moments; then (slow) as often as in a campaign."""
    monkeypatch.setattr(kills, "AT_RANDOM", min(kills.AT_RANDOM, 4 * times))
    for kind, (damage, number) in DAMAGES.items():
        monkeypatch.setitem(DAMAGES, kind, (damage, min(number, times)))
    ground, of = subject(sound)
    assert [o.kind for o in of.operations if o.changes] == ["open", "write", "half", "rename"]
    assert findings(ground, of, kills) == set()
    assert findings(ground, of, corruption) == set()


@pytest.mark.slow  # the campaigns themselves are
@pytest.mark.parametrize(
    ("program", "module", "fault"),
    [
        (believing, corruption, Fault.CHANGE),
        (believing, corruption, Fault.TRACEBACK),
        (believing, corruption, Fault.HANG),
        (linked, corruption, Fault.LOSS),
        (careless, kills, Fault.LOSS),
        (littering, kills, Fault.LOSS),
        (sound, faults, Fault.TRACEBACK),
    ],
)
def test_broken_commands_are_found_out(
    program: Program, module: object, fault: Fault, subject: Callable[[Program], tuple[Ground, Subject]],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    ground, of = subject(program)
    monkeypatch.setattr(Subject, "limit_s", 0.5)
    assert fault in findings(ground, of, module)


def test_a_change_that_is_told_is_not_silent(subject: Callable[[Program], tuple[Ground, Subject]]):
    ground, of = subject(believing)
    assert ground.jobs == 1

    def attack(told: str, folder: Path, beside: Path) -> list:
        (folder / "given.json").write_text('{"value": 8}')
        outcome = run(["x"], folder, program=lambda: print(told, file=sys.stderr) or believing())
        return changes(of.clean, outcome, tree(folder), "given.json", names(outcome, of.clean, "given.json"))

    assert [f.fault for f in attacked(ground, of.template, partial(attack, "note: all is well"))] == [Fault.CHANGE]
    assert attacked(ground, of.template, partial(attack, "note: given.json: damaged")) == []


def test_a_device_that_became_a_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "null").touch()
    monkeypatch.setattr(oracle, "DEVICES", (os.devnull, str(tmp_path / "null")))
    (found,) = oracle.foreign(oracle.canaries(tmp_path / "canaries"), tmp_path / "canaries")
    assert (found.fault, found.told) == (Fault.LOSS, f"a foreign file was changed: {tmp_path / 'null'}")


def test_kills_happen_where_they_should(tmp_path: Path):
    expected = [None, "", "made"[:2], "made", None]
    for number, content in enumerate(expected[:4]):
        for path in tmp_path.iterdir():
            path.unlink()

        def program() -> int:
            Path("x").write_text("made")
            Path("x").rename("y")
            return 0

        assert run(["x"], tmp_path, killed_at(number), program).code == -signal.SIGKILL
        left = tmp_path / "x"
        assert (left.read_text() if left.exists() else None) == content


def test_operations_are_seen(tmp_path: Path):
    def program() -> int:
        Path("folder").mkdir()
        Path("folder/x").write_bytes(b"abcd")
        os.fsync(os.open("folder/x", os.O_RDONLY))
        Path("folder/x").unlink()
        Path("/dev/null").write_text("not of the workspace")
        return 0

    arrange, told = recording()
    assert run(["x"], tmp_path, arrange, program).code == 0
    assert told() == [
        Operation("mkdir", "folder"), Operation("open", "folder/x"), Operation("write", "folder/x"),
        Operation("half", "folder/x"), Operation("read", "folder/x"), Operation("fsync", ""),
        Operation("remove", "folder/x"),
    ]  # fmt: skip


def test_errors_happen_where_they_should(tmp_path: Path):
    def program() -> int:
        try:
            Path("x").write_text("1234")
        except OSError as error:
            return 1 if error.errno == errno.ENOSPC else 2
        return 0

    arrange = faults.error_at(2, "disk full", lasting=False)
    outcome = run(["x"], tmp_path, arrange, program)
    assert (outcome.code, (tmp_path / "x").read_text()) == (1, "12")
