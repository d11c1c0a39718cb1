import io
import re
import sys
from time import sleep

import pytest

from linnet.training.reporter import LogReporter, Progress, evaluation_text, terminal_reporter

LEAKING = {"bits_per_byte": 1.25, "whole_sequence_bits_per_byte": 1.0, "leak": 0.25}
LINE = {
    "step": 20,
    "loss": 2.0,
    "bits_per_byte": 1.5,
    "lr": 1e-3,
    "gradient_norm": 0.5,
    "tokens_per_s": 12345.6,
    "share_of_peak": 0.25,
    "memory_bytes": 3e8,
    "eta_s": 61.0,
}


def _progress(step):
    return Progress(step, 40, 0, 2.0, 1.5, 1e-3, 0.5, 12345.6, 61.0, None)


def test_the_log_has_a_line_for_each_line_of_figures(capsys):
    reporter = LogReporter()
    reporter.begin(0, 40)
    reporter.line(LINE)
    reporter.line({**LINE, "validation": LEAKING})
    reporter.line({**LINE, "orthogonalizing_share": 0.06})
    reporter.line({**LINE, "share_of_peak": None})
    out, err = capsys.readouterr()
    plain, evaluated, muon, unknown = err.splitlines()
    assert out == "" and "validation" not in plain
    assert plain.startswith("step 20/40  loss 2.0000  1.5000 bits/byte")
    assert plain.endswith("12,346 tokens/s  25.0% of peak  300 MB  ETA 1 min 01 s")
    assert evaluated.endswith("validation 1.2500 bits/byte (whole sequence 1.0000, leak +0.2500)")
    assert "  Muon's share 6.0%  " in muon
    assert unknown.endswith("12,346 tokens/s  300 MB  ETA 1 min 01 s")


def test_the_log_tells_what_held_out_pairs_say(capsys):
    pairs = {"pairs": 4, "preference_loss": 0.5, "accuracy": 0.75, "margin": 0.25}
    LogReporter().line({**LINE, "validation": {"bits_per_byte": 2.0}, "preferences": pairs})
    told = "75.0% of 4 with the chosen answer ahead, margin +0.250, loss 0.5000"
    assert capsys.readouterr().err.endswith(f"validation 2.0000 bits/byte  held-out pairs: {told}\n")


class Terminal(io.StringIO):
    """A standard error that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A standard error of 80 columns."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return shown


def test_the_bar_starts_at_the_resumed_step_and_prints_evaluations(monkeypatch: pytest.MonkeyPatch):
    terminal = terminal_of(monkeypatch)
    with terminal_reporter() as reporter:
        reporter.begin(10, 40)
        reporter.step(_progress(11))
        reporter.line(LINE)
        reporter.line({**LINE, "validation": LEAKING})
        reporter.step(_progress(40))
    text = terminal.getvalue()
    assert "train" in text and "10/40" in text and "━" in text
    assert re.search(r"40/40  in 0(\.\d+)? s  loss 2.00  1.500 bits/byte  12,346 tokens/s", text)
    assert f"step 20: validation {evaluation_text(LEAKING)}\n" in text
    assert "…" not in text


def test_the_bar_of_one_model_of_several_has_its_title_and_eta(monkeypatch: pytest.MonkeyPatch):
    terminal = terminal_of(monkeypatch)
    with terminal_reporter("attention, seed 1") as reporter:
        reporter.begin(0, 400)
        reporter.step(_progress(123))
        reporter.line({**LINE, "validation": LEAKING})
        sleep(0.15)  # the bar is drawn ten times a second
    text = terminal.getvalue()
    assert "attention, seed 1" in text and "validation" not in text
    assert "123/400  ETA 1 min 01 s  loss 2.00  1.500 bits/byte  12,346" in text


def test_a_finished_model_gets_no_progress_bar(monkeypatch: pytest.MonkeyPatch):
    terminal = terminal_of(monkeypatch)
    with terminal_reporter("attention") as reporter:
        reporter.note("demo/attention: finished, nothing to do")
    assert terminal.getvalue() == "demo/attention: finished, nothing to do\n"


def test_without_a_terminal_one_run_is_logged_and_several_print_evaluations(capsys):
    with terminal_reporter() as reporter:
        assert isinstance(reporter, LogReporter)
    with terminal_reporter("TED") as reporter:
        reporter.begin(0, 40)
        reporter.note("going on")
        reporter.step(_progress(19))
        reporter.line(LINE)
        reporter.line({**LINE, "validation": LEAKING})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "going on",
        "TED           20/40  ETA 1 min 01 s  loss 2.00  1.500 bits/byte  12,346 tokens/s  held out 1.250",
    ]
