"""Figures that become PNG files: one size of dots, one layout, no window."""

import io
from typing import Any

DOTS_PER_INCH = 110


def new_figure(width_inches: float, height_inches: float) -> Any:
    """An empty Matplotlib figure that makes room for its labels by itself."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), dpi=DOTS_PER_INCH, layout="constrained")


def png_of(figure: Any) -> bytes:
    """The figure as a PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
