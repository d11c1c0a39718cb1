"""Fronts: every point is an optimum for its cost, and none dominates another."""

import csv
import json
from itertools import product

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.design import pareto
from linnet.design.cost_tables import build_cost_tables
from linnet.design.metrics import Budget, CostCounts
from linnet.design.optimum import TooLargeError
from linnet.design.pareto import front, write_front
from linnet.design.report import FrontReport
from linnet.design.scores import SCORES, ScoreSettings
from linnet.design.search import DesignSettings, EvolutionSettings, SearchTask
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present.style import png_of

QUICK = DesignSettings(search=EvolutionSettings(population=24, parents=8, iterations=12))
FLOPS, PARAMETERS = CostCounts(64).metric("flops"), CostCounts(1).metric("parameters")


def task(space, **changes) -> SearchTask:
    return SearchTask(**{"space": space, "budgets": [], "score": "entropy_beta_2", "settings": QUICK, **changes})


def everything(space, goals):
    tables = build_cost_tables(space, goals, SCORES["entropy_beta_2"], ScoreSettings())
    evaluation = tables.evaluate(np.array(list(product(range(len(space.plain)), repeat=space.spec.blocks))))
    return evaluation.metrics_CM, evaluation.score_C


def assert_optimal(points, values, scores) -> None:
    """Return True if no model of the space has a higher score at no higher cost."""
    for point in points:
        within = (values <= np.array(point.values)).all(1)
        assert scores[within].max() == pytest.approx(point.score)


@pytest.mark.parametrize("goals", [[FLOPS], [FLOPS, PARAMETERS]], ids=["one", "two"])
def test_every_point_is_the_best_for_its_cost(small_space, goals):
    space = small_space(block={"mixer": [{"kind": "attention"}, {"kind": "ted"}], "share_weights": [True, False]})
    points = front(task(space), goals, 6, "small")
    values, scores = everything(space, goals)
    assert_optimal(points, values, scores)
    assert all(point.proven for point in points)
    assert len(points) > 3
    assert points[0].values[0] == values[:, 0].min()
    assert max(point.score for point in points) == pytest.approx(scores.max())
    costs = [point.values[0] for point in points]
    assert costs == sorted(costs)


def test_dominated_points_are_removed(small_space):
    space = small_space(block={"repeat": [1, 2]})
    tables = build_cost_tables(space, [FLOPS, PARAMETERS], SCORES["entropy_beta_2"], ScoreSettings())
    found = {tuple(models): True for models in product(range(len(space.plain)), repeat=2)}
    points = pareto._points(task(space), tables, found, 2, "small")
    values, scores = everything(space, [FLOPS, PARAMETERS])
    goals = np.hstack([values, -scores[:, None]])
    beaten = [((goals <= row).all(1) & (goals < row).any(1)).any() for row in goals]
    expected = {tuple(row) for row, lost in zip(goals, beaten, strict=True) if not lost}
    assert {(*point.values, -point.score) for point in points} == expected


def test_the_values_of_a_point_are_the_costs_of_its_model(small_space):
    points = front(task(small_space()), [FLOPS, PARAMETERS], 4, "small")
    for number, point in enumerate(points, 1):
        cost = model_cost(point.model)
        assert point.values == (cost.flops(64, with_head=False), cost.parameters)
        assert point.model.name == f"small-{number:02}"


def test_budgets_hold_for_every_point(small_space):
    space = small_space()
    most = 9_000
    points = front(task(space, budgets=[Budget(PARAMETERS, most, "--max-parameters 9k")]), [FLOPS], 8, "small")
    assert points
    assert all(model_cost(point.model).parameters <= most for point in points)
    values, scores = everything(space, [FLOPS, PARAMETERS])
    inside = values[:, 1] <= most
    assert_optimal(points, values[inside, :1], scores[inside])
    with pytest.raises(UserError, match="nothing in the space small meets it"):
        front(task(space, budgets=[Budget(PARAMETERS, 10, "--max-parameters 10")]), [FLOPS], 8, "small")


def test_a_budget_of_a_goal_ends_the_front(small_space):
    points = front(task(small_space(), budgets=[Budget(FLOPS, 2e6, "--max-flops 2M")]), [FLOPS], 5, "small")
    assert 1e6 < points[-1].values[0] <= 2e6


@pytest.mark.parametrize("why", ["too large", "asked for"])
def test_evolution_is_used_if_the_optimum_is_not_known(small_space, monkeypatch, why: str):
    def too_large(*_):
        raise TooLargeError

    if why == "too large":
        monkeypatch.setattr(pareto, "optimum", too_large)
    points = front(task(small_space(), method="auto" if why == "too large" else "evolution"), [FLOPS], 4, "small")
    assert points
    assert not any(point.proven for point in points)


def test_a_front_is_written_and_shown(small_space, tmp_path):
    goals = [FLOPS, PARAMETERS]
    wanted = task(small_space())
    points = front(wanted, goals, 4, "small")
    report = FrontReport(wanted, goals, points)
    write_front(points, goals, "entropy_beta_2", tmp_path, "linnet design")
    rows = list(csv.DictReader((tmp_path / "front.csv").read_text().splitlines()))
    assert [float(row["flops"]) for row in rows] == [point.values[0] for point in points]
    assert [ModelSpec.load(tmp_path / f"{row['model']}.yaml") for row in rows] == [point.model for point in points]
    figures = json.loads(json.dumps(report.to_dict()))
    assert figures["goals"] == ["flops", "parameters", "score"]
    assert [one["score"] for one in figures["front"]] == [point.score for point in points]
    (table,) = report.tables()
    assert table.columns == ["model", "flops", "parameters", "entropy_beta_2", "layers x width", "mixers"]
    assert len(table.rows) == len(points)
    for count in (1, 2):
        (picture,) = FrontReport(wanted, goals[:count], points).plots()
        (series,) = picture.drawing.panels[0].series
        assert list(series.y) == [point.score for point in points] and (series.values is not None) == (count == 2)
        assert png_of(picture.drawing.figure()).startswith(b"\x89PNG")
