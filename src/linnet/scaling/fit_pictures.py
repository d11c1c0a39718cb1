"""Pictures of a fit: the law among its points, the three approaches, and what it predicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.present.drawing import new_figure, png_of
from linnet.present.report import Picture
from linnet.scaling.fit import Exponents, Fit
from linnet.scaling.isoflop import parabola
from linnet.scaling.law import Law

Array = NDArray[np.float64]

COLOURS = "viridis"
BEYOND = 1.3
"""How far a line is drawn past the points, as a factor."""


def fit_pictures(fit: Fit, published: Sequence[Law]) -> list[Picture]:
    """All that the fit has something to show for."""
    found = [_law_picture(fit), _frontier_picture(fit, published)]
    if isinstance(fit.chosen.envelope, Exponents):
        found.append(_envelope_picture(fit))
    if isinstance(fit.chosen.isoflop, Exponents):
        found.append(_isoflop_picture(fit))
    if fit.prediction is not None:
        found.insert(0, _prediction_picture(fit))
    return found


def _law_picture(fit: Fit) -> Picture:
    chosen = fit.chosen
    points, law = chosen.points, chosen.law
    figure = new_figure(12.0, 4.8)
    left, right = figure.subplots(1, 2)
    dots = _dots(left, points.flops, points.loss, points.parameters)
    budgets = _range(points.flops)
    left.plot(
        budgets, [law.loss_of_flops(flops) for flops in budgets], color="black", label="law: the best for the FLOPs"
    )
    left.legend(frameon=False)
    _label(left, "training FLOPs", "loss, nats per token")
    predicted = law.loss(points.parameters, points.tokens)
    _dots(right, points.loss, predicted, points.parameters)
    ends = [float(points.loss.min()), float(points.loss.max())]
    right.plot(ends, ends, color="black", linewidth=1)
    _label(right, "measured loss", "loss by the law", log=False)
    figure.colorbar(dots, ax=[left, right], label="parameters", pad=0.01)
    caption = (
        "Left: the runs, and the lowest loss that the law gives for their FLOPs; no run should lie far below the line."
        " Right: points above the diagonal did better than the law says."
    )
    return Picture("law", "The law and its runs", png_of(figure), caption)


def _frontier_picture(fit: Fit, published: Sequence[Law]) -> Picture:
    chosen = fit.chosen
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    budgets = _range(chosen.points.flops)
    axes.scatter(chosen.points.flops, chosen.points.parameters, s=8, color="lightgray", label="runs")
    for number, (title, found) in enumerate((("approach 1", chosen.envelope), ("approach 2", chosen.isoflop))):
        if isinstance(found, Exponents) and found.frontier is not None:
            colour = f"C{number}"
            axes.plot(budgets, found.frontier.parameters(budgets), color=colour, label=f"{title}: a = {found.a:.3f}")
            marks = _thinned(found.frontier.flops_M)
            axes.scatter(found.frontier.flops_M[marks], found.frontier.parameters_M[marks], color=colour, s=22)
    best = [chosen.law.of_flops(flops).parameters for flops in budgets]
    axes.plot(budgets, best, color="black", label=f"approach 3: a = {chosen.parametric.a:.3f}")
    for law, style in zip(published, (":", "--", "-."), strict=False):
        name = law.name if law.counted == chosen.law.counted else f"{law.name}, {law.counted.replace('_', ' ')}"
        axes.plot(budgets, [law.of_flops(flops).parameters for flops in budgets], style, color="gray", label=name)
    _label(axes, "training FLOPs", "best number of parameters")
    axes.legend(frameon=False)
    caption = "The size on which so many FLOPs are best spent, by each approach, and by the published laws (gray)."
    return Picture("frontier", "The best size for a budget", png_of(figure), caption)


def _envelope_picture(fit: Fit) -> Picture:
    found = fit.chosen.envelope
    assert isinstance(found, Exponents) and found.frontier is not None, "approach 1 was not possible"
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    colour = _colours([run.parameters[fit.settings.counted] for run in fit.runs])
    for run in fit.runs:
        axes.plot(run.flops_T, run.loss_T, color=colour.to_rgba(run.parameters[fit.settings.counted]), linewidth=1)
    axes.plot(found.frontier.flops_M, found.frontier.loss_M, ".", color="black", markersize=3, label="envelope, used")
    figure.colorbar(colour, ax=axes, label="parameters", pad=0.01)
    axes.legend(frameon=False)
    _label(axes, "training FLOPs so far", "loss, nats per token")
    caption = "The loss along each run. The envelope counts where both a smaller and a larger size were measured too."
    return Picture("envelope", "Approach 1: the envelope of the curves", png_of(figure), caption)


def _isoflop_picture(fit: Fit) -> Picture:
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    groups = fit.chosen.groups
    colour = _colours([float(group.flops.mean()) for group in groups])
    for group in groups:
        shade = colour.to_rgba(float(group.flops.mean()))
        axes.scatter(group.parameters, group.loss, color=shade, s=14)
        found = parabola(group)
        if found is not None:
            sizes = np.geomspace(group.parameters.min(), group.parameters.max(), 60)
            axes.plot(sizes, found(sizes), color=shade, linewidth=1.2)
            axes.plot([found.parameters], [found.least], "x", color="tab:red")
    figure.colorbar(colour, ax=axes, label="training FLOPs", pad=0.01)
    _label(axes, "parameters", "loss, nats per token")
    caption = (
        "A colour for each group of equal FLOPs; red: its parabola is lowest there. No line: not between its sizes."
    )
    return Picture("isoflop", "Approach 2: runs of equal FLOPs", png_of(figure), caption)


def _prediction_picture(fit: Fit) -> Picture:
    found, points = fit.prediction, fit.chosen.points
    assert found is not None, "nothing held out"
    figure = new_figure(12.0, 4.8)
    left, right = figure.subplots(1, 2)
    left.scatter(points.flops, points.loss, s=14, color="lightgray", label="fitted")
    left.scatter(found.held.flops, found.held.loss, s=16, color="tab:blue", label="held out, measured")
    bars = np.maximum(0, [found.predicted_P - found.low_P, found.high_P - found.predicted_P])
    style = {"fmt": "_", "color": "tab:red", "elinewidth": 1, "markersize": 9}
    left.errorbar(found.held.flops, found.predicted_P, bars, label="held out, predicted", **style)
    left.axvline(found.flops_known, color="black", linestyle=":", linewidth=1)
    _label(left, "training FLOPs", "loss, nats per token")
    left.legend(frameon=False)
    right.errorbar(found.held.loss, found.predicted_P, bars, fmt="o", color="tab:red", markersize=4, elinewidth=1)
    ends = [float(min(found.held.loss.min(), found.low_P.min())), float(max(found.held.loss.max(), found.high_P.max()))]
    right.plot(ends, ends, color="black", linewidth=1)
    _label(right, "measured loss", "predicted loss", log=False)
    caption = (
        f"A law fitted to the runs left of the dotted line predicts those right of it: RMS error {found.rms_error:.2%}."
        " Bars: the law's own interval, from resampled runs. Right: the held-out runs alone; the diagonal is a perfect"
        " prediction."
    )
    return Picture("held_out", "Larger runs, predicted from smaller ones", png_of(figure), caption)


def _dots(axes: Any, x: Array, y: Array, parameters: Array) -> Any:
    from matplotlib.colors import LogNorm

    norm = LogNorm(float(parameters.min()), float(parameters.max()))
    return axes.scatter(x, y, c=parameters, cmap=COLOURS, norm=norm, s=16)


def _colours(values: Sequence[float]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    return ScalarMappable(LogNorm(min(values), max(values)), COLOURS)


def _label(axes: Any, x: str, y: str, log: bool = True) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    if log:
        axes.set_xscale("log")
        if "parameters" in y:
            axes.set_yscale("log")


def _range(values: Array) -> Array:
    return np.geomspace(values.min() / BEYOND, values.max() * BEYOND, 100)


def _thinned(values: Array, most: int = 30) -> slice:
    return slice(None, None, max(1, len(values) // most))
