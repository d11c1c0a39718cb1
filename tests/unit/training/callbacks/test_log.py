from types import SimpleNamespace

import pytest
import torch

from linnet.training.callbacks.log import ProcessStats, share_of_peak
from linnet.training.distributed import SINGLE_PROCESS, Processes
from linnet.training.step import StepResult


class OfTwo(Processes):
    """The first of two, of which the other is like it; every question takes a second of waiting."""

    def __init__(self):
        super().__init__()
        self.count, self.waits = 2, SimpleNamespace(seconds=0.0)

    def gather(self, plain):
        self.waits.seconds += 1
        return [plain, {**plain, "process": 1}]


def _step(tokens, elapsed_s):
    return StepResult(1.0, tokens, tokens, 1e-3, 1.0, elapsed_s=elapsed_s)


def test_a_share_is_left_out_where_the_peak_is_unknown_or_too_low():
    assert [share_of_peak(speed, 100.0) for speed in (25.0, 100.0, 101.0)] == [0.25, 1.0, None]
    assert share_of_peak(1.0, None) is None


def test_a_single_process_has_no_process_figures():
    stats = ProcessStats(SINGLE_PROCESS, torch.device("cpu"), 1e9)
    stats.add(_step(8, 0.5))
    assert stats.figures(since_last_line=True) == stats.figures(since_last_line=False) == {}


def test_each_process_is_measured_since_the_last_line_and_in_total():
    several = OfTwo()
    several.waits.seconds = 5.0
    stats = ProcessStats(several, torch.device("cpu"), 100.0)
    stats.add(_step(80, 2.0))
    several.waits.seconds += 0.5
    first, second = stats.figures(since_last_line=True)["processes"]
    assert (first["process"], second["process"]) == (0, 1)
    assert first["tokens_per_s"] == 20 and first["share_of_peak"] == 0.2 and first["memory_bytes"] > 1e7
    assert first["waiting_s"] == 0.5
    stats.add(_step(40, 2.0))
    assert stats.figures(since_last_line=True)["processes"][0]["tokens_per_s"] == 10
    total = stats.figures(since_last_line=False)["processes"][0]
    assert total["tokens_per_s"] == 15 and total["waiting_s"] == pytest.approx(2.5)
