"""A process that is told to end leaves nothing half-written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def test_sigterm_in_the_middle_of_prepare_leaves_nothing_behind(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the bird {n} sang to the tree {n % 977}.\n\n" for n in range(400_000)))
    out = tmp_path / "out" / "data"
    command = [sys.executable, "-m", "linnet", "prepare", str(text), "--tokenizer", "bytes", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 60
    while not (out.parent.exists() and any(out.parent.iterdir())):
        assert process.poll() is None and time.monotonic() < deadline_s, "it was over before it could be stopped"
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
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


@pytest.mark.parametrize("what", ["wrong", "lost"])
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, ""),
        (signal.SIGHUP, 128 + signal.SIGHUP, ""),
        (signal.SIGINT, 1, "interrupted\n"),
    ],
)
def test_a_signal_is_heard_where_a_library_swallows_its_exception(number: int, code: int, line: str, what: str):
    program = SWALLOWED.format(number=int(number), what=what)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", line)
