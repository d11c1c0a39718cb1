"""The pictures of inspections: what is drawn, from what was found."""

import math

import numpy as np
import pytest
import torch

from linnet.inspection.operator_figures import operator_figures
from linnet.inspection.pictures import moved_logits, operator_pictures, singular_values, variation_points
from linnet.present.style import png_of


def test_there_is_a_picture_of_each_output_with_its_layers():
    random = np.random.default_rng(0)
    layers = [{name: torch.from_numpy(random.normal(size=(2, 4, 4))) for name in ("A_LM", "G")} for _ in range(3)]
    found = operator_pictures(operator_figures(layers), layers)
    assert [picture.name for picture in found] == ["A_LM", "G", "singular_values"]
    assert found[0].title == "A_LM of every head, 4 x 4" and list(found[0].drawing.layers) == [0, 1, 2]
    assert np.array_equal(found[1].drawing.layers[2], layers[2]["G"].numpy())


def test_singular_values_have_a_panel_for_a_layer_and_a_line_for_a_head():
    plot = singular_values({0: [[3.0, 1.0, 0.0]], 2: [[1.0, math.nan, 1e-9], [2.0, 1.0, 0.5]]})
    assert [panel.title for panel in plot.panels] == ["layer 0", "layer 2"]
    first, second = (panel.series for panel in plot.panels)
    assert list(first[0].x) == [1, 2, 3] and list(first[0].y)[:2] == [3.0, 1.0] and math.isnan(first[0].y[2])
    assert len(second) == 2 and second[0].color != second[1].color
    png_of(singular_values({layer: [[2.0, 1.0]] * 3 for layer in range(4)}).figure())


def test_moves_are_solid_in_the_whole_pass_and_dotted_with_a_frozen_operator():
    plot = moved_logits({2: [0.0, 0.1], 3: [0.1] * 3}, {2: [0.0] * 2, 3: [0.0] * 3})
    (panel,) = plot.panels
    assert [(one.style, one.color, list(one.y)) for one in panel.series[:4]] == [
        ("-", 0, [0.0, 0.1]),
        (":", 0, [0.0, 0.0]),
        ("-", 1, [0.1] * 3),
        (":", 1, [0.0] * 3),
    ]
    assert [(rule.at, rule.upright) for rule in panel.rules] == [(2, True), (3, True)]
    png_of(plot.figure())


@pytest.mark.parametrize("least", [1e-9, 0.0, math.nan])
def test_what_does_not_vary_has_no_point(least: float):
    (panel,) = variation_points({"A": {0: 0.1, 1: least}, "G": {0: least, 1: 2e-5}}).panels
    assert [one.name for one in panel.series] == ["A", "G"] and panel.x.places == {0: "0", 1: "1"}
    assert panel.series[0].y[0] == 0.1
    assert panel.series[0].y[1] == least or math.isnan(panel.series[0].y[1])
    png_of(variation_points({"A": {0: least}, "G": {0: 0.0}}).figure())
