"""The picture of a run: loss, learning rate and gradient norm over the steps."""

from pathlib import Path
from typing import Any

from linnet.core.files import atomic_path

INCHES, DOTS_PER_INCH = (9.0, 6.5), 110
LOSS_PERCENTILE = 98


def draw_curves(lines: list[dict[str, Any]], path: Path, title: str, causal: bool) -> None:
    """Draw the lines of `metrics.jsonl` as a PNG.

    `causal` False: the training loss is that of a pass that sees the future, and the legend says so.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH)
    figure.subplots_adjust(left=0.09, right=0.91, top=0.94, bottom=0.08, hspace=0.1)
    loss, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    loss.set_title(title)
    _draw_loss(loss, lines, causal)
    _draw_rate(rate, lines)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_loss(axes: Any, lines: list[dict[str, Any]], causal: bool) -> None:
    import numpy as np

    steps = [line["step"] for line in lines]
    training = [line["bits_per_byte"] for line in lines]
    evaluated = [line for line in lines if "validation" in line]
    points = [line["step"] for line in evaluated]
    validation = [line["validation"]["bits_per_byte"] for line in evaluated]
    whole = [line["validation"].get("whole_sequence_bits_per_byte") for line in evaluated]
    axes.plot(steps, training, color="tab:blue", alpha=0.6, linewidth=1.2, label=_training_label(causal))
    axes.plot(points, validation, color="tab:red", marker=".", label="validation, causal")
    if not causal:
        axes.plot(points, whole, color="tab:red", linestyle="--", linewidth=1, label="validation, whole sequence")
    if validation:
        axes.annotate(
            f"{validation[-1]:.3f}", (points[-1], validation[-1]), (0, -16), textcoords="offset points", ha="right"
        )
    everything = [*training, *validation]
    # The first steps of a run would leave the rest a flat line at the bottom.
    top = float(np.percentile(everything, LOSS_PERCENTILE)) if len(everything) > 1 else everything[0] + 1
    bottom = min(everything)
    margin = 0.05 * max(top - bottom, 1e-3)
    axes.set_ylim(bottom - margin, top + margin)
    axes.set_ylabel("loss, bits per byte")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _training_label(causal: bool) -> str:
    return "training" if causal else "training (the pass sees the whole sequence)"


def _draw_rate(axes: Any, lines: list[dict[str, Any]]) -> None:
    steps = [line["step"] for line in lines]
    axes.plot(steps, [line["lr"] for line in lines], color="tab:green")
    axes.set_ylabel("learning rate", color="tab:green")
    axes.set_xlabel("step")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.grid(alpha=0.3)
    norms = axes.twinx()
    norms.plot(steps, [line["gradient_norm"] for line in lines], color="tab:gray", alpha=0.6, linewidth=0.8)
    norms.set_ylabel("gradient norm", color="tab:gray")
    norms.set_yscale("log")
