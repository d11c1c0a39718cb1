"""Pictures that are told apart without color."""

import pytest
from example_models import NAMES, TEN_NAMES, compared

from drawn_text import boxes, faults
from linnet.experiments.measures import CONTEXTS
from linnet.experiments.report import chart, memory_picture
from linnet.present.plot import Axis, Panel, Series, line_style


def test_memory_is_weights_and_state_from_1k_to_1m_and_every_line_has_marks_of_its_own():
    (panel,) = memory_picture(compared().memory).drawing.panels
    assert [list(series.x) for series in panel.series] == [list(CONTEXTS)] * 3
    assert panel.series[0].y[0] == 100_000 + 8192 + 64 * 1024 and panel.series[2].y[-1] == 100_000 + 8192
    assert list(panel.x.places.values()) == ["1k", "4k", "16k", "64k", "256k", "1M"]
    assert len({series.style for series in panel.series}) == 3


@pytest.mark.parametrize("names", [NAMES, TEN_NAMES[:5], TEN_NAMES])
def test_long_names_of_many_models_do_not_overlap_each_other_or_the_lines(names: tuple[str, ...]):
    figure = memory_picture(compared(names).memory).drawing.figure()
    assert faults(figure) == []
    assert {name.replace("\n", "") for name, _ in boxes(figure)} >= set(names)
    (axes,) = figure.axes
    assert axes.bbox.width > 0.7 * figure.bbox.width and axes.bbox.height > 300


def test_lines_of_equal_memory_have_marks_at_different_lengths():
    (panel,) = memory_picture(compared(TEN_NAMES).memory).drawing.panels
    marked = [set(series.dots) for series in panel.series]
    assert all(marked) and len(set().union(*marked)) == sum(map(len, marked)) == len(CONTEXTS)


def test_twenty_four_lines_differ_without_color():
    assert len({line_style(number) for number in range(24)}) == 24


def test_few_lines_are_named_at_their_ends_and_many_in_a_legend():
    def names(count: int) -> str:
        return chart(Panel(Axis(), Axis(), [Series([1], [1], f"line {number}") for number in range(count)])).names

    assert (names(len(NAMES)), names(9)) == ("ends", "legend")
