import pytest

from linnet.training.watch import BarWatch, LogWatch, Progress, duration, evaluation_text, terminal_watch

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
    watch = LogWatch()
    watch.begin(0, 40)
    watch.line(LINE)
    watch.line({**LINE, "validation": LEAKING})
    out, err = capsys.readouterr()
    plain, evaluated = err.splitlines()
    assert out == "" and "validation" not in plain
    assert plain.startswith("step 20/40  loss 2.0000  1.5000 bits/byte")
    assert plain.endswith("12,346 tokens/s  25.0% of peak  300 MB  ETA 1:01")
    assert evaluated.endswith("validation 1.2500 bits/byte (whole sequence 1.0000, leak +0.2500)")


def test_the_bar_moves_from_where_the_run_goes_on_and_prints_evaluations(capsys):
    moves = []
    watch = BarWatch(lambda amount, note="": moves.append((amount, note)))
    watch.begin(10, 40)
    watch.step(_progress(11))
    watch.step(_progress(12))
    watch.line(LINE)
    watch.line({**LINE, "validation": LEAKING})
    note = "loss 2.000, 1.500 bits/byte, 12.3k tok/s"
    assert moves == [(10, ""), (1, note), (1, note)]
    assert capsys.readouterr().err == f"step 20: validation {evaluation_text(LEAKING)}\n"


def test_a_terminal_gets_a_bar_and_a_file_a_log(monkeypatch):
    with terminal_watch(3) as watch:
        assert isinstance(watch, LogWatch)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with terminal_watch(3) as watch:
        assert isinstance(watch, BarWatch)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3599.6, "1:00:00"), (90061, "25:01:01")])
def test_durations(seconds, text):
    assert duration(seconds) == text
