"""A process that is told to end leaves nothing half-written."""

import signal
import subprocess
import sys
import time
from pathlib import Path


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
