"""What is shown while a model is trained."""

import io
import sys

import pytest

from linnet.training.bar_watch import BarWatch, LineWatch, model_watch
from linnet.training.watch import Progress


def progress(step: int) -> Progress:
    return Progress(step, 400, step * 2048, 2.3123, 0.98213, 1e-3, 1.0, 14_322.3, (400 - step) * 0.15, None)


def line(step: int, **more: object) -> dict[str, object]:
    return {"step": step, "eta_s": 41.55, **more}


class Terminal(io.StringIO):
    """A standard error that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_a_line_for_each_evaluation(capsys: pytest.CaptureFixture[str]):
    with model_watch("TED", 400) as watch:
        assert isinstance(watch, LineWatch)
        watch.begin(0, 400)
        watch.note("going on")
        watch.step(progress(123))
        watch.line(line(120))
        watch.line(line(123, validation={"bits_per_byte": 1.01234}))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "going on",
        "TED         123/400  ETA 0:42  loss 2.31  0.982 bits/byte  14,322 tokens/s  held out 1.012",
    ]


def test_on_a_terminal_of_80_columns_a_bar_shows_all_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with model_watch("attention", 400) as watch:
        assert isinstance(watch, BarWatch)
        watch.begin(100, 400)
        watch.step(progress(123))
        watch._bar.refresh()
        watch.step(progress(400))
        shown = sys.stderr
    text = shown.getvalue()
    assert "━" in text and "attention" in text and " 25% " in text
    assert " 31% ETA 0:42  loss 2.31  0.982 bits/byte  14,322 tokens/s" in text
    assert "100%  in 0:00  loss 2.31  0.982 bits/byte  14,322 tokens/s" in text
    assert "…" not in text


def test_a_model_that_is_finished_gets_no_bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with model_watch("attention", 400) as watch:
        watch.note("demo/attention: finished, nothing to do")
        shown = sys.stderr
    assert shown.getvalue().strip() == "demo/attention: finished, nothing to do"
