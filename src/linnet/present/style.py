"""One look: colors, and how a Matplotlib figure becomes a picture for a file and for a page."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INK, DARK_INK = "#3c424b", "#c4c9d1"
"""Text and axes, on white and on a dark page."""

SOFT = "#8a919b"
"""What stands behind what matters, readable on both."""

PALETTE = ("#2f7bc8", "#d2691e", "#158f68", "#a35bc4", "#c9457d", "#8c8420", "#369db0", "#8f6c58")
DARKEST, LIGHTEST = 0.2, 0.86
"""Of the colors from dark to light: what is beyond is hard to see on black, or on white."""

DOTS_PER_INCH = 110
STYLE: dict[Any, Any] = {
    "figure.dpi": DOTS_PER_INCH,
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


@contextmanager
def drawing() -> Iterator[None]:
    """Figures are made, and saved, in our style."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def new_figure(width_inches: float, height_inches: float) -> Any:
    """An empty figure that makes room for its labels by itself; within `drawing`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches))


def _escape_bytes(figure: Any) -> None:
    """Names of files may have bytes that are no text, which no font has."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_text(text.get_text().encode(errors="backslashreplace").decode())


def png_of(figure: Any) -> bytes:
    """For a file: on white."""
    stream = io.BytesIO()
    _escape_bytes(figure)
    with drawing():
        figure.savefig(stream, format="png")
    return stream.getvalue()


def svg_of(figure: Any) -> str:
    """For a page: without a ground, and with ink that is light where the page is dark."""
    stream = io.StringIO()
    _escape_bytes(figure)
    with drawing():
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    ink = f"svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:{DARK_INK}}}}}"
    _, svg, rest = stream.getvalue().partition("<svg")
    tag, end, body = rest.partition(">")
    return f"{svg}{tag}{end}<style>{ink}</style>{body.replace(INK, 'currentColor')}"


def shade(share: float) -> Any:
    """A color between the darkest, 0, and the lightest, 1."""
    return shades()(share)


def shades() -> Any:
    """All of them, as Matplotlib's color map."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from numpy import linspace

    return ListedColormap(colormaps["viridis"](linspace(DARKEST, LIGHTEST, 256)))
