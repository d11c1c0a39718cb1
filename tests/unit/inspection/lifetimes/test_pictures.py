"""Pictures of lifetimes: what is drawn, for lives of any length."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.inspection.lifetimes.pictures import NOTHING, bar_edges, histogram, layer_points, relevance_curves
from linnet.inspection.lifetimes.text import LayerLifetimes, TextLifetimes
from linnet.inspection.lifetimes.vocabulary import Curve, Curves
from linnet.present.style import png_of


@settings(max_examples=50)
@given(st.integers(1, 10**6), st.integers(0, 10**9))
def test_bars_cover_all_whole_lifetimes_and_are_steps_wide(shortest: int, more: int):
    edges = bar_edges(shortest, shortest + more)
    assert edges[0] < shortest and edges[-1] > shortest + more
    assert (edges % 1 == 0.5).all() and (np.diff(edges) >= 1).all()
    assert len(edges) < 90


@pytest.mark.parametrize("lives", [[1.0], [5.0, 6.0, 151.0], [1.0, 1e30], [0.0, math.inf], []])
def test_histograms_of_any_lives(lives: list[float]):
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
    assert list(first.x) == [0, 1, 20] and list(first.y) == [1.0, 0.1, NOTHING] and first.dots == [0, 1]
    assert (panel.rules[0].at, panel.rules[0].name) == (1e-3, "threshold 1e-3")
    assert panel.y.low == pytest.approx(1e-5) and panel.y.high >= 2.0


def test_many_entries_are_told_by_their_lines_too():
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
