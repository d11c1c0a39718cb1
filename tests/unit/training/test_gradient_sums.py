"""Sums begin within the last backward pass, in one order in all processes, and are the gradients of all."""

import json
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from linnet.training.gradient_sums import Bucket
from linnet.training.timing import Stopwatch
from several import finish, start

EARLY = ["layer 3", "sum 3", "layer 2", "sum 2", "layer 1", "sum 1", "layer 0", "sum 0", "end"]
PLAIN = ["layer 3", "layer 2", "layer 1", "layer 0"]


@cache
def of_two() -> list[dict]:
    ended = finish(start([Path(__file__).parent / "summing.py"], 2))
    assert [code for code, _, _ in ended] == [0, 0], ended
    return [json.loads(out) for _, out, _ in ended]


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize(
    ("step", "events"),
    [
        ("first", [*PLAIN, "end", "sum 3", "sum 2", "sum 1", "sum 0"]),
        ("two passes", [*PLAIN, *EARLY]),
        ("used twice", ["layer 3", "sum 3", "layer 1", "layer 2", "sum 2", "layer 1", "sum 1", "layer 0", "sum 0",
                        "end"]),
        ("then", ["layer 3", "sum 3", "layer 2", "layer 1", "sum 1", "layer 0", "sum 0", "end", "sum 2"]),
        ("nobody had one", ["layer 3", "sum 3", "layer 2", "layer 1", "sum 1", "layer 0", "end", "sum 2", "sum 0"]),
        ("one pass misses", ["layer 3", "layer 1", "layer 0", "layer 3", "sum 3", "layer 2", "layer 1", "sum 1",
                             "layer 0", "end", "sum 2", "sum 0"]),
    ],
)  # fmt: skip
def test_sums_begin_during_the_last_backward_pass(process: int, step: str, events: list[str]):
    """Not before it is known which weights every process has gradients of: nobody waits for who begins another sum."""
    assert of_two()[process]["steps"][step]["events"] == events


def test_sums_with_missing_gradients_begin_later():
    """And in the same order as the others."""
    first, last = (told["steps"]["last misses one"]["events"] for told in of_two())
    assert first == EARLY
    assert last == ["layer 3", "sum 3", "layer 1", "layer 0", "end", "sum 2", "sum 1", "sum 0"]
    ahead = [told["steps"]["nobody has one"]["events"] for told in of_two()]
    assert ahead == 2 * [["layer 3", "sum 3", "layer 2", "layer 1", "sum 1", "end", "sum 0", "sum 2"]]


def test_gradients_are_those_of_one_process():
    """One that a process lacks, too; nobody has one of a weight that nobody used."""
    for told in of_two():
        assert all(found["difference"] < 1e-6 for found in told["steps"].values()), told


def test_only_real_waiting_is_counted():
    """Not what is summed while both compute, but the time by which one of them comes late."""
    first, last = (told["waits"] for told in of_two())
    assert first["both_busy"] < 0.5 and last["both_busy"] < 0.5
    assert first["last_late"] > 0.5 > last["last_late"]


def test_the_wait_for_a_sum_is_counted():
    reporter = Stopwatch()

    class Slow:
        def wait(self):
            time.sleep(0.2)

    bucket = Bucket([])
    bucket.flat, bucket.sum = torch.zeros(1), Slow()
    bucket.finish(SimpleNamespace(waits=reporter), {})
    assert reporter.seconds >= 0.2


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_shards_are_gathered_by_an_operation_that_keeps_memory_intact(rows: int):
    """Not by a coalesced one, which `DTensor.full_tensor` uses: see `whole`."""
    for found in of_two():
        is_equal, operations = found["gathered"][str(rows)]
        assert is_equal
        assert len(operations) == 1
        assert "coalesced" not in operations[0] and "functional" not in operations[0], operations
