"""Runs as points."""

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.scaling.points import Points, Run, check_counting, countings, without_highest


def run(name: str, loss: float, **parameters: float) -> Run:
    return Run(name, parameters, np.array([1.0, 2.0]), np.array([6.0, 12.0]), np.array([9.0, loss]))


RUNS = [run("a", 3.0, total=10.0), run("b", 5.0, total=20.0, matrices_and_head=15.0), run("c", 4.0, total=30.0)]


def test_points_are_the_ends_of_the_runs():
    points = Points.of(RUNS, "total")
    assert points.parameters.tolist() == [10, 20, 30]
    assert points.tokens.tolist() == [2, 2, 2] and points.flops.tolist() == [12, 12, 12]
    assert points.loss.tolist() == [3, 5, 4]
    assert len(points) == 3
    assert points[np.array([2, 0])].loss.tolist() == [4, 3]


def test_the_highest_losses_are_left_out_and_the_order_stays():
    assert [one.name for one in without_highest(RUNS, 1)] == ["a", "c"]
    assert without_highest(RUNS, 0) == RUNS
    with pytest.raises(UserError, match="drop_highest: 3: must be less than the number of runs, 3"):
        without_highest(RUNS, 3)


def test_only_what_all_runs_tell_can_be_counted():
    assert countings(RUNS) == ["total"]
    assert countings(RUNS[1:2]) == ["total", "matrices_and_head"]
    check_counting(RUNS, "total")
    with pytest.raises(UserError, match=r"counted: matrices_and_head: a does not tell .* known of all: total"):
        check_counting(RUNS, "matrices_and_head")
