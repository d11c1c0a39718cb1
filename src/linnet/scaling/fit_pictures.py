"""Pictures of a fit: the law among its points, the three approaches, and what it predicts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture
from linnet.present.style import INK, SOFT
from linnet.scaling.fit import Exponents, Fit
from linnet.scaling.frontier import Frontier, parabola
from linnet.scaling.holdout import HeldOutPrediction
from linnet.scaling.law import Law
from linnet.scaling.points import Points

Array = NDArray[np.float64]

BEYOND = 1.3
"""How far a line is drawn past the points, as a factor."""

FLOPS = Axis("training FLOPs", "log", numbers.scientific)
LOSS = Axis("loss, nats per token")
BEST_SIZE = Axis("best number of parameters", "log", numbers.metric)
WIDE, PAIR = (8.0, 4.8), (6.0, 4.8)
"""Inches of a panel alone, and of one of two."""


def fit_pictures(fit: Fit, published: Sequence[Law]) -> list[Picture]:
    """All that the fit has something to show for."""
    found = [_law_picture(fit), _frontier_picture(fit, published)]
    curves = fit.chosen.envelope
    if isinstance(curves, Exponents) and curves.frontier is not None:
        found.append(_envelope_picture(fit, curves.frontier))
    if isinstance(fit.chosen.isoflop, Exponents):
        found.append(_isoflop_picture(fit))
    if fit.prediction is not None:
        found.insert(0, _prediction_picture(fit.prediction, fit.chosen.points))
    return found


def _law_picture(fit: Fit) -> Picture:
    points, law = fit.chosen.points, fit.chosen.law
    budgets = _range(points.flops)
    runs = Series(points.flops, points.loss, style="o", values=points.parameters)
    best = Series(budgets, [law.loss_of_flops(flops) for flops in budgets], "law: the best for the FLOPs", color=INK)
    told = Series(points.loss, law.loss(points.parameters, points.tokens), style="o", values=points.parameters)
    panels = [
        Panel(FLOPS, LOSS, [runs, best]),
        Panel(Axis("measured loss"), Axis("loss by the law"), [told], diagonal=True),
    ]
    caption = (
        "Left: the runs, and the lowest loss that the law gives for their FLOPs; no run should lie far below the line."
        " Right: points above the diagonal did better than the law says."
    )
    return Picture("law", "The law and its runs", Plot(panels, PAIR, columns=2, values="parameters"), caption)


def _frontier_picture(fit: Fit, published: Sequence[Law]) -> Picture:
    chosen = fit.chosen
    budgets = _range(chosen.points.flops)
    drawn = [Series(chosen.points.flops, chosen.points.parameters, "runs", "o", SOFT, faint=True)]
    for number, (title, found) in enumerate((("approach 1", chosen.envelope), ("approach 2", chosen.isoflop))):
        if isinstance(found, Exponents) and found.frontier is not None:
            marks = _thinned(found.frontier.flops_M)
            line = found.frontier.parameters(budgets)
            drawn.append(Series(budgets, line, f"{title}: a = {found.a:.3f}", color=number))
            points = found.frontier.flops_M[marks], found.frontier.parameters_M[marks]
            drawn.append(Series(*points, style="o", color=number))
    best = [chosen.law.of_flops(flops).parameters for flops in budgets]
    drawn.append(Series(budgets, best, f"approach 3: a = {chosen.parametric.a:.3f}", color=INK))
    for law, style in zip(published, (":", "--", "-."), strict=False):
        name = law.name if law.counted == chosen.law.counted else f"{law.name}, {law.counted.replace('_', ' ')}"
        drawn.append(Series(budgets, [law.of_flops(flops).parameters for flops in budgets], name, style, SOFT))
    caption = "The size on which so many FLOPs are best spent, by each approach, and by the published laws (gray)."
    return Picture("frontier", "The best size for a budget", Plot([Panel(FLOPS, BEST_SIZE, drawn)], WIDE), caption)


def _envelope_picture(fit: Fit, found: Frontier) -> Picture:
    shares = _shares([run.parameters[fit.settings.counted] for run in fit.runs])
    drawn = [Series(run.flops_T, run.loss_T, color=one, faint=True) for run, one in zip(fit.runs, shares, strict=True)]
    drawn.append(Series(found.flops_M, found.loss_M, "envelope, used", ".", INK))
    caption = (
        "The loss along each run; the darker, the smaller the model. The envelope counts where both a smaller and a"
        " larger size were measured too."
    )
    panel = Panel(Axis("training FLOPs so far", "log", numbers.scientific), LOSS, drawn)
    return Picture("envelope", "Approach 1: the envelope of the curves", Plot([panel], WIDE), caption)


def _isoflop_picture(fit: Fit) -> Picture:
    groups, drawn = fit.chosen.groups, []
    flops = [float(group.flops.mean()) for group in groups]
    for group, share, spent in zip(groups, _shares(flops), flops, strict=True):
        name = f"{numbers.scientific(spent, 2)} FLOPs"
        drawn.append(Series(group.parameters, group.loss, name, style="o", color=share))
        found = parabola(group)
        if found is not None:
            sizes = np.geomspace(group.parameters.min(), group.parameters.max(), 60)
            drawn.append(Series(sizes, found(sizes), color=share))
            drawn.append(Series([found.parameters], [found.least], style="x", color=1, large=True))
    caption = (
        "A color for each group of equal FLOPs; the cross: its parabola is lowest there. No line: not between its"
        " sizes."
    )
    panel = Panel(Axis("parameters", "log", numbers.metric), LOSS, drawn)
    return Picture("isoflop", "Approach 2: runs of equal FLOPs", Plot([panel], WIDE), caption)


def _prediction_picture(found: HeldOutPrediction, points: Points) -> Picture:
    low, high = np.minimum(found.low_P, found.predicted_P), np.maximum(found.high_P, found.predicted_P)
    over_flops = [
        Series(points.flops, points.loss, "fitted", "o", SOFT, faint=True),
        Series(found.held.flops, found.held.loss, "held out, measured", "o"),
        Series(found.held.flops, found.predicted_P, "held out, predicted", "_", 1, low, high, large=True),
    ]
    known = Rule(found.flops_known, style=":", upright=True)
    told = Series(found.held.loss, found.predicted_P, "", "o", 1, low, high)
    panels = [
        Panel(FLOPS, LOSS, over_flops, rules=[known]),
        Panel(Axis("measured loss"), Axis("predicted loss"), [told], diagonal=True),
    ]
    caption = (
        f"A law fitted to the runs left of the dotted line predicts those right of it: RMS error {found.rms_error:.2%}."
        " Bars: the law's own interval, from resampled runs. Right: the held-out runs alone; the diagonal is a perfect"
        " prediction."
    )
    return Picture("held_out", "Larger runs, predicted from smaller ones", Plot(panels, PAIR, columns=2), caption)


def _shares(values: Sequence[float]) -> list[float]:
    """Where each lies between the least and the largest, in their logarithm."""
    logs = np.log(values)
    return [float(share) for share in (logs - logs.min()) / (np.ptp(logs) or 1.0)]


def _range(values: Array) -> Array:
    return np.geomspace(values.min() / BEYOND, values.max() * BEYOND, 100)


def _thinned(values: Array, most: int = 30) -> slice:
    return slice(None, None, max(1, len(values) // most))
