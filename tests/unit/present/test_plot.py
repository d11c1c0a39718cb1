"""Plots: what is described is what is drawn; no number of series, values or names breaks it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_text import faults
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.style import PALETTE, png_of, svg_of


def test_a_plot_is_written_whole(tmp_path):
    plot = one(Series([1, 2], [1.0, 2.0]))
    plot.write(tmp_path / "x.png")
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
    assert (tmp_path / "x.png").read_bytes() == png_of(plot.figure())


def one(*series: Series, x: Axis = Axis("x"), y: Axis = Axis("y"), **more) -> Plot:  # noqa: B008
    return Plot([Panel(x, y, series, **more)], (5.0, 3.0))


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def ticks(axis) -> list[str]:
    """What can be read of an axis, within its ends."""
    low, high = axis.get_view_interval()
    return [
        axis.get_major_formatter()(place, 0)
        for place in axis.get_majorticklocs()
        if low * (1 - 1e-9) <= place <= high * (1 + 1e-9)
    ]


def test_a_line_has_its_places_color_style_and_name():
    figure = one(Series([1, 2], [3.0, 5.0], "a", "o--", 1), Series([1], [4.0], "b", "x", 0)).figure()
    (axes,) = figure.axes
    first, second = axes.lines
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([1, 2], [3.0, 5.0])
    assert (first.get_color(), first.get_linestyle(), first.get_marker()) == (PALETTE[1], "--", "o")
    assert second.get_color() == PALETTE[0] and legend(figure) == ["a", "b"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")


def test_bytes_that_are_not_text_are_escaped_before_names_are_measured():
    names = [f"{number} \udcff $x$" for number in range(3)]
    plot = one(*(Series([1, 2], [number, 5.0], name) for number, name in enumerate(names)), title="\udcff")
    assert legend(plot.figure()) == [f"{number} \\udcff \\$x\\$" for number in range(3)]


def test_everything_is_within_the_axes_unless_cut_off_on_purpose():
    x, y = [1.0, 10.0, 1e4], [8.0, 2.0, 0.5]
    (axes,) = one(Series(x, y), y=Axis("y", "log")).figure().axes
    assert axes.get_xlim()[0] <= 1 and axes.get_xlim()[1] >= 1e4
    assert axes.get_ylim()[0] <= 0.5 and axes.get_ylim()[1] >= 8
    (axes,) = one(Series(x, y), y=Axis("y", low=1.0)).figure().axes
    assert axes.get_ylim()[0] == 1.0 and axes.get_ylim()[1] >= 8


def test_panels_that_share_an_axis_have_room_for_all_and_its_title_once():
    panels = [Panel(Axis("x"), Axis("y"), [Series([1, 2], [0, height])]) for height in (1, 50, 3)]
    axes = Plot(panels, (3.0, 2.0), columns=2, shared="y").figure().axes
    assert axes[0].get_ylim()[1] >= 50 and axes[0].get_ylim() == axes[1].get_ylim()
    assert [one.get_ylabel() for one in axes[:3]] == ["y", "", "y"]
    assert not axes[3].get_visible()


@settings(deadline=None, max_examples=10)
@given(st.floats(1e-9, 1e12), st.floats(1.05, 1e9))
def test_a_logarithmic_axis_has_several_different_ticks(low: float, ratio: float):
    x = Axis("x", "log", lambda value: numbers.scientific(value, 4))
    (axes,) = one(Series([low, low * ratio], [1, 2]), x=x).figure().axes
    found = ticks(axes.xaxis)
    assert 3 <= len(found) == len(set(found)) <= 16


def test_ticks_are_round_and_formatted_by_the_axis():
    size = Axis("size", "log", numbers.metric)
    (axes,) = one(Series([2e6, 3e8], [1, 2]), x=size, y=Axis("y", places={1: "one", 2: "two"})).figure().axes
    assert ticks(axes.xaxis) == ["2 M", "5 M", "10 M", "20 M", "50 M", "100 M", "200 M"]
    assert [label.get_text() for label in axes.yaxis.get_ticklabels()] == ["one", "two"]
    (axes,) = one(Series([1024, 2**20], [1, 2]), x=Axis("x", "log2", numbers.binary)).figure().axes
    assert "16 KiB" in ticks(axes.xaxis)


def test_ticks_of_a_low_logarithmic_panel_do_not_touch():
    panels = [Panel(Axis("x"), Axis("norm", "log"), [Series([1, 2], [2.7, 17.8])])] * 2
    high, low = (axes.yaxis for axes in Plot(panels, (8.0, 2.3), heights=(3, 1)).figure().axes)
    assert len(ticks(high)) > len(ticks(low)) >= 2 and faults(low.figure) == []


def test_names_are_not_read_as_formulas_nor_hidden():
    figure = one(Series([1], [1], "'$a_b$'"), Series([1], [2], "_hidden"), title="a $ b").figure()
    assert legend(figure) == [r"'\$a_b\$'", "\u200b_hidden"]
    assert "'$a_b$'" in svg_of(figure)


def test_each_name_stands_once_below_panels_that_keep_their_height():
    bare = one(Series([1], [1])).figure()
    png_of(bare)
    assert not bare.legends
    for count in (3, 12, 45):
        figure = one(*[Series([1], [1], f"run {n % count}") for n in range(2 * count)]).figure()
        png_of(figure)
        assert legend(figure) == [f"run {n}" for n in range(count)]
        assert figure.legends[0].get_window_extent().y1 < figure.axes[0].get_window_extent().y0
        assert figure.axes[0].bbox.height == pytest.approx(bare.axes[0].bbox.height, abs=12)
        assert faults(figure) == []


@pytest.mark.parametrize(("count", "letters"), [(2, 30), (10, 30), (10, 90), (25, 30), (3, 300)])
def test_long_names_are_whole_and_apart(count: int, letters: int):
    series = [Series([0, 1], [0, n], f"{n} {'word-and' * letters}"[:letters], "-", n) for n in range(count)]
    for names in ("legend", "ends"):
        figure = Plot([Panel(Axis("x"), Axis("y"), series)], (4.9, 3.9), names=names).figure()
        assert faults(figure) == [] and len(legend(figure)) == count
        assert ["".join(text.split()) for text in legend(figure)] == ["".join(one.name.split()) for one in series]
        assert figure.axes[0].bbox.width > 0.7 * figure.bbox.width and figure.axes[0].bbox.height > 300


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("values", [[3.0], [-3.0] * 12, [3.0, 2.999, *[-3.0] * 8], [0.1 * n for n in range(12)]])
def test_names_at_the_ends_of_lines_are_whole_and_apart(values: list[float], scale: str):
    series = [Series([1, 1000], [10.0, 10.0**value], f"line {n}") for n, value in enumerate(values)]
    x = Axis("tokens of text", "log2", numbers.grouped)
    figure = Plot([Panel(x, Axis("y", scale), series)] * 2, (4.9, 3.9), 2, names="ends", shared="y").figure()
    assert not figure.legends and faults(figure) == []


def test_titles_are_broken_and_ticks_thinned_where_there_is_no_room():
    long = "a title with a $ in it that is far too long for so small a panel, whatever it says"
    x = Axis(long, "log2", lambda value: f"{value:,.0f} tokens")
    figure = one(Series([1, 2**30], [1, 2]), x=x, y=Axis(long), title=long).figure()
    assert faults(figure) == []
    (axes,) = figure.axes
    for text in (axes.get_xlabel(), axes.get_ylabel(), axes.get_title("left")):
        assert text.count("\n") and text.replace("\n", " ") == long.replace("$", r"\$")
    assert 2 <= len(ticks(axes.xaxis)) <= 4
    named = Axis("x", places={place: f"place {place}" for place in range(20)})
    (axes,) = one(Series([0, 19], [1, 2]), x=named).figure().axes
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert shown == [f"place {place:.0f}" for place in axes.get_xticks()] and 4 <= len(shown) <= 7


def test_names_at_the_ends_of_lines_stand_beside_them_and_apart():
    series = [Series([0, 1], [0.0, height], name) for name, height in (("a", 5.0), ("b", 5.01), ("c", 1.0))]
    figure = Plot([Panel(Axis("x"), Axis("y"), series)], names="ends").figure()
    png_of(figure)
    placed = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    assert set(placed) == {"a", "b", "c"} and not figure.legends
    assert placed["b"].y0 >= placed["a"].y1 - 1 > placed["c"].y1
    assert all(box.x1 <= figure.bbox.x1 for box in placed.values()), "they are not cut off"


def test_a_band_about_a_line_bars_about_points_and_a_single_point():
    band = one(Series([1, 2], [2, 3], "", "o-", low=[1, 2], high=[3, 4])).figure().axes[0]
    bars = one(Series([1, 2], [2, 3], "", "o", low=[1, 2], high=[3, 4])).figure().axes[0]
    point = one(Series([1], [2], "", "o-", low=[1], high=[3])).figure().axes[0]
    assert type(band.collections[0]).__name__ == "FillBetweenPolyCollection"
    assert len(bars.collections[0].get_segments()) == 2 and len(point.collections[0].get_segments()) == 1


def test_a_third_quantity_is_shown_by_color_with_a_bar():
    plot = Plot([Panel(Axis("x"), Axis("y"), [Series([1, 2], [1, 2], values=[1e3, 1e6], style="o")])], values="size")
    axes, bar = plot.figure().axes
    low, high = axes.collections[0].to_rgba([1e3, 1e6])
    assert tuple(low) != tuple(high) and bar.get_ylabel() == "size" and "10 k" in ticks(bar.yaxis)


def test_bars_rules_and_a_diagonal():
    bars = Series([0.5, 1.5, 3.5], [4, 2], style="bars")
    (axes,) = one(bars, rules=[Rule(3.0, "most"), Rule(2, upright=True)], diagonal=True).figure().axes
    assert list(axes.patches[0].get_data().values) == [4, 2]
    across, upright, diagonal = axes.lines
    assert set(across.get_ydata()) == {3.0} and set(upright.get_xdata()) == {2} and diagonal.get_slope() == 1
    (far,) = one(Series([50, 60], [50, 70]), diagonal=True).figure().axes
    assert far.get_xlim()[0] > 40, "the diagonal takes no room"


@pytest.mark.filterwarnings("ignore:Data has no positive values")
@pytest.mark.parametrize("values", [[], [1.0], [math.nan, 2.0], [0.0, 0.0], [1.0, math.inf]])
@pytest.mark.parametrize("scale", ["linear", "log", "log2", "symlog"])
def test_any_values_are_drawn(values: list[float], scale: str):
    figure = one(Series(range(len(values)), values, "a", "o-", 0.5), y=Axis("y", scale)).figure()
    assert png_of(figure).startswith(b"\x89PNG")
