"""A complete fit: three approaches for every way of counting parameters, with intervals, and a test on held-out runs.

Legend: `R` resamples.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.present.progress import progress
from linnet.scaling.candidate import Counting
from linnet.scaling.frontier import Frontier, NotPossibleError, envelope, isoflop, isoflop_groups
from linnet.scaling.law import ParametricLaw
from linnet.scaling.parametric import BOOTSTRAP_STARTS, CONSTANTS, DELTA, Fitted, bootstrap, check_points, fit, grid
from linnet.scaling.reliability import HeldOutPrediction, Interval, law_warnings, predict, split_by_flops
from linnet.scaling.runs import Points, Run, check_counting, countings, without_highest

COVERAGE = 0.95
RESAMPLED_ENVELOPE_BUDGETS = 150
"""1,500 budgets give the same exponents to a thousandth and take ten times as long."""


@dataclass(frozen=True)
class FitSettings:
    """Options of a fit; share_held: share of the runs, those with the most FLOPs, that are held out (0: none)."""

    counted: Counting = "total"
    drop_highest: int = 0
    delta: float = DELTA
    flops_tolerance: float = 0.1
    resamples: int = 200
    seed: int = 0
    share_held: float = 0.0


@dataclass(frozen=True)
class Exponents:
    """`N ~ C^a` and `D ~ C^b` of one approach, with intervals (None if too few resamples allow the approach)."""

    a: float
    b: float
    a_interval: Interval | None
    b_interval: Interval | None
    frontier: Frontier | None = None


@dataclass(frozen=True)
class CountedFit:
    """The fit for one way of counting. approaches: by their numbers in the paper; a string is why one is impossible.

    fitted, law, samples_R5: of approach 3, the parametric one. groups: runs of equal FLOPs, of approach 2.
    """

    points: Points
    fitted: Fitted
    law: ParametricLaw
    samples_R5: Numbers
    envelope: Exponents | str
    isoflop: Exponents | str
    parametric: Exponents
    groups: list[Points]

    @property
    def approaches(self) -> dict[str, Exponents | str]:
        return {"1": self.envelope, "2": self.isoflop, "3": self.parametric}


@dataclass(frozen=True)
class Fit:
    """runs: those that were fitted. chosen: the fit for the requested way of counting.

    failed: the ways of counting for which no law was found, with the reasons.
    """

    settings: FitSettings
    runs: list[Run]
    chosen: CountedFit
    by_counting: dict[Counting, CountedFit]
    failed: dict[Counting, str]
    prediction: HeldOutPrediction | None


def fit_runs(runs: Sequence[Run], settings: FitSettings, name: str = "law") -> Fit:
    """Fit a law to runs; `UserError` if they do not allow approach 3 with the requested way of counting."""
    check_counting(runs, settings.counted)
    fitted = without_highest(runs, settings.drop_highest)
    held = None
    if settings.share_held:
        ends = Points.of(fitted, settings.counted)
        known, held = split_by_flops(ends, settings.share_held)
        fitted = [fitted[index] for index in np.argsort(ends.flops, kind="stable")[: len(known)]]
    check_points(Points.of(fitted, settings.counted))

    fits: dict[Counting, CountedFit] = {}
    failed: dict[Counting, str] = {}
    for counted in countings(fitted):
        try:
            fits[counted] = _fit_counted(fitted, counted, settings, name)
        except UserError as error:
            if counted == settings.counted:
                raise
            failed[counted] = str(error)
    chosen = fits[settings.counted]
    prediction = None if held is None else predict(chosen.law, chosen.samples_R5, chosen.points, held, COVERAGE)
    return Fit(settings, fitted, chosen, fits, failed, prediction)


def _fit_counted(runs: list[Run], counted: Counting, settings: FitSettings, name: str) -> CountedFit:
    points = Points.of(runs, counted)
    starts = grid()
    with progress(f"fit, {counted.replace('_', ' ')}", len(starts), "starts") as advance:
        fitted = fit(points, settings.delta, starts, advance)
    law = fitted.law(name, counted)
    fits = settings.resamples * min(BOOTSTRAP_STARTS, 1 + len(fitted.others_S5))
    with progress("bootstrap", fits, "fits") as advance:
        samples_R5 = bootstrap(points, fitted, settings.resamples, settings.seed, settings.delta, advance)
    intervals = {name: _interval(column) for name, column in zip(CONSTANTS, samples_R5.T, strict=True)}
    warnings = tuple(law_warnings(points, intervals, COVERAGE))
    law = law.model_copy(update={"intervals": intervals, "warnings": warnings})

    groups = isoflop_groups(points, settings.flops_tolerance)
    by_curves = _exponents(
        lambda: envelope(runs, counted),
        lambda random: envelope(
            [runs[index] for index in random.integers(len(runs), size=len(runs))], counted, RESAMPLED_ENVELOPE_BUDGETS
        ),
        settings,
    )
    by_groups = _exponents(
        lambda: isoflop(groups),
        lambda random: isoflop([group[random.integers(len(group), size=len(group))] for group in groups]),
        settings,
    )
    exponent, shares_R = law.beta / (law.alpha + law.beta), samples_R5[:, 4] / (samples_R5[:, 3] + samples_R5[:, 4])
    by_law = Exponents(exponent, 1 - exponent, _interval(shares_R), _interval(1 - shares_R))
    return CountedFit(points, fitted, law, samples_R5, by_curves, by_groups, by_law, groups)


def _interval(values: Numbers) -> Interval:
    low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def _exponents(
    find: Callable[[], Frontier], find_resampled: Callable[[np.random.Generator], Frontier], settings: FitSettings
) -> Exponents | str:
    """Return the exponents of approach 1 or 2 with their intervals, or the reason why it is impossible."""
    try:
        found = find()
    except NotPossibleError as error:
        return str(error)
    random = np.random.default_rng(settings.seed)
    pairs = []
    for _ in range(settings.resamples):
        with suppress(NotPossibleError):
            again = find_resampled(random)
            pairs.append((again.parameters.exponent, again.tokens.exponent))
    enough = len(pairs) > settings.resamples / 2
    a, b = (_interval(values) for values in np.array(pairs).T) if enough else (None, None)
    return Exponents(found.parameters.exponent, found.tokens.exponent, a, b, found)


def fitted_law(fit: Fit, bytes_per_token: float | None, source: str) -> ParametricLaw:
    """Return the law to store, with a description of the runs and of the fit."""
    approaches: dict[Counting, dict[str, Any]] = {
        counted: {
            number: {"reason": one}
            if isinstance(one, str)
            else {"a": one.a, "b": one.b, "intervals": {"a": one.a_interval, "b": one.b_interval}}
            for number, one in counted_fit.approaches.items()
        }
        for counted, counted_fit in fit.by_counting.items()
    }
    chosen, settings = fit.chosen, fit.settings
    about: dict[str, Any] = {
        "runs": len(fit.runs),
        "training_flops": [float(chosen.points.flops.min()), float(chosen.points.flops.max())],
        "dropped_highest": settings.drop_highest,
        "delta": settings.delta,
        "starts": chosen.fitted.starts,
        "starts_that_reached_the_optimum": chosen.fitted.reached,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "coverage": COVERAGE,
        "approaches": approaches[settings.counted],
        "countings_failed": fit.failed,
        "countings": {
            counted: {
                **{name: getattr(one.law, name) for name in CONSTANTS},
                "objective": one.fitted.objective,
                "intervals": one.law.intervals,
                "approaches": approaches[counted],
                "warnings": list(one.law.warnings),
            }
            for counted, one in fit.by_counting.items()
        },
        "held_out": fit.prediction and fit.prediction.to_dict(),
    }
    sizes = (float(chosen.points.parameters.min()), float(chosen.points.parameters.max()))
    return chosen.law.model_copy(
        update={"source": source, "sizes": sizes, "bytes_per_token": bytes_per_token, "fit": about}
    )
