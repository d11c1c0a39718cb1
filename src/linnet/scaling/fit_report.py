"""The result of `linnet plan fit`: tables, and pictures of the law, of the three approaches and of the predictions."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture, Result
from linnet.present.style import INK, SOFT
from linnet.present.table import Table
from linnet.scaling.candidate import COUNTING_DESCRIPTIONS
from linnet.scaling.fit import COVERAGE, CountedFit, Exponents, Fit
from linnet.scaling.frontier import parabola
from linnet.scaling.law import FLOPS_FACTOR, Law, ParametricLaw, published_laws
from linnet.scaling.parametric import CONSTANTS
from linnet.scaling.reliability import HeldOutPrediction, Interval
from linnet.scaling.runs import Points

INTERVAL = f"{COVERAGE:.0%} interval"
APPROACHES = {
    "1": "1, envelope of the curves",
    "2": "2, runs of equal FLOPs",
    "3": "3, parametric",
}
MAX_RUNS_SHOWN = 12

ZERO = 1e-12
"""An E below it counts as 0: the fit is of log E, which cannot reach 0."""

UNDETERMINED = 1e6
"""Ratio of an interval's ends from which on the runs do not determine the constant."""

MAX_SIZE_FACTOR = 10.0
"""Ratio of the ends of the best size's interval from which on the runs do not determine it."""

MARGIN = 1.3
"""Factor by which a line extends beyond the points."""

MAX_MARKS = 30
FLOPS = Axis("training FLOPs", "log", numbers.scientific)
LOSS = Axis("loss, nats per token")
BEST_SIZE = Axis("best number of parameters", "log", numbers.metric)
SINGLE, PAIR = (8.0, 4.8), (6.0, 4.8)
"""Inches of a single panel, and of one of two."""


@dataclass(frozen=True)
class FitReport(Result):
    """A fit, the law as it is stored, and the number of runs that were read."""

    fit: Fit
    law: ParametricLaw
    runs: int

    def title(self) -> str:
        return "Scaling law"

    def facts(self) -> dict[str, str]:
        return {"runs": f"{len(self.fit.runs)} of {self.runs} runs"}

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = self.law.model_dump(mode="json")
        return plain

    def tables(self) -> list[Table]:
        """Return the law, the exponents by approach and by way of counting, and the held-out runs."""
        fit = self.fit
        tables = [_law_table(fit), _exponent_table(fit)]
        if len(fit.by_counting) + len(fit.failed) > 1:
            tables.append(_counting_table(fit))
        return tables if fit.prediction is None else [*tables, *_prediction_tables(fit.prediction)]

    def plots(self) -> list[Picture]:
        fit = self.fit
        sizes = _determined_sizes(fit.chosen)
        pictures = [_law_picture(fit, sizes), _frontier_picture(fit, sizes)]
        if isinstance(fit.chosen.envelope, Exponents):
            pictures.append(_envelope_picture(fit))
        if isinstance(fit.chosen.isoflop, Exponents):
            pictures.append(_isoflop_picture(fit))
        if fit.prediction is not None:
            pictures.insert(0, _prediction_picture(fit.prediction, fit.chosen.points))
        return pictures


def format_constant(value: float) -> str:
    """Format a constant of any magnitude with four digits."""
    if abs(value) < ZERO:
        return "0"
    return numbers.significant(value, 4) if 1e-4 <= abs(value) < 1e6 else numbers.scientific(value, 4)


def format_interval(interval: Interval | None) -> str:
    """Format both ends of an interval; if they are so far apart that no digit counts, say so instead."""
    if interval is None:
        return ""
    low, high = interval
    if high <= UNDETERMINED * abs(low):
        return f"{format_constant(low)} to {format_constant(high)}"
    return f"below {format_constant(high)}" if high < UNDETERMINED else "not determined"


def _law_table(fit: Fit) -> Table:
    law, fitted = fit.chosen.law, fit.chosen.fitted
    intervals = law.intervals or {}
    rows = [(name, format_constant(getattr(law, name)), format_interval(intervals.get(name))) for name in CONSTANTS]
    rows.append(("objective", f"{fitted.objective:.5g}", ""))
    meaning = (
        f"L = E + A / N^alpha + B / D^beta, N: {COUNTING_DESCRIPTIONS[law.counted]}. {len(fit.runs)} runs;"
        f" {fitted.reached} of {fitted.starts} starts reached this optimum, none a lower one. Objective: sum of Huber"
        " losses of log L."
    )
    meaning = " ".join([meaning, *(f"Warning: {line}." for line in law.warnings)])
    return Table("Law", ("", "value", INTERVAL), rows, meaning)


def _exponent_table(fit: Fit) -> Table:
    rows, reasons = [], []
    for number, found in fit.chosen.approaches.items():
        if isinstance(found, str):
            rows.append((APPROACHES[number], "", "", "", ""))
            reasons.append(f"Approach {number} {found}.")
        else:
            a, b = format_interval(found.a_interval), format_interval(found.b_interval)
            rows.append((APPROACHES[number], f"{found.a:.3f}", a, f"{found.b:.3f}", b))
    meaning = " ".join(["The best size for C training FLOPs grows as C^a, its tokens as C^b.", *reasons])
    return Table("Exponents", ("approach", "a", INTERVAL, "b", INTERVAL), rows, meaning)


def _counting_table(fit: Fit) -> Table:
    rows = []
    for counted, one in fit.by_counting.items():
        low, high = one.points.parameters.min(), one.points.parameters.max()
        sizes = f"{numbers.metric(low)} to {numbers.metric(high)}"
        constants = (format_constant(getattr(one.law, name)) for name in CONSTANTS)
        exponent, objective = f"{one.parametric.a:.3f}", f"{one.fitted.objective:.4g}"
        rows.append((counted.replace("_", " "), sizes, *constants, exponent, objective))
    lines = [
        "The same runs with their parameters counted in several ways, which decides the exponents of small models."
    ]
    lines += [f"{counted.replace('_', ' ')}: {reason}." for counted, reason in fit.failed.items()]
    return Table("Ways of counting", ("", "sizes", *CONSTANTS, "a", "objective"), rows, " ".join(lines))


def _prediction_tables(found: HeldOutPrediction) -> list[Table]:
    rows = [
        ("fitted up to", f"{numbers.scientific(found.flops_fitted)} FLOPs"),
        ("held out up to", f"{numbers.scientific(float(found.held.flops.max()))} FLOPs"),
        ("runs held out", f"{len(found.held)}"),
        ("RMS error", f"{found.rms_error:.2%}"),
        ("mean error", f"{found.errors_P.mean():+.2%}"),
        ("largest error", f"{abs(found.errors_P).max():.2%}"),
        ("RMS error of no progress", f"{found.rms_error_of_no_progress:.2%}"),
        ("inside their intervals", f"{found.inside} of {len(found.held)}"),
    ]
    meaning = (
        "Predicted against measured loss of the runs with the most FLOPs, to which the law above was not fitted. No"
        " progress: the lowest fitted loss is predicted for all. The intervals are the law's; single runs scatter more."
    )
    runs = [
        (
            numbers.metric(run["parameters"]),
            numbers.metric(run["tokens"]),
            numbers.scientific(run["training_flops"]),
            f"{run['loss']:.4f}",
            f"{run['predicted']:.4f}",
            format_interval((run["low"], run["high"])),
        )
        for run in found.to_dict()["runs"][-MAX_RUNS_SHOWN:]
    ]
    columns = ("parameters", "tokens", "FLOPs", "measured", "predicted", INTERVAL)
    shown = f"The runs with the most FLOPs, {MAX_RUNS_SHOWN} at most; all are in the law's file."
    return [Table("Prediction", ("", ""), rows, meaning), Table("Held out", columns, runs, shown)]


def _law_picture(fit: Fit, sizes: "DeterminedSizes") -> Picture:
    points, law = fit.chosen.points, fit.chosen.law
    budgets, *_ = sizes
    runs = Series(points.flops, points.loss, style="o", values=points.parameters)
    best = Series(
        budgets, [law.lowest_loss(flops=budget) for budget in budgets], "law: the best for the FLOPs", color=INK
    )
    predicted_P = law.loss(points.parameters, points.tokens)
    predicted = Series(points.loss, predicted_P, style="o", values=points.parameters)
    panels = [
        Panel(FLOPS, LOSS, [runs, best]),
        Panel(Axis("measured loss"), Axis("loss by the law"), [predicted], diagonal=True),
    ]
    caption = (
        "Left: the runs, and the lowest loss that the law gives for their FLOPs; no run should lie far below the line."
        f" Right: points above the diagonal have a lower loss than the law predicts.{_undetermined(budgets)}"
    )
    return Picture("law", "The law and its runs", Plot(panels, PAIR, columns=2, values="parameters"), caption)


DeterminedSizes = tuple[Numbers, Numbers, Numbers, Numbers]
"""Budgets whose best size the runs determine, that size, and the ends of its interval (`_determined_sizes`)."""


def _determined_sizes(fit: CountedFit) -> DeterminedSizes:
    """Return the budgets between the runs' whose best size they determine, that size, and the ends of its interval.

    Shapes: `C` budgets, `K` those with a narrow interval, `R` resamples.
    """
    flops = fit.points.flops
    budgets_C = np.geomspace(flops.min(), flops.max(), 100)
    _, a, b, alpha, beta = (column[:, None] for column in fit.samples_R5.T)
    with np.errstate(all="ignore"):  # in a resample constants may be huge or 0
        exponent = beta / (alpha + beta)
        log_scale = (np.log(alpha) + np.log(a) - np.log(beta) - np.log(b)) / (alpha + beta)
        log_sizes_RC = log_scale + exponent * np.log(budgets_C / FLOPS_FACTOR)
    log_sizes_RC = np.nan_to_num(log_sizes_RC, nan=np.inf)
    with np.errstate(all="ignore"):
        low_C, high_C = np.exp(np.quantile(log_sizes_RC, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0))
    known_C = high_C < MAX_SIZE_FACTOR * low_C
    budgets_K, low_K, high_K = budgets_C[known_C], low_C[known_C], high_C[known_C]
    best_K = np.array([_best_size(fit.law, budget) for budget in budgets_K])
    inside_K = (low_K <= best_K) & (best_K <= high_K)
    return budgets_K[inside_K], best_K[inside_K], low_K[inside_K], high_K[inside_K]


def _best_size(law: Law, budget: float) -> float:
    """Return the best size for a budget; nan where the law's constants are beyond the range of numbers."""
    try:
        return law.best(flops=budget).parameters
    except UserError:
        return math.nan


def _undetermined(budgets: Numbers) -> str:
    return "" if len(budgets) else " No line: the runs do not determine the best size for any of these FLOPs."


def _frontier_picture(fit: Fit, sizes: DeterminedSizes) -> Picture:
    """Draw the best size over the budget by each approach, as far as it is determined, and by the published laws."""
    chosen = fit.chosen
    flops = chosen.points.flops
    budgets = np.geomspace(flops.min() / MARGIN, flops.max() * MARGIN, 100)
    lines = [Series(flops, chosen.points.parameters, "runs", "o", SOFT, faint=True)]
    for number, (title, found) in enumerate((("approach 1", chosen.envelope), ("approach 2", chosen.isoflop))):
        if isinstance(found, Exponents) and found.frontier is not None:
            frontier = found.frontier
            marks = slice(None, None, max(1, len(frontier.flops_M) // MAX_MARKS))
            own = np.geomspace(frontier.flops_M.min(), frontier.flops_M.max(), 100)
            lines.append(Series(own, frontier.parameters(own), f"{title}: a = {found.a:.3f}", color=number))
            lines.append(Series(frontier.flops_M[marks], frontier.parameters_M[marks], style="o", color=number))
    known, best, low, high = sizes
    if len(known):
        name = f"approach 3: a = {chosen.parametric.a:.3f}"
        lines.append(Series(known, best, name, color=INK, low=low, high=high))
    for law, style in zip(published_laws(), (":", "--", "-."), strict=False):
        name = law.name if law.counted == chosen.law.counted else f"{law.name}, {law.counted.replace('_', ' ')}"
        lines.append(Series(budgets, [law.best(flops=budget).parameters for budget in budgets], name, style, SOFT))
    caption = (
        "The best size for a number of FLOPs by each approach, and by the published laws (gray). Approaches are drawn"
        f" where the runs determine them; the band of approach 3 is its {COVERAGE:.0%} interval.{_undetermined(known)}"
    )
    return Picture("frontier", "The best size for a budget", Plot([Panel(FLOPS, BEST_SIZE, lines)], SINGLE), caption)


def _envelope_picture(fit: Fit) -> Picture:
    found = fit.chosen.envelope
    assert isinstance(found, Exponents) and found.frontier is not None
    logs = np.log([run.parameters[fit.settings.counted] for run in fit.runs])
    colors = ((logs - logs.min()) / (np.ptp(logs) or 1.0)).tolist()
    lines = [Series(run.flops_T, run.loss_T, color=one, faint=True) for run, one in zip(fit.runs, colors, strict=True)]
    lines.append(Series(found.frontier.flops_M, found.frontier.loss_M, "envelope, used", ".", INK))
    caption = (
        "The loss along each run; the darker, the smaller the model. The envelope counts if both a smaller and a larger"
        " size were measured as well."
    )
    panel = Panel(Axis("training FLOPs so far", "log", numbers.scientific), LOSS, lines)
    return Picture("envelope", "Approach 1: the envelope of the curves", Plot([panel], SINGLE), caption)


def _isoflop_picture(fit: Fit) -> Picture:
    groups, drawn = fit.chosen.groups, []
    flops = [float(group.flops.mean()) for group in groups]
    logs = np.log(flops)
    colors = ((logs - logs.min()) / (np.ptp(logs) or 1.0)).tolist()
    for group, color, budget in zip(groups, colors, flops, strict=True):
        name = f"{numbers.scientific(budget, 2)} FLOPs"
        drawn.append(Series(group.parameters, group.loss, name, style="o", color=color))
        found = parabola(group)
        if found is not None:
            sizes = np.geomspace(group.parameters.min(), group.parameters.max(), 60)
            drawn.append(Series(sizes, found(sizes), color=color))
            drawn.append(Series([found.parameters], [found.least], style="x", color=1, large=True))
    caption = (
        "One color for each group of equal FLOPs; the cross marks the lowest point of its parabola. A group without a"
        " line has no minimum between its sizes."
    )
    panel = Panel(Axis("parameters", "log", numbers.metric), LOSS, drawn)
    return Picture("isoflop", "Approach 2: runs of equal FLOPs", Plot([panel], SINGLE), caption)


def _prediction_picture(found: HeldOutPrediction, points: Points) -> Picture:
    low, high = np.minimum(found.low_P, found.predicted_P), np.maximum(found.high_P, found.predicted_P)
    over_flops = [
        Series(points.flops, points.loss, "fitted", "o", SOFT, faint=True),
        Series(found.held.flops, found.held.loss, "held out, measured", "o"),
        Series(found.held.flops, found.predicted_P, "held out, predicted", "_", 1, low, high, large=True),
    ]
    predicted = Series(found.held.loss, found.predicted_P, "", "o", 1, low, high)
    panels = [
        Panel(FLOPS, LOSS, over_flops, rules=[Rule(found.flops_fitted, style=":", upright=True)]),
        Panel(Axis("measured loss"), Axis("predicted loss"), [predicted], diagonal=True),
    ]
    caption = (
        f"A law fitted to the runs left of the dotted line predicts those right of it: RMS error {found.rms_error:.2%}."
        " Bars: the law's own interval, from resampled runs. Right: the held-out runs alone; a perfect prediction lies"
        " on the diagonal."
    )
    return Picture("held_out", "Larger runs, predicted from smaller ones", Plot(panels, PAIR, columns=2), caption)
