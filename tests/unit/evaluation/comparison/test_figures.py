import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from linnet.evaluation.comparison.figures import ComparedFigures, CurvePoint, Outcome, Spread
from linnet.evaluation.comparison.plot import draw
from linnet.evaluation.likelihood import Evaluation, Likelihood


def outcome(seed: int, nats: float, whole: float | None = None) -> Outcome:
    causal = Likelihood(nats, tokens=100, bytes=400, correct=10 * seed)
    evaluation = Evaluation(causal, None if whole is None else Likelihood(whole, 100, 400, 50))
    return Outcome(seed, evaluation, [CurvePoint(5, nats, 0.1 * seed), CurvePoint(10, nats / 2, 0.2 * seed)])


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
