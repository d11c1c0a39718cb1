"""Tasks on synthetic ladders whose law is known: the curve is found, and the larger models lie in their intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_laws import TRUTH

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.present.style import SOFT
from linnet.scaling import parametric
from linnet.scaling.points import Points
from linnet.scaling.task_curve import Misfit, fit_curve
from linnet.scaling.task_output import task_pictures, task_tables
from linnet.scaling.task_points import TaskPoints
from linnet.scaling.task_prediction import predict_task


def ladder() -> Points:
    """Six sizes, four amounts of text each, with the losses of a known law."""
    sizes, ratios = np.geomspace(2e5, 2e7, 6), np.array([4.0, 10.0, 25.0, 60.0])
    parameters, tokens = np.repeat(sizes, 4), (sizes[:, None] * ratios).ravel()
    return Points(parameters, tokens, 6 * parameters * tokens, TRUTH.loss(parameters, tokens))


def truth(loss: Numbers, half_way: float, steepness: float, chance: float) -> Numbers:
    return chance + (1 - chance) / (1 + np.exp(-steepness * (half_way - loss)))


def known(half_way: float, steepness: float, chance: float, items: float = 1e5, seed: int | None = None) -> TaskPoints:
    """Shares as the curve has them, or drawn."""
    ends = ladder()
    share_P = truth(ends.loss, half_way, steepness, chance)
    if seed is not None:
        share_P = np.random.default_rng(seed).binomial(int(items), share_P) / items
    return TaskPoints(ends, share_P, np.full(len(ends), items), chance)


@pytest.fixture
def few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    some = parametric.grid()[::150]
    monkeypatch.setattr(parametric, "grid", lambda: some)


@settings(max_examples=12, deadline=None)
@given(half_way=st.floats(2.6, 4.5), steepness=st.floats(0.8, 6.0), chance=st.floats(0.0, 0.5))
def test_without_noise_the_law_is_found_and_the_larger_are_predicted(half_way: float, steepness: float, chance: float):
    points = known(half_way, steepness, chance)
    by_flops = np.argsort(points.ends.flops)
    curve = fit_curve(points[by_flops[:12]], resamples=1, seed=0)
    assert (curve.half_way, curve.steepness) == pytest.approx((half_way, steepness), rel=1e-3)
    held = points[by_flops[12:]]
    assert curve.accuracy(held.ends.loss) == pytest.approx(held.right_P, abs=1e-4) and curve.dispersion == 1


def test_where_runs_lie_below_chance_the_curve_begins_at_nothing():
    """Chance is 0.5 for who knows which two symbols can be meant; these models begin without knowing that."""
    from_nothing = known(3.4, 2.5, 0.0)
    points = TaskPoints(from_nothing.ends, from_nothing.right_P, from_nothing.items_P, 0.5)
    found = predict_task(points[np.argsort(points.ends.flops)[4:14]], 0.5, resamples=10)
    assert found.curve.floor == 0 and found.curve.half_way == pytest.approx(3.4, rel=1e-3)
    assert (found.figures()["chance"], found.figures()["floor"]) == (0.5, 0.0)
    assert ("the sigmoid rises from", "0, as runs lie below chance") in task_tables(found)[0].rows
    assert [rule.at for rule in task_pictures(found)[0].drawing.panels[0].rules] == [0.5]
    level = TaskPoints(points.ends, np.full(len(points), 0.5), points.items_P, 0.5)
    assert fit_curve(level, resamples=1, seed=0).floor == 0.5, "both fit: chance is what is expected"


@settings(max_examples=20, deadline=None)
@given(a=st.floats(-5, 5), log_b=st.floats(-2, 3), chance=st.floats(0.0, 0.6), seed=st.integers(0, 99))
def test_the_gradient_is_that_of_the_misfit(a: float, log_b: float, chance: float, seed: int):
    random = np.random.default_rng(seed)
    misfit = Misfit(random.normal(size=5), random.uniform(10, 99, 5), random.uniform(size=(1, 5)), chance)
    step, rows, x_S2 = 1e-6, np.zeros(1, dtype=np.intp), np.array([[a, log_b]])
    _, gradient_S2 = misfit(x_S2, rows)
    for unknown in range(2):
        ahead, behind = x_S2.copy(), x_S2.copy()
        ahead[0, unknown] += step
        behind[0, unknown] -= step
        slope = (misfit(ahead, rows)[0] - misfit(behind, rows)[0])[0] / (2 * step)
        assert gradient_S2[0, unknown] == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("scatter", [0.0, 0.06])
def test_intervals_hold_what_comes_about_as_often_as_they_say(scatter: float):
    """Of 12 ladders, drawn by items alone, or with a scatter of the runs beyond that: about 95 % of the runs."""
    inside, held = 0, 0
    for seed in range(12):
        points = known(3.4, 2.5, 0.125, items=400.0, seed=seed)
        noise = scatter * np.random.default_rng([seed, 9]).standard_normal(len(points))
        noise *= 4 * points.right_P * (1 - points.right_P)  # as a binomial's: none at the ends
        points = TaskPoints(points.ends, np.clip(points.right_P + noise, 0, 1), points.items_P, points.chance)
        by_flops = np.argsort(points.ends.flops)
        found = forecast_by_loss(points[by_flops[:12]], points[by_flops[12:]])
        inside, held = inside + found[0], held + found[1]
    assert 0.88 <= inside / held <= 0.99


def forecast_by_loss(fitted: TaskPoints, held: TaskPoints) -> tuple[int, int]:
    from linnet.scaling.task_prediction import _forecast

    curve = fit_curve(fitted, resamples=60, seed=1)
    found = _forecast(curve, held, held.ends.loss, np.tile(held.ends.loss, (60, 1)), 1)
    return found.inside(held.right_P), len(held)


@pytest.mark.usefixtures("few_starts")
def test_larger_models_are_predicted_from_their_size_alone():
    points = known(4.0, 2.5, 0.125, items=2000.0, seed=3)
    found = predict_task(points, 0.5, resamples=40)
    assert len(found.fitted) == len(found.held) == 12
    assert found.fitted.ends.flops.max() <= found.held.ends.flops.min()
    assert not isinstance(found.by_size, str)
    assert found.by_size.loss_P == pytest.approx(found.held.ends.loss, rel=0.01)
    figures = found.figures()
    for way in ("by_loss", "by_size"):
        assert 4 * figures[way]["mean_absolute_error"] < figures["mean_absolute_error_of_no_progress"]
        assert figures[way]["inside_interval"] >= 10
    assert [one["right"] for one in figures["measured"]] == found.held.right_P.tolist()
    again = predict_task(points, 0.5, resamples=40)
    assert again.figures() == figures and predict_task(points, 0.5, 40, seed=1).figures() != figures
    summary, runs = task_tables(found)
    assert ("runs held out", "12") in summary.rows and len(runs.rows) == 12 and len(runs.columns) == 8
    (picture,) = task_pictures(found)
    over_loss, against = picture.drawing.panels
    assert [list(line.y) for line in over_loss.series if line.color == SOFT] == [found.fitted.right_P.tolist()]
    assert [line.name for line in against.series] == ["by loss", "by size and tokens"]


def test_a_ladder_of_one_amount_of_text_is_predicted_by_loss_alone():
    points = known(3.4, 2.5, 0.1)
    by_flops = np.arange(0, 24, 4)
    few = points[by_flops]
    even = TaskPoints(
        Points(few.ends.parameters, np.full(6, 1e6), few.ends.parameters * 6e6, few.ends.loss),
        few.right_P, few.items_P, few.chance,
    )  # fmt: skip
    found = predict_task(even, 0.3, resamples=10)
    assert isinstance(found.by_size, str) and "too few" in found.by_size
    assert "Not predicted by size and tokens: 4 runs are too few" in task_tables(found)[0].meaning
    assert len(task_pictures(found)[0].drawing.panels[1].series) == 1
    assert found.figures()["by_size"] == {"reason": found.by_size}


def test_too_few_runs_are_refused():
    points = known(3.4, 2.5, 0.1)
    with pytest.raises(UserError, match="of 5 runs 3 are left to fit and 2 to predict, at least 4 and 1 are needed"):
        predict_task(points[np.arange(5)], 0.5)
    same = points[np.array([0, 0, 1, 1, 1])]
    with pytest.raises(UserError, match="4 runs of 2 different losses are too few for a curve"):
        predict_task(same, 0.2)
