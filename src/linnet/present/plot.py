"""Plots and heat maps: described as data, drawn by Matplotlib in one style.

Legend: `H` heads, `K` head width.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from linnet.core.atomic import atomic_path
from linnet.present import numbers
from linnet.present.style import (
    INK,
    PALETTE,
    color_map,
    drawing,
    encodable,
    end_labels_fit,
    fit_titles,
    label_ends,
    label_points,
    legend_below,
    new_figure,
    png_of,
    thin_ticks,
)

Numbers = Sequence[float] | np.ndarray[Any, Any]
Scale = Literal["linear", "log", "log2", "symlog"]

MARKS, DASHES = "os^Dv*Xp", ("-", "--", "-.")
"""Markers and dashes, which tell lines apart without color."""

LOW_PANEL_INCHES = 1.6
"""A panel that is lower has room for fewer ticks, which a logarithmic axis crowds at its upper end."""

FEW_DECADES, MANY_DECADES = 10, 1000
"""Ratios of a logarithmic axis' ends: below the first, its ticks are round numbers; above the second, powers of ten."""


@dataclass(frozen=True)
class Axis:
    """An axis. format: writes its numbers. places: names for numbers. low, high: its ends if not those of the data."""

    title: str = ""
    scale: Scale = "linear"
    format: Callable[[float], str] | None = None
    low: float | None = None
    high: float | None = None
    places: Mapping[int, str] | None = None


@dataclass(frozen=True)
class Series:
    """A line or points. style: Matplotlib's (`o-`), or `bars`, whose edges x are one more than their heights y.

    color: an index into the palette, a float from dark (0) to light (1), or a color. low, high: a band about a line,
    error bars of points. values: a third quantity, shown by color. labels: text near each point. dots: the points of a
    line that are marked. name: in the legend, or at the line's end.
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
    """Return markers and dashes for the line of that number; the first 24 differ."""
    return f"{MARKS[number % len(MARKS)]}{DASHES[number % len(DASHES)]}"


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel at one value of y, or of x if it is `upright`."""

    at: float
    name: str = ""
    style: str = "--"
    color: int | str = INK
    upright: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. diagonal: adds the line where both coordinates are equal."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    rules: Sequence[Rule] = ()
    diagonal: bool = False


@dataclass(frozen=True)
class Plot:
    """Panels of `size` inches each, `columns` of them in a row.

    names: series are named in a legend below, or at the ends of their lines if there is room there. values: the title
    of the color bar. shared: the axis that all panels have in common. heights: relative heights of the rows.
    """

    panels: Sequence[Panel]
    size: tuple[float, float] = (8.0, 4.6)
    columns: int = 1
    names: Literal["legend", "ends"] = "legend"
    values: str = ""
    shared: Literal["", "x", "y"] = ""
    heights: Sequence[float] | None = None

    def figure(self) -> Any:
        """Return the plot as a Matplotlib `Figure`."""
        # NumPy warns about the ends of a logarithmic axis that has a single value.
        with drawing(), np.errstate(divide="ignore", invalid="ignore"):
            return _figure(self)

    def write(self, path: Path) -> None:
        """Write the plot as a PNG file, whole or not at all."""
        with atomic_path(path) as temporary:
            temporary.write_bytes(png_of(self.figure()))


def _figure(plot: Plot) -> Any:
    count, rows = len(plot.panels), math.ceil(len(plot.panels) / plot.columns)
    figure = new_figure(plot.size[0] * plot.columns, plot.size[1] * rows)
    shared = {"sharex": plot.shared == "x", "sharey": plot.shared == "y", "height_ratios": plot.heights}
    all_axes = figure.subplots(rows, plot.columns, squeeze=False, **shared).ravel()
    panels = list(zip(all_axes, plot.panels, strict=False))
    norm = _color_norm(plot)
    for axes, panel in panels:
        _draw_panel(axes, panel, norm)

    # The ends of axes are set once all panels are drawn, because panels may share them.
    for axes, panel in panels:
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        left, right = left if panel.x.low is None else panel.x.low, right if panel.x.high is None else panel.x.high
        bottom, top = bottom if panel.y.low is None else panel.y.low, top if panel.y.high is None else panel.y.high
        axes.set(xlim=(left, right), ylim=(bottom, top))
        if panel.diagonal:
            axes.axline((1, 1), slope=1, color=INK, linewidth=0.8)
        _set_ticks(axes.xaxis, panel.x)
        _set_ticks(axes.yaxis, panel.y)
    for axes in all_axes[count:]:
        axes.set_visible(False)

    # A shared axis has its title once, at the outermost panels.
    for number, axes in enumerate(all_axes[:count]):
        if plot.shared == "x" and number + plot.columns < count:
            axes.set_xlabel("")
        if plot.shared == "y" and number % plot.columns:
            axes.set_ylabel("")

    if norm is not None:
        _add_color_bar(figure, all_axes, norm, plot.values)
    _add_names(figure, all_axes, plot)
    figure.draw_without_rendering()  # titles and ticks need the layout that everything before has led to
    broken = [fit_titles(axes) for axes in all_axes]
    if any(broken):
        figure.draw_without_rendering()
    for axes in all_axes:
        thin_ticks(axes)
    for axes, panel in panels:
        if any(series.labels for series in panel.series):
            _label_points(axes, panel)
    return figure


def _add_names(figure: Any, all_axes: Sequence[Any], plot: Plot) -> None:
    """Name lines at their ends if all panels have room for that, else in a legend."""
    lines = [[(one.name, one.x, one.y, _color(one.color)) for one in panel.series if one.name] for panel in plot.panels]
    if plot.names == "legend" or not all(end_labels_fit([name for name, *_ in ends], *plot.size) for ends in lines):
        legend_below(figure)
        return
    figure.draw_without_rendering()  # the height of the panels is known afterwards
    for axes, ends in zip(all_axes, lines, strict=False):
        label_ends(axes, ends)


def _draw_panel(axes: Any, panel: Panel, norm: Any) -> None:
    options: dict[str, Any] = {"log2": {"base": 2}, "symlog": {"linthresh": 1, "linscale": 0.3}}
    for spec, name in ((panel.x, "x"), (panel.y, "y")):
        scale = "log" if spec.scale == "log2" else spec.scale
        getattr(axes, f"set_{name}scale")(scale, **options.get(spec.scale, {}))
        getattr(axes, f"set_{name}label")(spec.title)
    for series in panel.series:
        _draw_series(axes, series, norm)
    for rule in panel.rules:
        line = axes.axvline if rule.upright else axes.axhline
        line(rule.at, color=_color(rule.color), linestyle=rule.style, linewidth=1, label=_verbatim(rule.name))
    axes.set_title(encodable(panel.title.replace("$", r"\$")))


def _draw_series(axes: Any, series: Series, norm: Any) -> None:
    color, alpha, name = _color(series.color), 0.5 if series.faint else 1.0, _verbatim(series.name)
    if series.style == "bars":
        axes.stairs(series.y, series.x, fill=True, color=color, alpha=alpha, label=name)
        return
    if series.values is not None:
        axes.scatter(series.x, series.y, c=series.values, cmap=color_map(), norm=norm, s=18, label=name)
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
    """Label the points with finite coordinates where lines, error bars and other points leave room."""
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


def _set_ticks(axis: Any, spec: Axis) -> None:
    """Set ticks at round numbers, which the axis' own function writes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if spec.places is not None:
        axis.set_ticks(list(spec.places), labels=list(spec.places.values()))
        return
    if spec.scale == "log":
        low, high = axis.get_view_interval()
        if high < FEW_DECADES * low:
            low_panel = axis.axis_name == "y" and axis.axes.bbox.height < LOW_PANEL_INCHES * axis.axes.figure.dpi
            most, fewest = (3, 2) if low_panel else (6, 4)
            axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], min_n_ticks=fewest))
            axis.set_minor_locator(LogLocator(subs=()))
        elif high < MANY_DECADES * low:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    if spec.format is not None or spec.scale != "linear":
        write = spec.format or numbers.exact
        axis.set_major_formatter(FuncFormatter(lambda value, _: write(float(f"{value:.9g}"))))


def _color_norm(plot: Plot) -> Any:
    """Return the logarithmic range of all values that are shown by color; None if there are none."""
    from matplotlib.colors import LogNorm

    found = [series.values for panel in plot.panels for series in panel.series if series.values is not None]
    return LogNorm(float(min(map(min, found))), float(max(map(max, found)))) if found else None


def _add_color_bar(figure: Any, all_axes: Any, norm: Any, title: str) -> None:
    from matplotlib.cm import ScalarMappable

    rows = all_axes[0].get_gridspec().nrows
    bar = figure.colorbar(ScalarMappable(norm, color_map()), ax=list(all_axes), label=title, pad=0.01, aspect=30 * rows)
    bar.outline.set_visible(False)
    _set_ticks(bar.ax.yaxis, Axis(scale="log", format=numbers.metric))


def _color(color: int | float | str) -> Any:
    if isinstance(color, str):
        return color
    return PALETTE[color % len(PALETTE)] if isinstance(color, int) else color_map()(color)


def _verbatim(name: str) -> str:
    """Return a name that Matplotlib neither reads as a formula nor hides, as it does after `_`."""
    escaped = encodable(name.replace("$", r"\$"))
    return f"\u200b{escaped}" if escaped.startswith("_") else escaped


MIN_INCHES, MAX_INCHES, GRID_INCHES = 0.6, 2.1, 15.0
"""Smallest and largest width of one head's matrix, and the width of a whole row of heads between these."""

COLOR_PERCENTILE = 99.5
"""The end of a color scale; a few large elements would otherwise leave a single color for the rest."""

HEAD_GAP = 0.06
"""Gap between two heads as a share of a head's width."""


@dataclass(frozen=True)
class HeatMaps:
    """Matrices `[H, K, K]` by layer number: a row for each layer, with a color scale of its own, a square per head."""

    layers: Mapping[int, NDArray[np.float64]]

    def figure(self) -> Any:
        """Return the heat maps as a Matplotlib `Figure`."""
        with drawing():
            heads = max(len(x_HKK) for x_HKK in self.layers.values())
            inches = min(MAX_INCHES, max(MIN_INCHES, GRID_INCHES / heads))
            figure = new_figure(heads * inches * (1 + HEAD_GAP) + 1.9, len(self.layers) * (inches + 0.35) + 0.3)
            rows = figure.subplots(len(self.layers), 1, squeeze=False)[:, 0]
            for axes, (number, x_HKK) in zip(rows, self.layers.items(), strict=True):
                _draw_heads(axes, x_HKK)
                axes.set_ylabel(f"layer {number}")
            rows[-1].set_xlabel("head")
            return figure


def _draw_heads(axes: Any, x_HKK: NDArray[np.float64]) -> None:
    heads, width = len(x_HKK), x_HKK.shape[1]
    gap = max(1, round(HEAD_GAP * width))
    mosaic = np.full((width, heads * (width + gap) - gap), np.nan)
    for head, x_KK in enumerate(x_HKK):
        start = head * (width + gap)
        mosaic[:, start : start + width] = np.where(np.isfinite(x_KK), x_KK, np.nan)
    low, high, colors = color_scale(x_HKK)
    image = axes.imshow(mosaic, vmin=low, vmax=high, cmap=colors, interpolation_stage="data")
    finite = x_HKK[np.isfinite(x_HKK)]
    above, below = bool((finite > high).any()), bool((finite < low).any())
    extend = {(True, True): "both", (True, False): "max", (False, True): "min"}.get((above, below), "neither")
    bar = axes.figure.colorbar(image, ax=axes, extend=extend, pad=0.01, fraction=0.05, aspect=12)
    bar.outline.set_visible(False)
    axes.set_xticks([head * (width + gap) + (width - 1) / 2 for head in range(heads)], [f"{h}" for h in range(heads)])
    axes.set_yticks([0, width - 1])
    axes.tick_params(length=0, labelsize=8)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def color_scale(x: NDArray[np.float64]) -> tuple[float, float, str]:
    """Return both ends and the colors of a scale: symmetric about 0 if both signs occur, else from low to high."""
    finite = x[np.isfinite(x)]
    if not finite.size:
        return 0.0, 1.0, "viridis"
    if finite.min() < 0 < finite.max():
        limit = float(np.percentile(np.abs(finite), COLOR_PERCENTILE)) or float(np.abs(finite).max())
        return -limit, limit, "RdBu_r"
    if finite.min() >= 0:
        low, high = float(finite.min()), float(np.percentile(finite, COLOR_PERCENTILE))
    else:
        low, high = float(np.percentile(finite, 100 - COLOR_PERCENTILE)), float(finite.max())
    return (low, high, "viridis") if low < high else (low, low + (abs(low) or 1.0), "viridis")
