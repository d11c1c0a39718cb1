"""A busy machine and late data are noticed, once; a quiet one is not accused."""

import os
import random

import pytest

from linnet.training.callbacks import log
from linnet.training.callbacks.log import MIN_STEPS, WARMUP_STEPS, Steadiness
from linnet.training.reporter import Reporter
from linnet.training.run import train_run


@pytest.fixture(autouse=True)
def others(monkeypatch):
    """What other programs use, in a list."""
    found = [0.0]

    class Known:
        def processors(self):
            return found[0]

    monkeypatch.setattr(log, "OtherPrograms", Known)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(Steadiness, "reported_by_process", set())
    return found


def _said(times_s, waited_s=0.0):
    judged = Steadiness(2)
    return [text for seconds in times_s for text in judged.add(seconds, waited_s)]


def test_equally_slow_steps_are_reported_by_the_load_of_others(others):
    steady = [0.5] * 200
    others[0] = 1.3
    (said,) = _said(steady)
    assert "the machine is busy" in said and "1.3 of 2 processors: end them, or train with fewer threads" in said
    assert "median" not in said, "the steps are alike"
    assert _said(steady) == [], "of the same process, as in a comparison"
    Steadiness.reported_by_process.clear()
    assert [text for seconds in steady for text in Steadiness(2, on_processors=False).add(seconds, 0.0)] == []
    others[0] = 0.2
    assert _said(steady) == []
    others[0] = 1.0
    assert [text for seconds in steady for text in Steadiness(1).add(seconds, 0.0)] == []


def test_a_busy_machine_is_reported_once_with_advice(others):
    others[0] = 1.3
    slow = ([0.5] * 4 + [1.2]) * 60
    (said,) = _said([9.0] * WARMUP_STEPS + slow)
    assert said.startswith("note: the machine is busy: a tenth of 20 steps took over 2.4 times the median of 0.50 s;")
    assert "1.3 of " in said and said.endswith("or train with fewer threads than 2 (training.threads)")


def test_a_quiet_machine_is_not_reported():
    generator = random.Random(0)
    steady = [generator.gauss(0.5, 0.02) + 2.0 * (number % 30 == 29) for number in range(500)]
    assert _said([9.0] * WARMUP_STEPS + steady) == []


def test_short_runs_and_first_steps_are_not_reported():
    assert _said([1.0, 9.0] * (MIN_STEPS // 2)) == []
    assert _said([1e-3, 9e-3] * 200) == []


def test_a_wait_for_data_is_not_reported_as_a_busy_machine():
    judged, said = Steadiness(2), []
    for number in range(60):
        wait_s = 0.1 + 0.9 * (number % 4 == 0)
        said += judged.add(0.5 + wait_s, wait_s)
    (text,) = said
    assert text.startswith("note: steps wait for their data: ") and "faster disk" in text


def test_a_run_reports_late_data(tmp_path, tiny_run, monkeypatch):
    from linnet.data.loader import Batches

    monkeypatch.setattr(log, "MIN_S", 0.05)
    monkeypatch.setattr(log, "SCATTER_LIMIT", 1e9)
    plain = Batches.batch

    def slow(batches, number):
        import time

        time.sleep(0.05)
        return plain(batches, number)

    monkeypatch.setattr(Batches, "batch", slow)

    class Lines(Reporter):
        def __init__(self):
            self.notes, self.lines = [], []

        def note(self, text):
            self.notes.append(text)

        def line(self, line):
            self.lines.append(line)

    reporter = Lines()
    train_run(tiny_run(steps=30), tmp_path, reporter)
    assert sum("steps wait for their data" in note for note in reporter.notes) == 1
    assert all(0.1 < line["waiting_share"] < 1 for line in reporter.lines)
