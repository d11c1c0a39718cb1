"""Lifetimes as tables and pictures."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.layers.mixers.ted.inspect import (
    MIN_DRAWN,
    Lifetimes,
    bar_edges,
    histogram,
    layer_points,
    relevance_curves,
)
from linnet.layers.mixers.ted.lifetimes import (
    Curve,
    Curves,
    LayerLifetimes,
    TextLifetimes,
    VocabularyLifetimes,
    follow,
    json_steps,
    steps,
    whole_steps,
)
from linnet.ops.decay.eviction import half_lives, lifetimes
from linnet.present.style import png_of


def _vocabulary(rates: list[float]) -> VocabularyLifetimes:
    rates_V1 = torch.tensor(rates, dtype=torch.float64)[:, None]
    norms_V1 = torch.ones_like(rates_V1)
    ends, halves = lifetimes(norms_V1, rates_V1, 1e-8), half_lives(norms_V1, rates_V1)
    return VocabularyLifetimes(1e-8, [f"'{n}'" for n in range(len(rates))], norms_V1, rates_V1, ends, halves)


@pytest.mark.parametrize(
    ("value", "whole", "half", "json"),
    [
        (0.0, "0", "0", 0),
        (0.2310, "0", "0.231", 0),
        (12.0, "12", "12.0", 12),
        (1234.0, "1,234", "1,234", 1234),
        (3.21e12, "3.21e+12", "3.21e+12", 3_210_000_000_000),
        (4e46, "4e+46", "4e+46", 4e46),
        (math.inf, "endless", "endless", None),
    ],
)
def test_steps(value: float, whole: str, half: str, json: object):
    assert (whole_steps(value), steps(value), json_steps(value)) == (whole, half, json)
    assert isinstance(json_steps(value), type(json)), "not so many digits that nobody knows"


def test_a_small_vocabulary_is_shown_whole():
    vocabulary = _vocabulary([1.0, 0.0, 0.001, 20.0])
    table, curves = Lifetimes("m", 1e-8, None, vocabulary, follow(vocabulary, [2, 3]), None, entries=2).tables()
    assert table.rows == [
        ("'1'", "1", "endless", "endless", "1.00"),
        ("'2'", "2", "18,421", "693", "1.00"),
        ("'0'", "0", "19", "0.693", "1.00"),
        ("'3'", "3", "1", "0.0347", "1.00"),
    ]
    assert "below 1e-8" in table.meaning
    assert curves.columns == (
        "entry",
        "lifetime",
        "after 0",
        "after 1",
        "after 10",
        "after 100",
        "after 1 k",
        "after 10 k",
    )
    assert curves.rows[0] == ("'2'", "18,421", "1", "0.999", "0.99", "0.905", "0.368", "4.54e-05")
    assert curves.rows[1][:5] == ("'3'", "1", "1", "2.06e-09", "1.38e-87")


def test_a_large_vocabulary_shows_the_longest_and_shortest_lifetimes():
    vocabulary = _vocabulary([(n + 1) / 100 for n in range(100)])
    longest, shortest = Lifetimes("m", 1e-8, None, vocabulary, None, None, entries=3).tables()
    assert [row[0] for row in longest.rows] == ["'0'", "'1'", "'2'"]
    assert [row[0] for row in shortest.rows] == ["'99'", "'98'", "'97'"], "the shortest first"
    assert "all 100 entries the median is 37, the 90th percentile 168" in longest.meaning


def test_layers():
    lives = torch.tensor([[0.0, 9.0, 2.0, math.inf]], dtype=torch.float64)
    text = TextLifetimes(1, 4, [LayerLifetimes(2, lives, lives / 7)])
    (table,) = Lifetimes("m", 1e-4, "the reason", None, None, text).tables()
    assert table.rows == [("layer 2", "2", "endless", "0.286", "25.0%", "50.0%", "1.5")]
    assert "1 window of 4 tokens" in table.meaning and "below 1e-4" in table.meaning
    assert "; 2.5 if it drops nothing" in table.meaning


@settings(max_examples=50)
@given(st.integers(1, 10**6), st.integers(0, 10**9))
def test_bars_cover_all_whole_lifetimes_and_are_steps_wide(shortest: int, more: int):
    edges = bar_edges(shortest, shortest + more)
    assert edges[0] < shortest and edges[-1] > shortest + more
    assert (edges % 1 == 0.5).all() and (np.diff(edges) >= 1).all()
    assert len(edges) < 90


@pytest.mark.parametrize("lives", [[1.0], [5.0, 6.0, 151.0], [1.0, 1e30], [0.0, math.inf], []])
def test_histograms_of_any_lifetimes_can_be_drawn(lives: list[float]):
    assert png_of(histogram(np.array(lives)).figure()).startswith(b"\x89PNG")


def test_every_entry_counts():
    (bars,) = histogram(np.array([3.0, 4.0, 4.0, 9.0, 0.0, math.inf])).panels[0].series
    areas = np.array(bars.y) * np.diff(np.log2(bars.x))
    assert areas.sum() == pytest.approx(4) and areas[0] == pytest.approx(1)
    assert bars.x[0] == 2.5 and bars.x[-1] > 9


def test_a_line_for_each_entry_from_dark_to_light():
    curves = Curves([0, 1, 20], [Curve(1, "'a'", [1.0, 0.1, 0.0]), Curve(2, "'b'", [2.0, 1.0, 0.5])])
    (panel,) = relevance_curves(curves, 1e-3).panels
    first, second = panel.series
    assert (first.name, second.name) == ("'a'", "'b'") and first.color < second.color
    assert list(first.x) == [0, 1, 20] and list(first.y) == [1.0, 0.1, MIN_DRAWN] and first.dots == [0, 1]
    assert (panel.rules[0].at, panel.rules[0].name) == (1e-3, "threshold 1e-3")
    assert panel.y.low == pytest.approx(1e-5) and panel.y.high >= 2.0


def test_many_entries_have_different_line_styles():
    many = Curves([0, 1, 2, 10], [Curve(n, f"'{n}'", [2.0**-n, 0.1, 0.01, 0.0]) for n in range(45)])
    plot = relevance_curves(many, 1e-8)
    assert {one.style for one in plot.panels[0].series} == {"o-", "o:"}
    assert png_of(plot.figure()).startswith(b"\x89PNG")


def test_a_layer_whose_lives_are_endless_or_nothing_is_a_gap():
    lives = {0: [3.0, 40.0], 2: [math.inf, math.inf], 3: [0.0, 0.0]}
    layers = [LayerLifetimes(n, torch.tensor([x]).double(), torch.tensor([x]).double()) for n, x in lives.items()]
    plot = layer_points(TextLifetimes(1, 2, layers))
    upper, median, context = plot.panels[0].series
    assert [one.name for one in (upper, median, context)] == ["90th percentile", "median", "average context"]
    assert list(upper.x) == [0, 1, 2, 3] and upper.y[0] == 40 and all(map(math.isnan, upper.y[1:]))
    assert plot.panels[0].rules[0].at == 2
    png_of(plot.figure())
    png_of(layer_points(TextLifetimes(1, 2, layers[2:])).figure())
