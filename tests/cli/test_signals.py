"""A process that is told to end leaves nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linnet.cli import process
from linnet.cli.main import main
from linnet.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("warm_python")

Capture = pytest.CaptureFixture[str]


def test_sigterm_in_the_middle_of_prepare_leaves_nothing_behind(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the bird {n} sang to the tree {n % 977}.\n\n" for n in range(400_000)))
    out = tmp_path / "out" / "data"
    command = [sys.executable, "-m", "linnet", "prepare", str(text), "--tokenizer", "bytes", "--out", str(out)]
    preparing = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while not (out.parent.exists() and any(out.parent.iterdir())):
        assert preparing.poll() is None and time.monotonic() < deadline_s, "it was over before it could be stopped"
        time.sleep(0.005)
    preparing.send_signal(signal.SIGTERM)
    assert preparing.wait(60) == 128 + signal.SIGTERM
    assert not out.parent.exists()


SWALLOWED = """
import os, signal, sys, time
from linnet.cli import main as frame

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), {number})
        time.sleep(5)

def wrong(arguments):
    try:
        os.kill(os.getpid(), {number})
        time.sleep(5)
    except BaseException:
        raise ValueError("could not determine the shape")

def lost(arguments):
    Dropped()
    time.sleep(5)
    return 0

frame._invoke = {what}
sys.exit(frame.main())
"""


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize("what", ["wrong", "lost"])
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, ""),
        (signal.SIGHUP, 128 + signal.SIGHUP, ""),
        (signal.SIGINT, 130, "interrupted\n"),
    ],
)
def test_a_signal_is_heard_where_a_library_swallows_its_exception(number: int, code: int, line: str, what: str):
    program = SWALLOWED.format(number=int(number), what=what)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", line)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system repeats no signal")
def test_a_command_that_goes_on_behind_ctrl_c_forgets_it_and_no_other_signal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "_received", [])
    with pytest.raises(KeyboardInterrupt):
        process.leave(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        process.leave(signal.SIGALRM, None)  # repeated, because its exception was lost
    process.forget_interruption()
    assert process.received_signal() is None
    process.leave(signal.SIGALRM, None)
    with pytest.raises(KeyboardInterrupt):
        process.leave(signal.SIGINT, None)
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
        with pytest.raises(SystemExit, match="143"):
            process.leave(number, None)
    with pytest.raises(SystemExit, match="143"):
        process.forget_interruption()
    assert process.received_signal() == signal.SIGTERM


COMPARISON = """
name: small
text: {stories: 60}
tokenizer: {kind: bytes}
model: tiny-attention
training: {steps: 3, batch_size: 1, context_length: 16, threads: 1, evaluate: {tokens: 64}}
seeds: [0]
runs: [{name: one}, {name: other}]
"""

TRAINING = ["steps=3", "batch_size=1", "context_length=16", "threads=1", "evaluate.tokens=64"]
SHORT = [part for field in TRAINING for part in ("--set", f"training.{field}")]

TRAIN_VERBS = {
    "train": ["--model", "tiny-attention", "--data", "data", *SHORT],
    "demo": ["--steps", "3", "--stories", "60"],
    "compare": ["small.yaml"],
    "design study": ["--shapes", "6", "--bands", "2", "--seeds", "1", "--steps", "3", "--stories", "200"],
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", TRAIN_VERBS)
def test_every_verb_that_trains_saves_and_ends_as_a_shell_says_it(
    verb: str,
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(COMPARISON)
    if verb == "train":
        (tmp_path / "text.txt").write_text("the bird sang to the tree.<|endoftext|>" * 99)
        assert main(["prepare", "text.txt", "--tokenizer", "bytes", "--out", "data"]) == 0
    plain = Trainer._step

    def step(trainer: Trainer) -> None:
        plain(trainer)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "_step", step)
    assert main([*verb.split(), *TRAIN_VERBS[verb], "--out", "out"]) == 128 + number
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("stopped at step 1 of 3") and last.endswith("the same command continues")
    assert [path.name for path in (tmp_path / "out").rglob("step-*")] == ["step-00000001"]
