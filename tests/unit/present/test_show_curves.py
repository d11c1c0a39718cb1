"""Curves in a terminal."""

import math

from hypothesis import given
from hypothesis import strategies as st

from linnet.present.show import EMPTY_CHARACTER, TerminalCurve, curve_lines


def dots(lines: list[str]) -> list[str]:
    """The lines between title and x axis, without what stands before them."""
    return [line.partition("┤")[2] for line in lines[1:-1]]


def test_a_straight_line_goes_from_corner_to_corner():
    lines = curve_lines("title", [TerminalCurve("one", [0, 10], [0.0, 2.0])], 24, 4)
    assert lines[0] == "title: one" and lines[1].strip().startswith("2┤")
    assert "0┤" in lines[4] and lines[-1].strip().startswith("└0") and lines[-1].endswith("10")
    drawn = dots(lines)
    assert drawn[0].startswith(" ") and not drawn[-1].startswith(" ")
    assert [len(line) for line in drawn] == sorted((len(line) for line in drawn), reverse=True)


def test_a_logarithmic_axis_has_equal_ratios_equally_far_apart():
    curve = TerminalCurve("", [0, 1, 2], [1.0, 10.0, 100.0])
    assert dots(curve_lines("t", [curve], 40, 6, logarithmic=True)) == dots(
        curve_lines("t", [TerminalCurve("", [0, 1, 2], [0.0, 1.0, 2.0])], 38, 6)
    )


def test_only_styled_output_has_colors():
    curves = [TerminalCurve("a", [0, 1], [0.0, 1.0]), TerminalCurve("b", [0, 1], [1.0, 0.0])]
    assert "\x1b" not in "".join(curve_lines("t", curves, 40, 5))
    styled = "".join(curve_lines("t", curves, 40, 5, styled=True))
    assert all(mark in styled for mark in ("\x1b[34m", "\x1b[33m", "\x1b[0m"))


def test_a_plot_without_points_says_so():
    assert curve_lines("loss", [TerminalCurve("a", [], []), TerminalCurve("b", [1], [math.nan])], 40, 5) == [
        "loss: nothing yet"
    ]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e30, 1e30)), min_size=1, max_size=60),
    st.integers(16, 200),
    st.integers(1, 20),
    st.booleans(),
)
def test_any_points_fit_the_room(points, width, height, logarithmic):
    points.sort()
    lines = curve_lines("t", [TerminalCurve("", *map(list, zip(*points, strict=True)))], width, height, logarithmic)
    assert len(lines) == max(3, height) + 2
    assert max(map(len, lines[1:])) <= max(width, 40)
    assert sum(ord(character) > EMPTY_CHARACTER for line in lines for character in line) >= 1
