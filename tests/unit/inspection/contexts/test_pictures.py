"""Pictures of contexts: real PNGs that show every number, also where there is little to show."""

import math
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.inspection.contexts.grid import contexts
from linnet.inspection.contexts.measure import Comparison, LayerContext, Outcome
from linnet.inspection.contexts.pictures import apart, contexts_pictures, layers_picture, quality_picture
from linnet.layers.retention import FULL, Retention


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", png[16:24])


def comparison(compared: list[Retention], layers: int = 2, worse: float = 0.01, error: float | None = 0.001):
    outcomes = [
        Outcome(
            context,
            2.0 + worse * (context != FULL),
            worse * (context != FULL),
            error,
            1e5 / (1 + number),
            [LayerContext(2 * layer, 100 / (1 + number), 120) for layer in range(layers)],
        )
        for number, context in enumerate(compared)
    ]
    return Comparison(8, 1000, 900, 128, 0.1, outcomes)


def test_both_pictures():
    found = contexts_pictures(comparison(contexts()))
    assert [picture.name for picture in found] == ["quality_against_memory", "contexts_of_layers"]
    for picture in found:
        assert all(400 < side < 1500 for side in size(picture.png)) and picture.caption


def test_a_panel_for_each_line_of_a_grid():
    few, many = (size(layers_picture(comparison(contexts([1, 2, 3, 4][:k], [0.1, 1.0])))) for k in (2, 4))
    assert many[0] > few[0] and many[1] > few[1]


@pytest.mark.parametrize("layers", [1, 32])
@pytest.mark.parametrize("compared", [[FULL], contexts([8]), contexts([8], [0.1])])
def test_any_number_of_settings_and_layers(compared, layers):
    for picture in contexts_pictures(comparison(compared, layers, error=None)):
        assert size(picture.png)[0] > 300


def test_what_is_worse_better_or_not_a_number_is_another_picture():
    pictures = [quality_picture(comparison(contexts([8, 16]), worse=worse)) for worse in (0.01, 0.02, -0.5, math.nan)]
    assert len(set(pictures)) == 4
    assert layers_picture(comparison(contexts([8]))) != layers_picture(comparison(contexts([8]), layers=3))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.2))
def test_labels_keep_their_distance_and_order(values: list[float], gap: float):
    ascending = sorted(values)
    found = apart(ascending, gap)
    assert all(later - earlier >= gap * (1 - 1e-9) for earlier, later in pairwise(found))
    assert sum(found) == pytest.approx(sum(ascending), abs=1e-9)
    if all(later - earlier >= gap for earlier, later in pairwise(ascending)):
        assert found == pytest.approx(ascending)
