"""Pictures of what an inspection found, as PNG.

Legend: `L` layers, `H` heads, `K` head width.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.present.drawing import new_figure, png_of

LEAST_INCHES, MOST_INCHES, GRID_INCHES = 0.6, 2.1, 15.0
"""Width of a head's matrix in a grid, and of the grid where these leave a choice."""

SHOWN_PERCENTILE = 99.5
"""The end of a colour scale: a few large elements would leave the rest a single colour."""

GAP = 0.06
"""Between two heads, of a head's width."""


def heat_maps(name: str, layers: Mapping[int, NDArray[np.float64]]) -> bytes:
    """Matrices `[H, K, K]` of each layer by its number: a row for each layer, with a colour scale of its own."""
    heads = max(len(x_HKK) for x_HKK in layers.values())
    inches = min(MOST_INCHES, max(LEAST_INCHES, GRID_INCHES / heads))
    figure = new_figure(heads * inches * (1 + GAP) + 1.9, len(layers) * (inches + 0.35) + 0.6)
    rows = figure.subplots(len(layers), 1, squeeze=False)[:, 0]
    for axes, (number, x_HKK) in zip(rows, layers.items(), strict=True):
        _heat_row(axes, x_HKK)
        axes.set_ylabel(f"layer {number}")
    rows[-1].set_xlabel("head", fontsize=9)
    figure.suptitle(f"{name} of every head, {_shape(layers)}")
    return png_of(figure)


def _heat_row(axes: Any, x_HKK: NDArray[np.float64]) -> None:
    heads, width = len(x_HKK), x_HKK.shape[1]
    gap = max(1, round(GAP * width))
    mosaic = np.full((width, heads * (width + gap) - gap), np.nan)
    for head, x_KK in enumerate(x_HKK):
        start = head * (width + gap)
        mosaic[:, start : start + width] = np.where(np.isfinite(x_KK), x_KK, np.nan)
    low, high, colours = colour_scale(x_HKK)
    image = axes.imshow(mosaic, vmin=low, vmax=high, cmap=colours, interpolation_stage="data")
    beyond = x_HKK[np.isfinite(x_HKK)]
    above, below = bool((beyond > high).any()), bool((beyond < low).any())
    extend = {(True, True): "both", (True, False): "max", (False, True): "min"}.get((above, below), "neither")
    axes.figure.colorbar(image, ax=axes, extend=extend, pad=0.01, fraction=0.05, aspect=12)
    axes.set_xticks([head * (width + gap) + (width - 1) / 2 for head in range(heads)], [f"{h}" for h in range(heads)])
    axes.set_yticks([0, width - 1])
    axes.tick_params(length=0, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)


def colour_scale(x: NDArray[np.float64]) -> tuple[float, float, str]:
    """Both ends of a colour scale and its colours: even about 0 where there are both signs, else one colour upwards."""
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


def singular_value_curves(singular_LHK: Mapping[int, Sequence[Sequence[float]]]) -> bytes:
    """Singular values `[H, K]`, descending, of each layer by its number: a panel for a layer, a line for a head."""
    columns = min(3, len(singular_LHK))
    lines = math.ceil(len(singular_LHK) / columns)
    figure = new_figure(4.2 * columns + 0.6, 3.0 * lines + 0.6)
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    for axes, (number, heads) in zip(panels, singular_LHK.items(), strict=False):
        for values in heads:
            positive = [value if value > 0 else math.nan for value in values]
            axes.plot(range(1, len(values) + 1), positive, linewidth=0.9, alpha=0.8)
        axes.set_yscale("log")
        axes.set_title(f"layer {number}", fontsize=10)
        axes.set_xlabel("singular value, largest first", fontsize=9)
        axes.grid(alpha=0.3)
    for axes in panels[len(singular_LHK) :]:
        axes.set_visible(False)
    figure.suptitle("Singular values of A_LM, a line for each head")
    return png_of(figure)


def moved_logits(
    whole: Mapping[int, Sequence[float]], frozen: Mapping[int, Sequence[float]], unit: str = "standard deviations"
) -> bytes:
    """Moves over the position, by the cut from which the text was changed."""
    figure = new_figure(9.0, 4.4)
    axes = figure.subplots()
    for number, (cut, moves) in enumerate(whole.items()):
        colour = f"C{number}"
        axes.plot(range(len(moves)), moves, color=colour, label=f"changed from token {cut} on")
        axes.plot(range(cut), frozen[cut], color=colour, linestyle=":", linewidth=2)
        axes.axvline(cut, color=colour, alpha=0.35, linewidth=1)
    axes.plot([], [], color="black", linestyle=":", linewidth=2, label="the same with a frozen operator")
    axes.set_xlabel("position in the window, tokens")
    axes.set_ylabel(f"RMS move of the logits, {unit}")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title("How far a change of the text to come moves earlier logits")
    return png_of(figure)


def variation_points(variation: Mapping[str, Mapping[int, float]]) -> bytes:
    """The variation of each deductive output, by name and number of the layer; none where it is 0."""
    numbers = sorted({number for layers in variation.values() for number in layers})
    figure = new_figure(max(5.5, 0.5 * len(numbers) + 3), 4.2)
    axes = figure.subplots()
    for name, layers in variation.items():
        shown = [value if value > 0 else math.nan for value in layers.values()]
        axes.plot([numbers.index(number) for number in layers], shown, marker="o", label=name)
    _whole_decades(axes, [value for layers in variation.values() for value in layers.values() if value > 0])
    axes.set_xlim(-0.5, len(numbers) - 0.5)
    axes.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    axes.set_xlabel("layer")
    axes.set_ylabel("variation over the prompts, RMS")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return png_of(figure)


def _whole_decades(axes: Any, positive: Sequence[float]) -> None:
    """A logarithmic axis from one power of ten to another."""
    if positive:
        axes.set_yscale("log")
        low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))


def _shape(layers: Mapping[int, NDArray[np.float64]]) -> str:
    widths = sorted({x_HKK.shape[1] for x_HKK in layers.values()})
    return " and ".join(f"{width} x {width}" for width in widths)
