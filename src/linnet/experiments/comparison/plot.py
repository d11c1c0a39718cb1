"""Loss and accuracy of all compared runs in one picture, as in figure 1 of Gokden, arXiv 2502.13502.

A seed with which a run diverged is no part of its line: its own loss is dotted, and a cross on the axis of steps tells
where it ended.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.core.files import atomic_path
from linnet.experiments.comparison.figures import ComparedFigures

INCHES, DOTS_PER_INCH = (9.0, 5.5), 110


def draw(figures: Sequence[ComparedFigures], path: Path, title: str) -> None:
    """Draw a PNG: loss (left axis, solid) and accuracy (right axis, dashed), with bands from lowest to highest."""
    with atomic_path(path) as temporary:
        picture(figures, title).savefig(temporary, format="png")


def picture(figures: Sequence[ComparedFigures], title: str) -> Any:
    """What `draw` writes, as matplotlib's `Figure`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    loss = figure.subplots()
    accuracy = loss.twinx()
    for index, one in enumerate(figures):
        if one.outcomes:
            _draw_one(loss, accuracy, one, f"C{index}")
    limits = loss.get_ylim()
    for index, one in enumerate(figures):
        if one.broken_down:
            _draw_broken_down(loss, one, f"C{index}")
    if any(one.outcomes for one in figures):
        loss.set_ylim(limits)  # a loss that runs away would leave the others a flat line
    loss.set_title(title)
    loss.set_xlabel("step")
    loss.set_ylabel("loss of the validation set, nats per token, causal (solid, dots)")
    accuracy.set_ylabel("accuracy, causal (dashed, rings)")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0))  # as many digits as the axis' range asks for
    loss.grid(alpha=0.3)
    loss.legend(frameon=False, loc="upper center", ncols=min(len(figures), 4))
    return figure


def _draw_one(loss: Any, accuracy: Any, one: ComparedFigures, colour: str) -> None:
    steps, losses, accuracies = zip(*one.curve, strict=True)
    for axes, spreads, style, label in ((loss, losses, ".-", one.name), (accuracy, accuracies, "o--", None)):
        # Runs that were evaluated once have no line, so the points are drawn too: dots and rings.
        means = [s.mean for s in spreads]
        axes.plot(
            steps, means, style, color=colour, label=label, markersize=5, markerfacecolor=None if label else "none"
        )
        lowest, highest = [s.lowest for s in spreads], [s.highest for s in spreads]
        if len(steps) == 1:  # a band of one point has no width
            axes.vlines(steps, lowest, highest, color=colour, alpha=0.5)
        axes.fill_between(steps, lowest, highest, color=colour, alpha=0.15, linewidth=0)


def _draw_broken_down(loss: Any, one: ComparedFigures, colour: str) -> None:
    for each in one.broken_down:
        loss.plot([p.step for p in each.curve], [p.nats_per_token for p in each.curve], ".:", color=colour, linewidth=1)
    ends = [each.step for each in one.broken_down if each.step is not None]
    lost, seeds = len(one.broken_down), len(one.broken_down) + len(one.outcomes)
    loss.plot(
        ends,
        [0] * len(ends),
        "x",
        color=colour,
        transform=loss.get_xaxis_transform(),
        clip_on=False,
        label=f"{one.name}: {one.fate} with {lost} of {seeds} seeds",
    )
