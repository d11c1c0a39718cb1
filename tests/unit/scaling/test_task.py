"""Accuracies from tables and comparisons, and predictions of larger models on ladders with a known law."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_laws import TRUTH

from linnet.core.arrays import Numbers
from linnet.core.checksum import with_checksum
from linnet.core.errors import UserError
from linnet.present.style import SOFT
from linnet.scaling import parametric
from linnet.scaling.runs import Points
from linnet.scaling.task import forecast, predict_task, read_task_points
from linnet.scaling.task_curve import NegativeLogLikelihood, TaskPoints, fit_curve

HEAD = "parameters,tokens,loss,right,items,chance"


def write(path: Path, *rows: str, head: str = HEAD) -> Path:
    path.write_text("\n".join([head, *rows]))
    return path


def test_a_table_has_a_run_in_each_row(tmp_path: Path):
    found = read_task_points([write(tmp_path / "a.csv", "10,20,3.5,0,100,0.25", "30,40,2.5,1,50,0.25")])
    assert found.right_P.tolist() == [0.0, 1.0] and found.items_P.tolist() == [100, 50] and found.chance == 0.25
    assert found.ends.flops.tolist() == [6 * 10 * 20, 6 * 30 * 40] and found.ends.loss.tolist() == [3.5, 2.5]
    flops = write(tmp_path / "b.csv", "10,1200,3,0.5,9,0", head=HEAD.replace("tokens", "training_flops"))
    by_flops = read_task_points([flops])
    assert by_flops.ends.tokens.tolist() == [20] and by_flops.chance == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["10,20,3,1.5,9,0.1"], "a.csv, line 2: right: 1.5: expected a share from 0 to 1"),
        (["10,20,3,0.5,9,0.1", "10,20,3,0.5,9,0.2"], "chance: 0.1, 0.2: expected one, that of a single task"),
        (["10,20,3,none,9,0.1"], "a.csv, line 2: right: none"),
        (["10,20,3,1,9,1"], "chance: 1: expected less"),
        ([], "chance: none: expected one"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, rows: list[str], message: str):
    with pytest.raises(UserError) as refused:
        read_task_points([write(tmp_path / "a.csv", *rows)])
    assert message in str(refused.value)


def comparison(folder: Path, **ability: Any) -> Path:
    about = {"parameters": 1000, "tokens": 500, "training_flops": 4e6}
    measured = {"ability": {**ability, "items": 200}}
    rows = [
        {"run": "small", "seed": n, "measure": measure, "values": values}
        for n in (0, 1)
        for measure, values in (("training", about), ("likelihood", {"nats_per_token": 1.5 + n}), ("ability", measured))
    ]
    rows.append({"run": "large", "seed": 0, "measure": "training", "status": "diverged", "values": {"step": 3}})
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(with_checksum(row))}\n" for row in rows))
    return folder


def test_every_seed_of_a_comparison_is_a_point(tmp_path: Path):
    measured = {"right": 0.25, "chance": 0.05, "symbols_right": 0.5, "symbols_chance": 0.2}
    folder = comparison(tmp_path / "a", **measured)
    found = read_task_points([folder])
    assert found.ends.loss.tolist() == [1.5, 2.5] and found.right_P.tolist() == [0.25] * 2 and found.chance == 0.05
    assert (found.ends.parameters[0], found.ends.tokens[0], found.ends.flops[0], found.items_P[0]) == (
        1000, 500, 4e6, 200
    )  # fmt: skip
    assert read_task_points([folder], "symbols").chance == 0.2
    with pytest.raises(UserError, match="small: has no accuracy final; expected one of whole, symbols"):
        read_task_points([folder], "final")
    with pytest.raises(UserError, match="has no accuracy whole; expected a comparison on an ability"):
        read_task_points([comparison(tmp_path / "b")])


def test_other_sources_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no such file or folder; expected a CSV file, or folders of comparisons"):
        read_task_points([tmp_path / "none"])
    with pytest.raises(UserError, match=r"no results.jsonl; expected the folder of a finished `linnet compare`"):
        read_task_points([tmp_path])
    table = write(tmp_path / "a.csv", "10,20,3,0.5,9,0.1")
    with pytest.raises(UserError, match="one CSV file, or folders of comparisons; not several and not both"):
        read_task_points([table, table])


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


def test_the_curve_rises_from_zero_if_runs_lie_below_chance():
    """Chance is 0.5 for a model that knows the two possible symbols; these models begin without knowing them."""
    from_nothing = known(3.4, 2.5, 0.0)
    points = TaskPoints(from_nothing.ends, from_nothing.right_P, from_nothing.items_P, 0.5)
    found = predict_task(points[np.argsort(points.ends.flops)[4:14]], 0.5, resamples=10)
    assert found.curve.floor == 0 and found.curve.half_way == pytest.approx(3.4, rel=1e-3)
    assert (found.to_dict()["chance"], found.to_dict()["floor"]) == (0.5, 0.0)
    assert ("the sigmoid rises from", "0, as runs lie below chance") in found.tables()[0].rows
    assert [rule.at for rule in found.plots()[0].drawing.panels[0].rules] == [0.5]
    level = TaskPoints(points.ends, np.full(len(points), 0.5), points.items_P, 0.5)
    assert fit_curve(level, resamples=1, seed=0).floor == 0.5, "both fit: chance is what is expected"


@settings(max_examples=20, deadline=None)
@given(a=st.floats(-5, 5), log_b=st.floats(-2, 3), chance=st.floats(0.0, 0.6), seed=st.integers(0, 99))
def test_the_gradient_is_that_of_the_likelihood(a: float, log_b: float, chance: float, seed: int):
    random = np.random.default_rng(seed)
    objective = NegativeLogLikelihood(
        random.normal(size=5), random.uniform(10, 99, 5), random.uniform(size=(1, 5)), chance
    )
    step, rows, x_S2 = 1e-6, np.zeros(1, dtype=np.intp), np.array([[a, log_b]])
    _, gradient_S2 = objective(x_S2, rows)
    for unknown in range(2):
        ahead, behind = x_S2.copy(), x_S2.copy()
        ahead[0, unknown] += step
        behind[0, unknown] -= step
        slope = (objective(ahead, rows)[0] - objective(behind, rows)[0])[0] / (2 * step)
        assert gradient_S2[0, unknown] == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("scatter", [0.0, 0.06])
def test_intervals_contain_the_results_as_often_as_they_should(scatter: float):
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


def along_loss(right_P: list[float]) -> TaskPoints:
    """Eight runs of 100 items each, whose losses fall evenly with their size."""
    sizes, loss_P = np.geomspace(1e6, 1e8, 8), np.linspace(4, 2, 8)
    return TaskPoints(Points(sizes, 20 * sizes, 120 * sizes**2, loss_P), np.array(right_P), np.full(8, 100.0), 0.0)


def test_runs_without_a_right_item_leave_room_that_grows_with_the_distance():
    """Clopper and Pearson: of 0 right items of 100 the share is below 3.6 % with 95 % confidence."""
    found = predict_task(along_loss([0.0] * 4 + [0.0, 0.03, 0.1, 0.2]), 0.5, resamples=40)
    assert list(found.by_loss.low_P) == [0] * 4 and found.by_loss.inside == 4
    assert found.by_loss.high_P[0] > 0.036 and (np.diff(found.by_loss.high_P) > 0).all()
    rows = dict(row[:2] for row in found.tables()[0].rows)
    assert rows["loss half-way to 1"] == rows["steepness, per nat"] == "not determined"
    near = forecast(found.curve, found.fitted, found.fitted.ends.loss, np.tile(found.fitted.ends.loss, (40, 1)), 0)
    assert near.high_P == pytest.approx(np.full(4, 1 - 0.025 ** (1 / 100)), abs=0.08)


@pytest.mark.parametrize("right_P", [[1.0] * 8, [0.0] * 2 + [1.0] * 6])
def test_runs_without_a_wrong_item_do_not_promise_that_there_is_none(right_P: list[float]):
    found = predict_task(along_loss(right_P), 0.5, resamples=40)
    assert found.by_loss.low_P.max() <= 0.025 ** (1 / 100) < found.by_loss.high_P.min() == 1
    assert found.by_loss.inside == 4


def forecast_by_loss(fitted: TaskPoints, held: TaskPoints) -> tuple[int, int]:
    curve = fit_curve(fitted, resamples=60, seed=1)
    found = forecast(curve, held, held.ends.loss, np.tile(held.ends.loss, (60, 1)), 1)
    return found.inside, len(held)


@pytest.mark.usefixtures("few_starts")
def test_larger_models_are_predicted_from_their_size_alone():
    points = known(4.0, 2.5, 0.125, items=2000.0, seed=3)
    found = predict_task(points, 0.5, resamples=40)
    assert len(found.fitted) == len(found.held) == 12
    assert found.fitted.ends.flops.max() <= found.held.ends.flops.min()
    assert not isinstance(found.by_size, str)
    assert found.by_size.loss_P == pytest.approx(found.held.ends.loss, rel=0.01)
    figures = found.to_dict()
    for way in ("by_loss", "by_size"):
        assert 4 * figures[way]["mean_absolute_error"] < figures["mean_absolute_error_of_no_progress"]
        assert figures[way]["inside_interval"] >= 10
    assert [one["right"] for one in figures["measured"]] == found.held.right_P.tolist()
    again = predict_task(points, 0.5, resamples=40)
    assert again.to_dict() == figures and predict_task(points, 0.5, 40, seed=1).to_dict() != figures
    summary, runs = found.tables()
    assert ("runs held out", "12") in summary.rows and len(runs.rows) == 12 and len(runs.columns) == 8
    (picture,) = found.plots()
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
    assert "Not predicted by size and tokens: 4 runs are too few" in found.tables()[0].meaning
    assert len(found.plots()[0].drawing.panels[1].series) == 1
    assert found.to_dict()["by_size"] == {"reason": found.by_size}


def test_too_few_runs_are_refused():
    points = known(3.4, 2.5, 0.1)
    with pytest.raises(UserError, match="of 5 runs 3 are left to fit and 2 to predict, at least 4 and 1 are needed"):
        predict_task(points[np.arange(5)], 0.5)
    same = points[np.array([0, 0, 1, 1, 1])]
    with pytest.raises(UserError, match="4 runs of 2 different losses are too few for a curve"):
        predict_task(same, 0.2)
