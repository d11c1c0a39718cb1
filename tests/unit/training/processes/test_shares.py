import pytest
import torch

from linnet.training.distributed import ALONE, Processes
from linnet.training.processes.shares import Shares
from linnet.training.step import StepResult


class OfTwo(Processes):
    """The first of two, of which the other is like it; every question takes a second of waiting."""

    count = 2

    def gather(self, plain):
        self.waited_s += 1
        return [plain, {**plain, "process": 1}]


def _step(tokens):
    return StepResult(1.0, tokens, tokens, 1e-3, 1.0)


def test_one_process_is_the_run_itself():
    shares = Shares(ALONE, torch.device("cpu"), 1e9)
    shares.add(_step(8), 0.5)
    assert shares.since_last_line() == shares.in_all() == {}


def test_each_is_told_since_the_last_line_and_in_all():
    several = OfTwo()
    several.waited_s = 5.0
    shares = Shares(several, torch.device("cpu"), 100.0)
    shares.add(_step(80), 2.0)
    several.waited_s += 0.5
    first, second = shares.since_last_line()["processes"]
    assert (first["process"], second["process"]) == (0, 1)
    assert first["tokens_per_s"] == 20 and first["share_of_peak"] == 0.2 and first["memory_bytes"] > 1e7
    assert first["waiting_s"] == 0.5
    shares.add(_step(40), 2.0)
    assert shares.since_last_line()["processes"][0]["tokens_per_s"] == 10
    total = shares.in_all()["processes"][0]
    assert total["tokens_per_s"] == 15 and total["waiting_s"] == pytest.approx(2.5)
