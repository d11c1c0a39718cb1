"""Heat maps of matrices: a row for each layer, a square for each head.

Legend: `H` heads, `K` head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.present.style import drawing, new_figure

LEAST_INCHES, MOST_INCHES, GRID_INCHES = 0.6, 2.1, 15.0
"""Width of a head's matrix in a grid, and of the grid where these leave a choice."""

SHOWN_PERCENTILE = 99.5
"""The end of a color scale: a few large elements would leave the rest a single color."""

GAP = 0.06
"""Between two heads, of a head's width."""


@dataclass(frozen=True)
class HeatMaps:
    """MuonParameter `[H, K, K]` of each layer by its number; each layer has a color scale of its own."""

    layers: Mapping[int, NDArray[np.float64]]

    def figure(self) -> Any:
        """As Matplotlib's `Figure`."""
        with drawing():
            heads = max(len(x_HKK) for x_HKK in self.layers.values())
            inches = min(MOST_INCHES, max(LEAST_INCHES, GRID_INCHES / heads))
            figure = new_figure(heads * inches * (1 + GAP) + 1.9, len(self.layers) * (inches + 0.35) + 0.3)
            rows = figure.subplots(len(self.layers), 1, squeeze=False)[:, 0]
            for axes, (number, x_HKK) in zip(rows, self.layers.items(), strict=True):
                _heat_row(axes, x_HKK)
                axes.set_ylabel(f"layer {number}")
            rows[-1].set_xlabel("head")
            return figure


def _heat_row(axes: Any, x_HKK: NDArray[np.float64]) -> None:
    heads, width = len(x_HKK), x_HKK.shape[1]
    gap = max(1, round(GAP * width))
    mosaic = np.full((width, heads * (width + gap) - gap), np.nan)
    for head, x_KK in enumerate(x_HKK):
        start = head * (width + gap)
        mosaic[:, start : start + width] = np.where(np.isfinite(x_KK), x_KK, np.nan)
    low, high, colors = color_scale(x_HKK)
    image = axes.imshow(mosaic, vmin=low, vmax=high, cmap=colors, interpolation_stage="data")
    beyond = x_HKK[np.isfinite(x_HKK)]
    above, below = bool((beyond > high).any()), bool((beyond < low).any())
    extend = {(True, True): "both", (True, False): "max", (False, True): "min"}.get((above, below), "neither")
    bar = axes.figure.colorbar(image, ax=axes, extend=extend, pad=0.01, fraction=0.05, aspect=12)
    bar.outline.set_visible(False)
    axes.set_xticks([head * (width + gap) + (width - 1) / 2 for head in range(heads)], [f"{h}" for h in range(heads)])
    axes.set_yticks([0, width - 1])
    axes.tick_params(length=0, labelsize=8)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def color_scale(x: NDArray[np.float64]) -> tuple[float, float, str]:
    """Both ends of a color scale and its colors: even about 0 where there are both signs, else one color upwards."""
    finite = x[np.isfinite(x)]
    if not finite.size:
        return 0.0, 1.0, "viridis"
    if finite.min() < 0 < finite.max():
        limit = float(np.percentile(np.abs(finite), SHOWN_PERCENTILE)) or float(np.abs(finite).max())
        return -limit, limit, "RdBu_r"
    if finite.min() >= 0:
        low, high = float(finite.min()), float(np.percentile(finite, SHOWN_PERCENTILE))
    else:
        low, high = float(np.percentile(finite, 100 - SHOWN_PERCENTILE)), float(finite.max())
    return (low, high, "viridis") if low < high else (low, low + (abs(low) or 1.0), "viridis")
