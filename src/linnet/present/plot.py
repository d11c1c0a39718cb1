"""Plots: described as data, drawn in one style."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from linnet.core.atomic import atomic_path
from linnet.present import numbers
from linnet.present.labels import end_labels_fit, label_ends, label_points
from linnet.present.room import fit_titles, legend_below, thin_ticks
from linnet.present.style import INK, PALETTE, drawing, new_figure, png_of, shade, shades

Numbers = Sequence[float] | np.ndarray[Any, Any]
Scale = Literal["linear", "log", "log2", "symlog"]

MARKS, DASHES = "os^Dv*Xp", ("-", "--", "-.")
"""What tells lines apart where there is no color: as many of both as there are pairs of one of each."""

NARROW, WIDE = 10, 1000
"""Ratios of a logarithmic axis' ends: below, plain round numbers mark it; above, powers of ten are enough."""


@dataclass(frozen=True)
class Axis:
    """`format` writes a number of it. `places`: names instead of numbers. Ends that are not given: the data's."""

    title: str = ""
    scale: Scale = "linear"
    format: Callable[[float], str] | None = None
    low: float | None = None
    high: float | None = None
    places: Mapping[int, str] | None = None


@dataclass(frozen=True)
class Series:
    """One line, or points. `style`: as Matplotlib has it (`o-`), or `bars`, whose edges x are one more than their y.

    color: a number in the palette, a share between dark and light (float), or a color. low, high: a band about a
    line, error bars of points. values: a third quantity, told by color. labels: text near each point. dots: which
    points of a line are marked. name: in the legend, or at the line's end.
    """

    x: Numbers
    y: Numbers
    name: str = ""
    style: str = "-"
    color: int | float | str = 0
    low: Numbers | None = None
    high: Numbers | None = None
    values: Numbers | None = None
    labels: Sequence[str] = ()
    dots: Sequence[int] | None = None
    faint: bool = False
    large: bool = False


def line_style(number: int) -> str:
    """Marks and dashes of the line of that number: told from its neighbors without color; 24 differ."""
    return f"{MARKS[number % len(MARKS)]}{DASHES[number % len(DASHES)]}"


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at one value of y, or of x where it is `upright`."""

    at: float
    name: str = ""
    style: str = "--"
    color: int | str = INK
    upright: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `diagonal`: a line where both are equal."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    rules: Sequence[Rule] = ()
    diagonal: bool = False


@dataclass(frozen=True)
class Plot:
    """Panels of `size` inches each, so many in a row.

    names: of series, in a legend, which has room of its own below, or at the ends of their lines: where they would
    take too much of the panels, in a legend all the same. values: what the colors of points mean. shared: the
    axis that all panels have in common. heights: of the rows, in relation.
    """

    panels: Sequence[Panel]
    size: tuple[float, float] = (8.0, 4.6)
    columns: int = 1
    names: Literal["legend", "ends"] = "legend"
    values: str = ""
    shared: Literal["", "x", "y"] = ""
    heights: Sequence[float] | None = None

    def figure(self) -> Any:
        """As Matplotlib's `Figure`."""
        with drawing(), np.errstate(divide="ignore", invalid="ignore"):  # of a logarithmic axis with a single value
            return _figure(self)

    def write(self, path: Path) -> None:
        """As a PNG."""
        with atomic_path(path) as temporary:
            temporary.write_bytes(png_of(self.figure()))


def _figure(plot: Plot) -> Any:
    rows = math.ceil(len(plot.panels) / plot.columns)
    figure = new_figure(plot.size[0] * plot.columns, plot.size[1] * rows)
    shared = {"sharex": plot.shared == "x", "sharey": plot.shared == "y", "height_ratios": plot.heights}
    all_axes = figure.subplots(rows, plot.columns, squeeze=False, **shared).ravel()
    norm = _norm(plot)
    for axes, panel in zip(all_axes, plot.panels, strict=False):
        _draw_panel(axes, panel, norm)
    for axes, panel in zip(all_axes, plot.panels, strict=False):  # once all is drawn: panels may share their ends
        axes.set(xlim=_ends(axes.get_xlim(), panel.x), ylim=_ends(axes.get_ylim(), panel.y))
        if panel.diagonal:
            axes.axline((1, 1), slope=1, color=INK, linewidth=0.8)
        _mark(axes.xaxis, panel.x)
        _mark(axes.yaxis, panel.y)
    for axes in all_axes[len(plot.panels) :]:
        axes.set_visible(False)
    _tell_outermost(all_axes, plot)
    if norm is not None:
        _color_bar(figure, all_axes, norm, plot.values)
    _tell_names(figure, all_axes, plot)
    _fit(figure, all_axes)
    for axes, panel in zip(all_axes, plot.panels, strict=False):
        if any(series.labels for series in panel.series):
            _label_points(axes, panel)
    return figure


def _tell_names(figure: Any, all_axes: Sequence[Any], plot: Plot) -> None:
    """At the ends of lines where all panels have the room, else in a legend."""
    lines = [[(one.name, one.x, one.y, _color(one.color)) for one in panel.series if one.name] for panel in plot.panels]
    if plot.names == "legend" or not all(end_labels_fit([name for name, *_ in ends], *plot.size) for ends in lines):
        legend_below(figure)
        return
    figure.draw_without_rendering()  # how high the panels are is known now
    for axes, ends in zip(all_axes, lines, strict=False):
        label_ends(axes, ends)


def _fit(figure: Any, all_axes: Sequence[Any]) -> None:
    """Once all else has its place, what is too long for that which remains."""
    for mend in (fit_titles, thin_ticks):
        figure.draw_without_rendering()
        for axes in all_axes:
            mend(axes)


def _draw_panel(axes: Any, panel: Panel, norm: Any) -> None:
    for spec, name in ((panel.x, "x"), (panel.y, "y")):
        scale = spec.scale
        bases: dict[str, Any] = {"log2": {"base": 2}, "symlog": {"linthresh": 1, "linscale": 0.3}}
        getattr(axes, f"set_{name}scale")("log" if scale == "log2" else scale, **bases.get(scale, {}))
        getattr(axes, f"set_{name}label")(spec.title)
    for series in panel.series:
        _draw_series(axes, series, norm)
    for rule in panel.rules:
        line = axes.axvline if rule.upright else axes.axhline
        line(rule.at, color=_color(rule.color), linestyle=rule.style, linewidth=1, label=_verbatim(rule.name))
    axes.set_title(panel.title.replace("$", r"\$"))


def _ends(found: tuple[float, float], spec: Axis) -> tuple[float, float]:
    """The data's, but those that are given."""
    return found[0] if spec.low is None else spec.low, found[1] if spec.high is None else spec.high


def _draw_series(axes: Any, series: Series, norm: Any) -> None:
    color, alpha, name = _color(series.color), 0.5 if series.faint else 1.0, _verbatim(series.name)
    if series.style == "bars":
        axes.stairs(series.y, series.x, fill=True, color=color, alpha=alpha, label=name)
        return
    if series.values is not None:
        axes.scatter(series.x, series.y, c=series.values, cmap=shades(), norm=norm, s=18, label=name)
        return
    style: dict[str, Any] = {"alpha": alpha, "linewidth": 1.0 if series.faint else None, "markevery": series.dots}
    if series.large:
        style |= {"markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.5}
    axes.plot(series.x, series.y, series.style, color=color, label=name, **style)
    if series.low is not None and series.high is not None:
        if "-" in series.style and len(series.x) > 1:
            axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.15, linewidth=0)
        else:
            axes.vlines(series.x, series.low, series.high, color=color, alpha=0.6, linewidth=1)


def _label_points(axes: Any, panel: Panel) -> None:
    """In the place that all else leaves; what is no number has none."""
    points, lines = [], []
    for series in panel.series:
        names = series.labels or [""] * len(series.x)
        points += [(x, y, name, _color(series.color)) for x, y, name in zip(series.x, series.y, names, strict=True)]
        if "-" in series.style:
            lines.append((series.x, series.y))
        elif series.low is not None and series.high is not None:
            lines += [((x, x), ends) for x, *ends in zip(series.x, series.low, series.high, strict=True)]
    points = [point for point in points if np.isfinite(point[:2]).all()]
    if any(point[2] for point in points):
        label_points(axes, points, [line for line in lines if len(line[0]) > 1 and np.isfinite(np.asarray(line)).all()])


def _mark(axis: Any, spec: Axis) -> None:
    """Ticks at round numbers, said as the axis' numbers are."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if spec.places is not None:
        axis.set_ticks(list(spec.places), labels=list(spec.places.values()))
        return
    if spec.scale == "log":
        low, high = axis.get_view_interval()
        if high < NARROW * low:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], min_n_ticks=4))
            axis.set_minor_locator(LogLocator(subs=()))
        elif high < WIDE * low:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    if spec.format is not None or spec.scale != "linear":
        said = spec.format or numbers.exact
        axis.set_major_formatter(FuncFormatter(lambda value, _: said(float(f"{value:.9g}"))))


def _tell_outermost(all_axes: Sequence[Any], plot: Plot) -> None:
    """A shared axis has its title once."""
    shown = len(plot.panels)
    for number, axes in enumerate(all_axes[:shown]):
        if plot.shared == "x" and number + plot.columns < shown:
            axes.set_xlabel("")
        if plot.shared == "y" and number % plot.columns:
            axes.set_ylabel("")


def _norm(plot: Plot) -> Any:
    """From the least to the largest of all values that are told by color."""
    from matplotlib.colors import LogNorm

    found = [series.values for panel in plot.panels for series in panel.series if series.values is not None]
    return LogNorm(float(min(map(min, found))), float(max(map(max, found)))) if found else None


def _color_bar(figure: Any, all_axes: Any, norm: Any, title: str) -> None:
    from matplotlib.cm import ScalarMappable

    rows = all_axes[0].get_gridspec().nrows
    bar = figure.colorbar(ScalarMappable(norm, shades()), ax=list(all_axes), label=title, pad=0.01, aspect=30 * rows)
    bar.outline.set_visible(False)
    _mark(bar.ax.yaxis, Axis(scale="log", format=numbers.metric))


def _color(color: int | float | str) -> Any:
    if isinstance(color, str):
        return color
    return PALETTE[color % len(PALETTE)] if isinstance(color, int) else shade(color)


def _verbatim(name: str) -> str:
    """A name that Matplotlib takes as it is: neither a formula nor, with `_` before it, to be hidden."""
    escaped = name.replace("$", r"\$")
    return f"\u200b{escaped}" if escaped.startswith("_") else escaped
