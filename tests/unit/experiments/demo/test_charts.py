"""Charts: what is drawn lies where it should, and says what it is."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.experiments.demo import charts
from linnet.experiments.demo.charts import Axis, Series, apart, line_chart, linear_ticks, log_ticks, power_ticks, smooth

SVG = "{http://www.w3.org/2000/svg}"
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
unhurried = settings(deadline=None)
places = st.lists(st.floats(0, 100), max_size=6).map(sorted)
curves = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 10)), min_size=1, max_size=40)


def parsed(series: list[Series], name: str = "a chart", description: str = "what it shows") -> ElementTree.Element:
    x = Axis("tokens", 0, 1000, [0, 500, 1000], str)
    y = Axis("bits", 0.5, 4, [1, 2, 4], str, logarithmic=True)
    drawn = line_chart(name, description, x, y, series)
    return ElementTree.fromstring(drawn.replace("<svg", f"<svg {NAMESPACE}", 1))


def points_of(line: ElementTree.Element) -> list[tuple[float, ...]]:
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]


def test_a_line_runs_through_its_points_in_the_frame_of_the_axes():
    (line,) = parsed([Series("one", "ted", [(0, 4.0), (500, math.sqrt(2)), (1000, 0.5)])]).iter(f"{SVG}polyline")
    left, right = charts.LEFT, charts.WIDTH - charts.RIGHT
    top, bottom = charts.TOP, charts.HEIGHT - charts.BOTTOM
    expected = [(left, top), ((left + right) / 2, (top + bottom) / 2), (right, bottom)]
    assert [pytest.approx(point, abs=0.06) for point in expected] == points_of(line)
    assert line.attrib["class"] == "line ted"


def test_dots_mark_every_point_and_tell_its_values():
    svg = parsed([Series("one", "ted", [(0, 1.0), (500, 2.0)], dots=True), Series("two", "pldr", [(0, 1.0)])])
    titles = [dot.findtext(f"{SVG}title") for dot in svg.iter(f"{SVG}circle")]
    assert titles == ["one: 1.0 at 0", "one: 2.0 at 500"]


def test_a_series_without_points_is_left_out():
    svg = parsed([Series("one", "ted", [], "one"), Series("two", "pldr", [(0, 1.0)], "two")])
    assert len(list(svg.iter(f"{SVG}polyline"))) == 1
    assert [text.text for text in svg.iter(f"{SVG}text") if "label" in text.get("class", "")] == ["two"]


def test_names_are_text_whatever_they_hold():
    hostile = "</svg><script>\"&'"
    svg = parsed([Series(hostile, "ted", [(0, 1.0)], hostile, dots=True)], hostile, hostile)
    assert svg.findtext(f"{SVG}title") == svg.attrib["aria-label"] == hostile
    assert [text.text for text in svg.iter(f"{SVG}text")][-1] == hostile


def test_axes_have_their_ticks_and_titles():
    texts = [text.text for text in parsed([Series("one", "ted", [(0, 1.0)])]).iter(f"{SVG}text")]
    assert texts == ["1", "2", "4", "0", "500", "1000", "tokens", "bits"]


@unhurried
@given(places)
def test_labels_do_not_touch_and_stay_inside_where_there_is_room(wanted: list[float]):
    moved = apart(wanted, 10, 0, 100)
    assert len(moved) == len(wanted)
    assert all(after - before >= 10 - 1e-9 for before, after in pairwise(moved))
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in moved)


@unhurried
@given(places)
def test_labels_that_are_apart_already_stay_where_they_are(wanted: list[float]):
    spread = [place + 10 * index for index, place in enumerate(wanted)]
    assert apart(spread, 10, 0, 1000) == pytest.approx(spread, abs=1e-9)


@unhurried
@given(curves, st.integers(1, 9))
def test_smoothing_keeps_the_places_and_stays_within_the_values(points: list[tuple[float, float]], width: int):
    smoothed = smooth(points, width)
    assert [x for x, _ in smoothed] == [x for x, _ in points]
    values = [y for _, y in points]
    assert all(min(values) - 1e-9 <= y <= max(values) + 1e-9 for _, y in smoothed)


def test_smoothing_does_not_bend_a_straight_line_and_averages_its_neighbours():
    straight = [(float(n), 3.0 * n) for n in range(10)]
    assert [y for _, y in smooth(straight, 5)] == pytest.approx([y for _, y in straight])
    assert smooth([(0, 0.0), (1, 3.0), (2, 0.0)], 3) == [(0, 0.0), (1, 1.0), (2, 0.0)]


@unhurried
@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e6))
def test_linear_ticks_are_evenly_spaced_between_the_ends(low: float, length: float):
    ticks = linear_ticks(low, low + length)
    assert 3 <= len(ticks) <= 9
    assert all(low - 1e-6 * length <= tick <= low + length * (1 + 1e-6) for tick in ticks)
    steps = [after - before for before, after in pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_ticks_are_round_values():
    assert linear_ticks(0, 819_200, 4) == [0, 200_000, 400_000, 600_000, 800_000]
    assert log_ticks(0.68, 3.2) == pytest.approx([0.7, 1, 1.5, 2, 3])
    assert log_ticks(2.55, 3.11) == pytest.approx([2.6, 2.7, 2.8, 2.9, 3.0, 3.1])
    assert power_ticks(2064, 2064 * 65536, 16) == [4096, 65536, 2**20, 2**24]
    assert power_ticks(1, 65536, 16) == [1, 16, 256, 4096, 65536]
