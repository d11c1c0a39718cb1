import io
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from linnet.evaluation.likelihood import Evaluation, Likelihood
from linnet.experiments.comparison.figures import Breakdown, ComparedFigures, CurvePoint, Outcome, Spread
from linnet.experiments.comparison.plot import draw, picture


def outcome(seed: int, nats: float, whole: float | None = None) -> Outcome:
    causal = Likelihood(nats, tokens=100, bytes=400, correct=10 * seed)
    evaluation = Evaluation(causal, None if whole is None else Likelihood(whole, 100, 400, 50))
    return Outcome(seed, evaluation.figures(), [CurvePoint(5, nats, 0.1 * seed), CurvePoint(10, nats / 2, 0.2 * seed)])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_the_spread_is_the_sample_standard_deviation(values: list[float]):
    spread = Spread.of(values)
    mean = sum(values) / len(values)
    assert spread.mean == pytest.approx(mean, abs=1e-6)
    assert (spread.lowest, spread.highest) == (min(values), max(values))
    if len(values) == 1:
        assert spread.deviation is None
    else:
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        assert spread.deviation == pytest.approx(math.sqrt(variance), abs=1e-4, rel=1e-6)


def test_figures_are_means_over_the_seeds():
    figures = ComparedFigures("one", 12, 34, [outcome(1, 400.0, 380.0), outcome(3, 200.0, 140.0)])
    bit = 1 / math.log(2)
    assert figures.bits_per_byte.mean == pytest.approx(300 * bit / 400)
    assert figures.accuracy.mean == pytest.approx(0.2)
    assert figures.leak is not None
    assert figures.leak.mean == pytest.approx(40 * bit / 400)
    assert [(step, nats.mean, accuracy.highest) for step, nats, accuracy in figures.curve] == [
        (5, 300, pytest.approx(0.3)),
        (10, 150, pytest.approx(0.6)),
    ]
    plain = figures.plain()
    assert [each["seed"] for each in plain["seeds"]] == [1, 3]
    assert plain["leak"]["mean"] == figures.leak.mean


def test_a_causal_model_has_no_leak():
    assert ComparedFigures("one", 1, 1, [outcome(1, 400.0)]).leak is None


def test_the_picture_has_a_line_of_each_run_in_its_colour(tmp_path: Path):
    figures = [
        ComparedFigures(name, 1, 1, [outcome(1, 400.0 * k), outcome(2, 300.0)]) for k, name in enumerate("ab", 1)
    ]
    draw(figures, tmp_path / "curves.png", "title")
    colours = {colour for _, colour in Image.open(tmp_path / "curves.png").convert("RGB").getcolors(1 << 20)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours


def seen_once(nats: float, accuracy: float) -> Outcome:
    return Outcome(1, outcome(1, nats).evaluation, [CurvePoint(60, nats, accuracy)])


def test_a_run_that_was_evaluated_once_is_seen():
    figures = [
        ComparedFigures("a", 1, 1, [seen_once(6.0, 0.06), seen_once(6.2, 0.061)]),
        ComparedFigures("b", 1, 1, [seen_once(6.1, 0.062)]),
    ]
    drawn = picture(figures, "title")
    assert [[line.get_marker() for line in axes.lines] for axes in drawn.axes] == [[".", "."], ["o", "o"]]
    drawn.savefig(buffer := io.BytesIO(), format="png")
    colours = {colour for _, colour in Image.open(buffer).convert("RGB").getcolors(1 << 20)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours


@pytest.mark.parametrize(("lowest", "highest"), [(0.06, 0.062), (0.0612, 0.0613), (0.1, 0.7), (0.05, 0.09)])
def test_ticks_of_accuracy_are_told_apart(lowest: float, highest: float):
    once = [ComparedFigures(name, 1, 1, [seen_once(6.0, at)]) for name, at in (("a", lowest), ("b", highest))]
    axes = picture(once, "title").axes[1]
    labels = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks())
    assert len(set(labels)) == len(labels) > 2
    assert all(label.endswith("%") for label in labels)


def broken(run: str, seed: int, step: int | None = 7) -> Breakdown:
    curve = [] if step is None else [CurvePoint(5, 3e9, 0.1)]
    return Breakdown(run, seed, step, "loss nan" if step else "no operators", curve)


def test_a_seed_that_came_to_nothing_has_no_part_in_the_means():
    whole = ComparedFigures("a", 1, 1, [outcome(1, 400.0), outcome(2, 300.0)])
    figures = ComparedFigures("a", 1, 1, whole.outcomes, [broken("a", 3), broken("a", 4, step=None)])
    assert (figures.bits_per_byte, figures.accuracy, figures.curve) == (
        whole.bits_per_byte,
        whole.accuracy,
        whole.curve,
    )
    assert (whole.seeds, figures.seeds, figures.fate) == ("2", "2 of 4", "diverged or not trained")
    assert str(figures.broken_down[0]) == "a, seed 3: diverged at step 7: loss nan"
    assert str(figures.broken_down[1]) == "a, seed 4: not trained: no operators"


def test_without_any_seed_there_are_no_figures():
    plain = ComparedFigures("a", None, None, [], [broken("a", 1)]).plain()
    assert plain == {
        "name": "a",
        "parameters": None,
        "tokens": None,
        "training_flops": None,
        "bits_per_byte": None,
        "accuracy": None,
        "leak": None,
        "tokens_per_s": None,
        "seeds": [],
    }


def test_the_picture_tells_where_a_run_diverged():
    figures = [
        ComparedFigures("a", 1, 1, [outcome(1, 400.0)], [broken("a", 2)]),
        ComparedFigures("b", None, None, [], [broken("b", 1, 6), broken("b", 2, 9)]),
        ComparedFigures("c", None, None, [], [broken("c", 1, None)]),
        ComparedFigures("d", 1, 1, [outcome(1, 400.0)]),
    ]
    loss = picture(figures, "title").axes[0]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == [
        "a",
        "d",
        "a: diverged with 1 of 2 seeds",
        "b: diverged with 2 of 2 seeds",
        "c: not trained with 1 of 1 seeds",
    ]
    crosses = {line.get_color(): list(line.get_xdata()) for line in loss.lines if line.get_marker() == "x"}
    assert crosses == {"C0": [7], "C1": [6, 9], "C2": []}
    dotted = [(line.get_color(), list(line.get_ydata())) for line in loss.lines if line.get_linestyle() == ":"]
    assert dotted == [("C0", [3e9]), ("C1", [3e9]), ("C1", [3e9]), ("C2", [])]
    assert loss.get_ylim()[1] < 500, "what runs away does not flatten the others"
    alone = picture(figures[1:3], "title").axes[0]
    assert alone.get_ylim()[0] <= 3e9 <= alone.get_ylim()[1]
