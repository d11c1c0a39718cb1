import io
import subprocess
import sys
from time import sleep

import pytest

from linnet.present.progress import progress

HIDDEN_CURSOR = "\x1b[?25l"
"""With which each display begins."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run() -> None:
    with progress("reading", total=10, unit="tokens") as advance:
        for _ in range(9):
            advance(1, "loss 3.21", 90.0)
        sleep(0.15)  # the bar is drawn ten times a second
        advance(1, "loss 3.20")


def test_on_a_terminal_the_bar_shows_description_position_and_note(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    run()
    for part in ("reading", "9/10 tokens  ETA 1 min 30 s  loss 3.21", "10/10 tokens  in 0.", "loss 3.20"):
        assert part in terminal.getvalue()


def test_work_that_ends_below_an_estimate_is_complete(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for is_estimate, ending in ((True, "7/7 tokens  in 0"), (False, "7/10 tokens  ETA ")):
        with progress("reading", total=10, unit="tokens", is_estimate=is_estimate) as advance:
            advance(7, "", 9.0)
        last_drawn = terminal.getvalue().rsplit("reading", 1)[-1]
        assert ending in last_drawn


def test_a_bar_within_another_is_a_line_below_it_and_goes(monkeypatch: pytest.MonkeyPatch):
    """Two displays would draw over each other in turn."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("training", total=2) as advance:
        advance(1)
        with progress("answers", total=4, unit="texts") as advance_inner:
            advance_inner(3)
            sleep(0.15)  # the bars are drawn ten times a second
        inside = terminal.getvalue()
        advance(1)
    assert "3/4 texts" in inside and terminal.getvalue().count(HIDDEN_CURSOR) == 1
    assert "answers" not in terminal.getvalue().rsplit("training", 1)[-1]
    with pytest.raises(ZeroDivisionError), progress("outer", 1), progress("inner", 1):
        _ = 1 / 0
    run()
    assert "10/10 tokens" in terminal.getvalue()


def test_without_a_terminal_nothing_is_printed(capfd: pytest.CaptureFixture[str]):
    run()
    assert capfd.readouterr() == ("", "")


def test_an_error_inside_passes_through(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(ZeroDivisionError), progress("dividing", total=None):
        _ = 1 / 0


def test_a_silent_bar_does_not_load_rich():
    code = """
import sys
from linnet.present.progress import progress
with progress("x", 1) as advance:
    advance(1)
print("rich" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
