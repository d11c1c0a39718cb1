"""A fit as tables, and as the law's file."""

from typing import Any

from linnet.present import numbers
from linnet.present.table import Table
from linnet.scaling.counts import NGRAM
from linnet.scaling.determined import Interval
from linnet.scaling.fit import CONSTANTS, COVERAGE, CountedFit, Fit
from linnet.scaling.holdout import HeldOutPrediction
from linnet.scaling.law import ParametricLaw

INTERVAL = f"{COVERAGE:.0%} interval"
APPROACHES = {
    "1": "1, envelope of the curves",
    "2": "2, runs of equal FLOPs",
    "3": "3, parametric",
}
MOST_RUNS_SHOWN = 12

MISSING = 1e-12
"""An E below this is 0: the fit is of log E, which cannot come to it."""

WIDE = 1e6
"""Ratio of an interval's ends from which on they say no more than that the runs do not determine the constant."""


def fit_tables(fit: Fit) -> list[Table]:
    """The law, the exponents by each approach and way of counting, and what was held out."""
    tables = [_law_table(fit), _exponent_table(fit)]
    if len(fit.by_counting) + len(fit.failed) > 1:
        tables.append(_counting_table(fit))
    held = fit.prediction
    return tables if held is None else [*tables, _prediction_table(held), _held_table(held)]


def fitted_law(fit: Fit, bytes_per_token: float | None, source: str) -> ParametricLaw:
    """The law to keep, with all that is known of how it came about."""
    chosen, settings = fit.chosen, fit.settings
    about = {
        "runs": len(fit.runs),
        "training_flops": [float(chosen.points.flops.min()), float(chosen.points.flops.max())],
        "dropped_highest": settings.drop_highest,
        "delta": settings.delta,
        "starts": chosen.fitted.starts,
        "starts_that_reached_the_optimum": chosen.fitted.reached,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "coverage": COVERAGE,
        "approaches": _approach_figures(chosen),
        "countings_failed": fit.failed,
        "countings": {counted: _counted_figures(one) for counted, one in fit.by_counting.items()},
        "held_out": fit.prediction and fit.prediction.figures(),
    }
    sizes = (float(chosen.points.parameters.min()), float(chosen.points.parameters.max()))
    changes = {"source": source, "sizes": sizes, "bytes_per_token": bytes_per_token, "fit": about}
    return chosen.law.model_copy(update=changes)


def _law_table(fit: Fit) -> Table:
    law, fitted = fit.chosen.law, fit.chosen.fitted
    intervals = law.intervals or {}
    rows = [(name, _digits(getattr(law, name)), _interval(intervals.get(name))) for name in CONSTANTS]
    rows.append(("objective", f"{fitted.objective:.5g}", ""))
    meaning = (
        f"L = E + A / N^alpha + B / D^beta, N: {NGRAM[law.counted]}. {len(fit.runs)} runs; {fitted.reached} of"
        f" {fitted.starts} starts came to this optimum, none to a lower one. Objective: Huber losses of log L, summed."
    )
    meaning = " ".join([meaning, *(f"Warning: {line}." for line in law.warnings)])
    return Table("Law", ("", "value", INTERVAL), rows, meaning)


def _exponent_table(fit: Fit) -> Table:
    rows, reasons = [], []
    for number, found in fit.chosen.approaches().items():
        if isinstance(found, str):
            rows.append((APPROACHES[number], "", "", "", ""))
            reasons.append(f"Approach {number} {found}.")
        else:
            a, b = _interval(found.a_interval), _interval(found.b_interval)
            rows.append((APPROACHES[number], f"{found.a:.3f}", a, f"{found.b:.3f}", b))
    meaning = " ".join(["The best size for C training FLOPs grows as C^a, its tokens as C^b.", *reasons])
    return Table("Exponents", ("approach", "a", INTERVAL, "b", INTERVAL), rows, meaning)


def _counting_table(fit: Fit) -> Table:
    rows = []
    for counted, one in fit.by_counting.items():
        low, high = one.points.parameters.min(), one.points.parameters.max()
        constants = (_digits(getattr(one.law, name)) for name in CONSTANTS)
        sizes = f"{numbers.metric(low)} to {numbers.metric(high)}"
        rows.append(
            (counted.replace("_", " "), sizes, *constants, f"{one.parametric.a:.3f}", f"{one.fitted.objective:.4g}")
        )
    lines = ["The same runs, their parameters counted in several ways: at small sizes this decides the exponents."]
    lines += [f"{counted.replace('_', ' ')}: {reason}." for counted, reason in fit.failed.items()]
    meaning = " ".join(lines)
    return Table("Ways of counting", ("", "sizes", *CONSTANTS, "a", "objective"), rows, meaning)


def _prediction_table(found: HeldOutPrediction) -> Table:
    rows = [
        ("fitted up to", f"{numbers.scientific(found.flops_known)} FLOPs"),
        ("held out up to", f"{numbers.scientific(float(found.held.flops.max()))} FLOPs"),
        ("runs held out", f"{len(found.held)}"),
        ("RMS error", f"{found.rms_error:.2%}"),
        ("mean error", f"{found.errors.mean():+.2%}"),
        ("largest error", f"{abs(found.errors).max():.2%}"),
        ("RMS error of no progress", f"{found.rms_error_of_best_known:.2%}"),
        ("inside their intervals", f"{found.inside} of {len(found.held)}"),
    ]
    meaning = (
        "Predicted against measured loss of the runs with the most FLOPs, to which the law above was not fitted. No"
        " progress: the best fitted run's loss, taken for all. The intervals are the law's; single runs scatter beyond."
    )
    return Table("Prediction", ("", ""), rows, meaning)


def _held_table(found: HeldOutPrediction) -> Table:
    rows = [
        (
            numbers.metric(run["parameters"]),
            numbers.metric(run["tokens"]),
            numbers.scientific(run["training_flops"]),
            f"{run['loss']:.4f}",
            f"{run['predicted']:.4f}",
            _interval((run["low"], run["high"])),
        )
        for run in found.figures()["runs"][-MOST_RUNS_SHOWN:]
    ]
    meaning = f"Those with the most FLOPs, {MOST_RUNS_SHOWN} at most; all are in the law's file."
    return Table("Held out", ("parameters", "tokens", "FLOPs", "measured", "predicted", INTERVAL), rows, meaning)


def _approach_figures(one: CountedFit) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for number, found in one.approaches().items():
        if isinstance(found, str):
            figures[number] = {"reason": found}
        else:
            intervals = {"a": found.a_interval, "b": found.b_interval}
            figures[number] = {"a": found.a, "b": found.b, "intervals": intervals}
    return figures


def _counted_figures(one: CountedFit) -> dict[str, Any]:
    return {
        **{name: getattr(one.law, name) for name in CONSTANTS},
        "objective": one.fitted.objective,
        "intervals": one.law.intervals,
        "approaches": _approach_figures(one),
        "warnings": list(one.law.warnings),
    }


def _digits(value: float) -> str:
    if abs(value) < MISSING:
        return "0"
    return numbers.significant(value, 4) if 1e-4 <= abs(value) < 1e6 else numbers.scientific(value, 4)


def _interval(interval: Interval | None) -> str:
    """From one end to the other; where the ends are of such different size that no digit of them counts, not so."""
    if interval is None:
        return ""
    low, high = interval
    if high <= WIDE * abs(low):
        return f"{_digits(low)} to {_digits(high)}"
    return f"below {_digits(high)}" if high < WIDE else "not determined"
