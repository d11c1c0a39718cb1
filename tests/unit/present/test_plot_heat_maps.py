"""Heat maps: real PNGs of a sane size, with colors that tell signs apart."""

import math
import struct

import numpy as np
import pytest

from linnet.present.plot import HeatMaps, color_scale
from linnet.present.style import png_of


def png(layers: dict[int, np.ndarray]) -> bytes:
    return png_of(HeatMaps(layers).figure())


def size(png: bytes) -> tuple[int, int]:
    """Width and height in dots."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", png[16:24])


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


def test_a_scale_of_both_signs_is_symmetric_about_zero():
    low, high, colors = color_scale(_random(3, 8, 8) + 0.5)
    assert low == -high and colors == "RdBu_r"


def test_a_few_large_elements_do_not_hide_the_rest():
    x = _random(2, 32, 32)
    x[0, 0, 0] = 1e9
    assert 2 < color_scale(x)[1] < 4
    assert color_scale(np.abs(x))[0] == np.abs(x).min()


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0, math.nan, math.inf])
def test_a_scale_is_never_empty(value: float):
    low, high, _ = color_scale(np.full((1, 2, 2), value))
    assert math.isfinite(low) and math.isfinite(high) and low < high


def test_values_that_are_not_finite_do_not_determine_the_scale():
    x = _random(1, 4, 4)
    with_some = x.copy()
    with_some[0, 0] = [math.nan, math.inf, -math.inf, 0.0]
    x[0, 0] = 0.0
    assert color_scale(with_some)[1] == pytest.approx(color_scale(x)[1], rel=0.5)
    png({0: with_some})


def test_heat_maps_of_one_head_and_of_a_large_model():
    assert all(100 < side < 1000 for side in size(png({0: _random(1, 4, 4)})))
    large = png({layer: _random(14, 64, 64) for layer in range(5)})
    width, height = size(large)
    assert width / 14 > 100, "a dot for each element at least"
    assert width < 2200 and height < 1200 and len(large) < 3_000_000


def test_every_element_of_a_head_is_in_its_picture():
    """A matrix of one element that differs has a dot of another color; without it there is none."""
    x = np.zeros((2, 8, 8))
    x[1, 3, 5] = 1.0
    assert png({0: x}) != png({0: np.zeros((2, 8, 8))})
    assert png({0: x}) != png({0: x[::-1]})
