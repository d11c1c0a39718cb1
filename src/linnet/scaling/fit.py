"""A whole fit: three approaches for every way of counting parameters, with intervals, and a prediction to hold it to.

Legend: `R` resamples.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.present.progress import progress
from linnet.scaling.counts import Counting
from linnet.scaling.determined import Interval, doubts
from linnet.scaling.frontier import Frontier, NotPossibleError, envelope, isoflop, isoflop_groups
from linnet.scaling.holdout import HeldOutPrediction, predict, split_by_flops
from linnet.scaling.law import ParametricLaw
from linnet.scaling.parametric import BOOTSTRAP_STARTS, DELTA, Fitted, bootstrap, check_points, fit, grid
from linnet.scaling.points import Points, Run, check_counting, countings, without_highest

CONSTANTS = ("E", "A", "B", "alpha", "beta")
COVERAGE = 0.95
ENVELOPE_BUDGETS_RESAMPLED = 150
"""In a resample: 1,500 budgets give the same exponents to a thousandth and take ten times as long."""


@dataclass(frozen=True)
class FitSettings:
    """What a user can choose of a fit; `share_held` is of the runs, those with the most FLOPs (0: none)."""

    counted: Counting = "total"
    drop_highest: int = 0
    delta: float = DELTA
    flops_tolerance: float = 0.1
    resamples: int = 200
    seed: int = 0
    share_held: float = 0.0


@dataclass(frozen=True)
class Exponents:
    """`N ~ C^a` and `D ~ C^b` of one approach, with their intervals (None where too few resamples allow it)."""

    a: float
    b: float
    a_interval: Interval | None
    b_interval: Interval | None
    frontier: Frontier | None = None


@dataclass(frozen=True)
class CountedFit:
    """With parameters counted in one way. Approaches 1 and 2 are their exponents, or a line that says why not."""

    points: Points
    fitted: Fitted
    law: ParametricLaw
    samples_R5: Numbers
    envelope: Exponents | str
    isoflop: Exponents | str
    parametric: Exponents
    groups: list[Points]

    def approaches(self) -> dict[str, Exponents | str]:
        """By their numbers in the paper."""
        return {"1": self.envelope, "2": self.isoflop, "3": self.parametric}


@dataclass(frozen=True)
class Fit:
    """All of it: `runs` are those that were fitted, `failed` the ways of counting that came to no law, and why."""

    settings: FitSettings
    runs: list[Run]
    by_counting: dict[Counting, CountedFit]
    failed: dict[Counting, str]
    prediction: HeldOutPrediction | None

    @property
    def chosen(self) -> CountedFit:
        """With parameters counted as asked for."""
        return self.by_counting[self.settings.counted]


def fit_runs(runs: Sequence[Run], settings: FitSettings, name: str = "law") -> Fit:
    """Fit a law to runs; `UserError` where they do not allow approach 3."""
    check_counting(runs, settings.counted)
    kept = without_highest(runs, settings.drop_highest)
    held = None
    if settings.share_held:
        ends = Points.of(kept, settings.counted)
        known, held = split_by_flops(ends, settings.share_held)
        kept = [kept[index] for index in np.argsort(ends.flops, kind="stable")[: len(known)]]
    check_points(Points.of(kept, settings.counted))
    fits, failed = _fit_each_counting(kept, settings, name)
    chosen = fits[settings.counted]
    prediction = None
    if held is not None:
        prediction = predict(chosen.law, chosen.samples_R5, chosen.points, held, COVERAGE)
    return Fit(settings, kept, fits, failed, prediction)


def _fit_each_counting(
    runs: list[Run], settings: FitSettings, name: str
) -> tuple[dict[Counting, CountedFit], dict[Counting, str]]:
    """Only the chosen way of counting has to come to a law."""
    fits: dict[Counting, CountedFit] = {}
    failed: dict[Counting, str] = {}
    for counted in countings(runs):
        try:
            fits[counted] = _fit_counted(runs, counted, settings, name)
        except UserError as error:
            if counted == settings.counted:
                raise
            failed[counted] = str(error)
    return fits, failed


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
    against = tuple(doubts(points, intervals, COVERAGE))
    law = law.model_copy(update={"intervals": intervals, "warnings": against})
    groups = isoflop_groups(points, settings.flops_tolerance)
    by_curves = _exponents(partial(_envelope, runs, counted), settings)
    by_groups = _exponents(partial(_isoflop, groups), settings)
    exponent, shares_R = law.optimum[1], samples_R5[:, 4] / (samples_R5[:, 3] + samples_R5[:, 4])
    by_law = Exponents(exponent, 1 - exponent, _interval(shares_R), _interval(1 - shares_R))
    return CountedFit(points, fitted, law, samples_R5, by_curves, by_groups, by_law, groups)


def _interval(values: Numbers) -> Interval:
    low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def _exponents(frontier_of: Callable[[np.random.Generator | None], Frontier], settings: FitSettings) -> Exponents | str:
    """An approach (None: to all runs, else to a resample) with its intervals; the line that says why not, if not."""
    try:
        found = frontier_of(None)
    except NotPossibleError as error:
        return str(error)
    random = np.random.default_rng(settings.seed)
    pairs = []
    for _ in range(settings.resamples):
        with suppress(NotPossibleError):
            again = frontier_of(random)
            pairs.append((again.parameters.exponent, again.tokens.exponent))
    enough = len(pairs) > settings.resamples / 2
    a, b = (_interval(values) for values in np.array(pairs).T) if enough else (None, None)
    return Exponents(found.parameters.exponent, found.tokens.exponent, a, b, found)


def _envelope(runs: list[Run], counted: Counting, random: np.random.Generator | None) -> Frontier:
    if random is None:
        return envelope(runs, counted)
    drawn = random.integers(len(runs), size=len(runs))
    return envelope([runs[index] for index in drawn], counted, ENVELOPE_BUDGETS_RESAMPLED)


def _isoflop(groups: list[Points], random: np.random.Generator | None) -> Frontier:
    drawn = groups if random is None else [group[random.integers(len(group), size=len(group))] for group in groups]
    return isoflop(drawn)
