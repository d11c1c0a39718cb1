"""Loss and accuracy of all compared runs in one picture, as in figure 1 of Gokden, arXiv 2502.13502."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.evaluation.comparison.figures import ComparedFigures
from linnet.files import atomic_path

INCHES, DOTS_PER_INCH = (9.0, 5.5), 110


def draw(figures: Sequence[ComparedFigures], path: Path, title: str) -> None:
    """Draw a PNG: loss (left axis, solid) and accuracy (right axis, dashed), with bands from lowest to highest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH)
    figure.subplots_adjust(left=0.08, right=0.92, top=0.93, bottom=0.1)
    loss = figure.subplots()
    accuracy = loss.twinx()
    for index, one in enumerate(figures):
        _draw_one(loss, accuracy, one, f"C{index}")
    loss.set_title(title)
    loss.set_xlabel("step")
    loss.set_ylabel("loss of the validation set, nats per token, causal (solid)")
    accuracy.set_ylabel("accuracy, causal (dashed)")
    accuracy.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    loss.grid(alpha=0.3)
    loss.legend(frameon=False, loc="upper center", ncols=min(len(figures), 4))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_one(loss: Any, accuracy: Any, one: ComparedFigures, colour: str) -> None:
    steps, losses, accuracies = zip(*one.curve, strict=True)
    for axes, spreads, style in ((loss, losses, "-"), (accuracy, accuracies, "--")):
        axes.plot(steps, [s.mean for s in spreads], style, color=colour, label=one.name if axes is loss else None)
        axes.fill_between(
            steps, [s.lowest for s in spreads], [s.highest for s in spreads], color=colour, alpha=0.15, linewidth=0
        )
