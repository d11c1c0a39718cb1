"""Pictures of lifetimes: real PNGs that show what they should, for lives of any length."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.inspection.lifetimes.pictures import (
    NOTHING,
    bar_edges,
    draw_curves,
    histogram,
    layer_points,
    relevance_curves,
    verbatim,
)
from linnet.inspection.lifetimes.text import LayerLifetimes, TextLifetimes
from linnet.inspection.lifetimes.vocabulary import Curve, Curves


def size(png: bytes) -> tuple[int, int]:
    """Width and height in dots."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", png[16:24])


@settings(max_examples=50)
@given(st.integers(1, 10**6), st.integers(0, 10**9))
def test_bars_cover_all_whole_lifetimes_and_are_steps_wide(shortest: int, more: int):
    edges = bar_edges(shortest, shortest + more)
    assert edges[0] < shortest and edges[-1] > shortest + more
    assert (edges % 1 == 0.5).all() and (np.diff(edges) >= 1).all()
    assert len(edges) < 90


@pytest.mark.parametrize("lives", [[1.0], [5.0, 6.0, 151.0], [1.0, 1e30], [0.0, math.inf], []])
def test_histograms_of_any_lives(lives: list[float]):
    assert size(histogram(np.array(lives))) == (990, 462)


def test_every_entry_counts():
    assert histogram(np.array([3.0, 4.0, 9.0])) != histogram(np.array([3.0, 4.0, 4.0, 9.0]))
    assert histogram(np.array([3.0, 9.0])) == histogram(np.array([3.0, 0.0, 9.0, math.inf]))


def test_curves():
    ages = [0, 1, 2, 10]
    one = Curve(1, "'a'", [1.0, 0.1, 0.01, 1e-10])
    both = relevance_curves(Curves(ages, [one, Curve(2, r"'$x^$ \\'", [0.0] * 4)]), 1e-8)
    assert size(both) == (990, 528)
    alone = Curves(ages, [one])
    assert relevance_curves(alone, 1e-8) != relevance_curves(alone, 1e-4)
    many = Curves(ages, [Curve(n, f"'{n}'", [2.0**-n, 0.1, 0.01, 0.0]) for n in range(45)])
    assert size(relevance_curves(many, 1e-8))[0] == 990


def test_a_line_for_each_entry():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw_curves(axes, Curves([0, 1, 20], [Curve(1, "'a'", [1.0, 0.1, 0.0]), Curve(2, "'b'", [2.0, 1.0, 0.5])]), 1e-3)
    first, second, threshold = axes.lines
    assert (first.get_label(), second.get_label()) == ("'a'", "'b'")
    assert list(first.get_xdata()) == [0, 1, 20] and list(first.get_ydata()) == [1.0, 0.1, NOTHING]
    assert set(threshold.get_ydata()) == {1e-3} and threshold.get_label() == "threshold 1e-3"
    assert first.get_color() != second.get_color() and first.get_markevery() == [0, 1]


def test_names_are_not_read_as_formulas():
    assert verbatim("'$a'") == r"'\$a'"


def test_layers_of_any_lives():
    lives = {0: [3.0, 40.0], 2: [math.inf, math.inf], 3: [0.0, 0.0]}
    layers = [LayerLifetimes(n, torch.tensor([x]).double(), torch.tensor([x]).double()) for n, x in lives.items()]
    assert size(layer_points(TextLifetimes(1, 2, layers)))[1] == 462
    assert layer_points(TextLifetimes(1, 2, layers)) != layer_points(TextLifetimes(1, 2, layers[:2]))
    assert size(layer_points(TextLifetimes(1, 2, layers[2:])))[1] == 462
