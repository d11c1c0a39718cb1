"""One style for all plots: colors, figures as PNG and SVG, and room for text (labels, legends, titles, ticks)."""

import io
import math
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

INK, DARK_INK = "#3c424b", "#c4c9d1"
"""Text and axes on white and on a dark page."""

SOFT = "#8a919b"
"""Background lines, readable on both."""

PALETTE = ("#2f7bc8", "#d2691e", "#158f68", "#a35bc4", "#c9457d", "#8c8420", "#369db0", "#8f6c58")
DARKEST, LIGHTEST = 0.2, 0.86
"""The used range of the color map; colors beyond it are hard to see on black or on white."""

STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.16,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "linnet",
}

POINTS_PER_INCH = 72
TEXT_POINTS, END_POINTS, POINT_POINTS = 10.0, 9.5, 8.5
"""Font sizes of titles, legends and ticks; of labels at the ends of lines; of labels beside points."""

END_SPACING = 1.25
"""Distance between two labels at line ends, in heights of their text."""

MAX_END_WIDTH, MAX_END_HEIGHT = 1 / 3, 0.7
"""Shares of a panel that labels at line ends may take."""

MAX_LABEL_DISTANCE = 0.3
"""Largest distance between a point and its label, as a share of the panel."""

LEGEND_ENTRY_POINTS = 52.0
"""Width of a legend entry beside its name: the line before it and the blank to the next column."""

MIN_TICK_GAP = 4.0
"""Pixels between the labels of two ticks."""


def load_matplotlib() -> None:
    """Import Matplotlib whatever backend the environment names: a notebook's backend may not be installed here.

    Figures are drawn without a backend, so `MPLBACKEND` has no effect on them.
    """
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib  # noqa: F401
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def drawing() -> Iterator[None]:
    """Create and save figures in this style, whatever a `matplotlibrc` file says."""
    load_matplotlib()
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        yield


def new_figure(width_inches: float, height_inches: float) -> Any:
    """Return an empty figure that makes room for its labels; to be called within `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches))


def png_of(figure: Any) -> bytes:
    """Return the figure as PNG on white, for a file."""
    stream = io.BytesIO()
    _save(figure, stream, format="png")
    return stream.getvalue()


def svg_of(figure: Any) -> str:
    """Return the figure as SVG for a page: transparent, with text that is light where the page is dark."""
    stream = io.StringIO()
    _save(figure, stream, format="svg", transparent=True, metadata={"Date": None})
    ink = f"svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:{DARK_INK}}}}}"
    _, svg, rest = stream.getvalue().partition("<svg")
    tag, end, body = rest.partition(">")
    return f"{svg}{tag}{end}<style>{ink}</style>{body.replace(INK, 'currentColor')}"


def _save(figure: Any, stream: Any, **options: Any) -> None:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(encodable(text.get_text()))
    with drawing():
        figure.savefig(stream, **options)


def encodable(text: str) -> str:
    """Escape bytes of file names that are not text, which no font has."""
    return text.encode(errors="backslashreplace").decode()


def color_map() -> Any:
    """Return Matplotlib's color map from the darkest to the lightest color."""
    load_matplotlib()
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["viridis"](np.linspace(DARKEST, LIGHTEST, 256)))


# Room for text


def text_width_inches(text: str, points: float = TEXT_POINTS) -> float:
    """Return the width of one line of text."""
    load_matplotlib()
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(encodable(text), FontProperties(size=points), False)
    return float(width) / POINTS_PER_INCH


def wrap_text(text: str, inches: float, points: float = TEXT_POINTS) -> str:
    """Break text into lines of at most that width; words that are too long for a line are broken as well."""
    letters, lines = len(text), [text]
    while letters > 1 and max(text_width_inches(line, points) for line in lines) > inches:
        letters -= max(1, letters // 16)
        lines = textwrap.wrap(text, letters) or [text]
    return "\n".join(lines)


def fit_titles(axes: Any) -> bool:
    """Break titles of the panel and its axes that are longer than the panel, which has been laid out.

    Returns whether there are any.
    """
    room = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    texts = ((axes._left_title, room.width), (axes.xaxis.label, room.width), (axes.yaxis.label, room.height))
    before = [text.get_text() for text, _ in texts]
    for text, inches in texts:
        plain = text.get_text().replace(r"\$", "$")
        text.set_text(wrap_text(plain, inches, text.get_fontsize()).replace("$", r"\$"))
    return [text.get_text() for text, _ in texts] != before


def thin_ticks(axes: Any) -> None:
    """Keep every n-th tick of the x axis of a panel that has been laid out, so that their labels do not collide."""
    from matplotlib.ticker import FixedFormatter

    axis = axes.xaxis
    low, high = sorted(axis.get_view_interval())
    shown = [
        (tick.get_loc(), tick.label1.get_text(), tick.label1.get_window_extent())
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high and tick.label1.get_visible() and tick.label1.get_text()
    ]

    def collide(step: int) -> bool:
        boxes = [box for _, _, box in shown[::step]]
        return any(right.x0 - left.x1 < MIN_TICK_GAP for left, right in pairwise(boxes))

    step = next((step for step in range(1, len(shown)) if not collide(step)), 1)
    if step > 1:
        has_names = isinstance(axis.get_major_formatter(), FixedFormatter)
        names = {"labels": [text for _, text, _ in shown[::step]]} if has_names else {}
        axis.set_ticks([place for place, _, _ in shown[::step]], **names)


def legend_below(figure: Any) -> None:
    """Add one legend with every name once below the panels; the figure grows by its height."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    beside = LEGEND_ENTRY_POINTS / POINTS_PER_INCH
    names = [wrap_text(name.replace(r"\$", "$"), figure.get_figwidth() - beside) for name in found]
    widest = max(text_width_inches(line) for name in names for line in name.split("\n"))
    columns = min(len(found), max(1, math.floor(figure.get_figwidth() / (widest + beside))))
    texts = [name.replace("$", r"\$") for name in names]
    legend = figure.legend(list(found.values()), texts, loc="outside lower center", ncols=columns)
    figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def end_labels_fit(names: Sequence[str], width_inches: float, height_inches: float) -> bool:
    """Return True if names at the ends of lines leave a panel of that size enough room."""
    widest = max((text_width_inches(name, END_POINTS) for name in names), default=0.0)
    height = len(names) * END_SPACING * END_POINTS / POINTS_PER_INCH
    return widest <= MAX_END_WIDTH * width_inches and height <= MAX_END_HEIGHT * height_inches


def label_ends(axes: Any, lines: Sequence[tuple[str, Any, Any, Any]]) -> None:
    """Write each line's name beside its last point. `lines`: name, x, y, color; the axes have been laid out."""
    transform = math.log if axes.get_yscale() == "log" else float
    low, high = map(transform, axes.get_ylim())
    lines = sorted((line for line in lines if len(line[2])), key=lambda line: line[2][-1])
    heights = [
        0.0 if transform is math.log and y[-1] <= 0 else (transform(y[-1]) - low) / (high - low or 1.0)
        for _, _, y, _ in lines
    ]
    gap = END_SPACING * END_POINTS / POINTS_PER_INCH * axes.figure.dpi / axes.get_window_extent().height
    for (name, x, _, color), height in zip(lines, spread(heights, gap, gap / 2, 1 - gap / 2), strict=True):
        axes.annotate(
            name.replace("$", r"\$"),
            (x[-1], height),
            xycoords=("data", "axes fraction"),
            xytext=(7, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=END_POINTS,
            color=color,
        )


def label_points(axes: Any, points: Sequence[tuple[float, float, str, Any]], lines: Sequence[tuple[Any, Any]]) -> None:
    """Write names near their points, clear of each other and of all points and lines.

    points: x, y, name (may be empty), color. lines: x and y of drawn lines. The axes have been laid out and stay as
    they are; a thin line leads from each name to its point.
    """
    import textalloc

    drawn: dict[str, Any] = {}
    if lines:
        drawn = {"x_lines": [list(x) for x, _ in lines], "y_lines": [list(y) for _, y in lines]}
    x, y, names, colors = map(list, zip(*(point for point in points if point[2]), strict=True))
    textalloc.allocate(
        axes,
        x,
        y,
        [name.replace("$", r"\$") for name in names],
        x_scatter=[point[0] for point in points],
        y_scatter=[point[1] for point in points],
        textsize=POINT_POINTS,
        textcolor=colors,
        linecolor=colors,
        linewidth=0.6,
        max_distance=MAX_LABEL_DISTANCE,
        avoid_label_lines_overlap=True,
        in_layout=False,
        **drawn,
    )


def spread(ascending: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Move the values as little as possible so that they lie `gap` apart; groups that collide spread evenly.

    low, high: all of them come to lie between these, if there is room.
    """

    def places(group: Sequence[float]) -> list[float]:
        length = gap * (len(group) - 1)
        lowest = max(low, min(float(np.mean(group)) - length / 2, high - length))
        return [lowest + gap * number for number in range(len(group))]

    groups: list[list[float]] = []
    for value in ascending:
        groups.append([value])
        while len(groups) > 1 and places(groups[-1])[0] - places(groups[-2])[-1] < gap:
            last = groups.pop()
            groups[-1] += last
    return [place for group in groups for place in places(group)]
