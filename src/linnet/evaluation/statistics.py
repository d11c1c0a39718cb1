"""Errors, intervals, differences and tests of measured figures.

A text is a sample of documents, a task a sample of items; the errors come from the differences between them. Documents
differ in length, so a figure per byte or token is the ratio of two sums, with the error of a ratio estimator (Cochran,
Sampling Techniques, 3rd edition, equation 6.13). Intervals and tests of means are Student's, with one degree of freedom
less than there are documents. Right and wrong answers are tested exactly against guessing. All tests are two-sided, at
`SIGNIFICANT`; several tests are corrected for their number (`holm_correction`).

Shapes: `N` documents or items, `R` resamples, `P` tests, `E` estimates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

SIGNIFICANT = 0.05
"""A p-value below this counts as a difference."""

LEVEL = 1 - SIGNIFICANT
"""Share of samples whose interval contains the true value."""

NOT_ABOVE_CHANCE = "not above chance"
"""Note on a score that is not distinguishable from chance, or below it."""

RESAMPLES = 1000
_RESAMPLED_AT_ONCE = 1 << 22

_DEGREES_TOLERANCE = 1e-9
"""Degrees of freedom that are this little below a whole number, relatively, are rounded to it."""

_CONVERGED, _TINY, _MAX_TERMS, _BISECTIONS = 1e-15, 1e-300, 100_000, 200


@dataclass(frozen=True)
class Estimate:
    """A figure of a sample of `count` documents or items; the error is None if a single one determines it.

    pooled_degrees: degrees of freedom of the error, if it is not that of one sample.
    """

    value: float
    standard_error: float | None
    count: int
    pooled_degrees: int | None = None

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the error."""
        return self.count - 1 if self.pooled_degrees is None else self.pooled_degrees

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Student's interval; None without an error, and for a value that is not finite."""
        if self.standard_error is None or not math.isfinite(self.value):
            return None
        reach = student_quantile((1 + level) / 2, self.degrees) * self.standard_error
        return self.value - reach, self.value + reach

    def p_value(self, expected: float = 0.0) -> float | None:
        """Probability that a sample with the true value `expected` deviates as far, to either side; None as above."""
        if self.standard_error is None or not math.isfinite(self.value):
            return None
        deviation = abs(self.value - expected)
        if not self.standard_error:
            return 0.0 if deviation else 1.0
        return 2 * student_cdf(-deviation / self.standard_error, self.degrees)


def ratio(numerators_N: ArrayLike, denominators_N: ArrayLike) -> Estimate:
    """The sum of the numerators over the sum of the denominators, with the error of a ratio estimator.

    Numerators and denominators may depend on each other; documents may not. The sum of the denominators is above 0.
    """
    above_N, below_N = (np.asarray(values, dtype=np.float64) for values in (numerators_N, denominators_N))
    count, total = len(above_N), float(below_N.sum())
    assert len(below_N) == count and total > 0, (count, len(below_N), total)
    value = float(above_N.sum()) / total
    if count < 2:
        return Estimate(value, None, count)
    residuals_N = above_N - value * below_N
    return Estimate(value, math.sqrt(count / (count - 1) * float(residuals_N @ residuals_N)) / total, count)


def mean(values_N: ArrayLike) -> Estimate:
    """The mean of scores, and its error: their standard deviation over the square root of their number."""
    values_N = np.asarray(values_N, dtype=np.float64)
    return ratio(values_N, np.ones(len(values_N)))


def mean_of(estimates_E: Sequence[Estimate]) -> Estimate:
    """The mean of figures of independent samples, each with the same weight; no error if one has none.

    The degrees of freedom of its error are Welch's (1947) and Satterthwaite's, rounded down.
    """
    count, value = len(estimates_E), sum(one.value for one in estimates_E) / len(estimates_E)
    items = sum(one.count for one in estimates_E)
    errors = [one.standard_error for one in estimates_E if one.standard_error is not None]
    if len(errors) < count or not math.isfinite(value):
        return Estimate(value, None, items)
    variance = sum(error**2 for error in errors)
    spread = sum(error**4 / one.degrees for error, one in zip(errors, estimates_E, strict=True))
    degrees = int(variance**2 / spread * (1 + _DEGREES_TOLERANCE)) if spread else items - count
    return Estimate(value, math.sqrt(variance) / count, items, degrees)


def accuracy(right: int, items: int) -> Estimate:
    """The share of right items; the `mean` of `right` ones among zeros."""
    assert 0 <= right <= items and items, (right, items)
    share = right / items
    return Estimate(share, math.sqrt(share * (1 - share) / (items - 1)) if items > 1 else None, items)


def paired_difference(first_N: ArrayLike, second_N: ArrayLike, denominators_N: ArrayLike | None = None) -> Estimate:
    """The second figure minus the first, both measured on the same documents, with the error of the difference.

    denominators: what both sums are divided by (bytes); None: the number of items. The common difficulty of a document
    cancels, so this error is smaller than those of the two figures.
    """
    differences_N = np.asarray(second_N, dtype=np.float64) - np.asarray(first_N, dtype=np.float64)
    return mean(differences_N) if denominators_N is None else ratio(differences_N, denominators_N)


def bootstrap_interval(
    numerators_N: ArrayLike,
    denominators_N: ArrayLike,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval | None:
    """The middle `level` of the ratios of samples of `N` documents drawn with replacement (Efron's percentiles).

    None with one document, and if a number is not finite. The same numbers and seed give the same interval.
    """
    above_N, below_N = (np.asarray(values, dtype=np.float64) for values in (numerators_N, denominators_N))
    if len(above_N) < 2 or not np.isfinite(above_N).all():
        return None
    random, found = np.random.default_rng(seed), []
    at_once = max(1, _RESAMPLED_AT_ONCE // len(above_N))
    for first in range(0, resamples, at_once):
        chosen_RN = random.integers(len(above_N), size=(min(at_once, resamples - first), len(above_N)))
        with np.errstate(invalid="ignore", divide="ignore"):  # a sample of only empty documents has no ratio
            found.append(above_N[chosen_RN].sum(1) / below_N[chosen_RN].sum(1))
    low, high = np.nanquantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holm_correction(p_values_P: Sequence[float | None]) -> list[float | None]:
    """The p-values of several tests, increased so that the chance of any false positive among all is kept (Holm, 1979).

    The order is kept; None and NaN give None and do not count.
    """
    known = [(value, number) for number, value in enumerate(p_values_P) if value is not None and value == value]
    adjusted: list[float | None] = [None] * len(p_values_P)
    smallest = 0.0
    for rank, (value, number) in enumerate(sorted(known)):
        smallest = max(smallest, min(1.0, (len(known) - rank) * value))
        adjusted[number] = smallest
    return adjusted


def p_value_against_chance(values_N: ArrayLike, chances_N: ArrayLike) -> float | None:
    """Probability that guessing gives a mean score as far from its expected one, to either side.

    chances: the mean score of guessing for each item. Exact for right and wrong answers, ones and zeros
    (`exact_p_value`); other scores are tested by their paired difference from chance.
    """
    values_N = np.asarray(values_N, dtype=np.float64)
    if np.isin(values_N, (0.0, 1.0)).all():
        return exact_p_value(int(values_N.sum()), chances_N)
    return paired_difference(chances_N, values_N).p_value()


def exact_p_value(right: int, chances_N: ArrayLike) -> float:
    """Probability that guessing is as far from its expected number of right items, to either side.

    chances: probability of guessing each item right. Exact: the number of right items has a Poisson binomial
    distribution (binomial for equal chances), whose smaller tail is doubled.
    """
    chances_N = np.asarray(chances_N, dtype=np.float64)
    items = len(chances_N)
    assert items and chances_N.min() >= 0 and chances_N.max() <= 1 and 0 <= right <= items
    if chances_N.min() == chances_N.max():
        chance = float(chances_N[0])
        at_least = incomplete_beta(chance, right, items - right + 1) if right else 1.0
        at_most = incomplete_beta(1 - chance, items - right, right + 1) if right < items else 1.0
        return min(1.0, 2 * min(at_least, at_most))
    weights = poisson_binomial(chances_N)
    return min(1.0, 2 * float(min(weights[: right + 1].sum(), weights[right:].sum())))


def beats_chance(p_value: float | None, value: float, chance: float) -> bool:
    """True if a score is significantly above chance; otherwise it is `NOT_ABOVE_CHANCE`."""
    return p_value is not None and p_value < SIGNIFICANT and value > chance


def poisson_binomial(chances_N: Floats) -> Floats:
    """The probabilities of 0 to N right items, `[N + 1]`, built up item by item."""
    weights = np.zeros(len(chances_N) + 1)
    weights[0] = 1.0
    for done, chance in enumerate(chances_N.tolist(), start=1):
        weights[1 : done + 1] = weights[1 : done + 1] * (1 - chance) + weights[:done] * chance
        weights[0] *= 1 - chance
    return weights


# Student's t distribution and the incomplete beta function; importing SciPy for them would take longer than they do.


def student_cdf(t: float, degrees: int) -> float:
    """Probability that Student's t with `degrees` degrees of freedom, at least 1, is at most `t`."""
    if math.isnan(t):
        return math.nan
    square = t * t
    if math.isinf(square):
        tail = 0.0
    elif square < degrees:  # of two equal forms, the one whose continued fraction converges faster
        tail = 0.5 * (1 - incomplete_beta(square / (degrees + square), 0.5, degrees / 2))
    else:
        tail = 0.5 * incomplete_beta(degrees / (degrees + square), degrees / 2, 0.5)
    return tail if t < 0 else 1 - tail


def student_quantile(share: float, degrees: int) -> float:
    """The value that Student's t exceeds with probability `1 - share`, found by bisection."""
    assert 0 < share < 1, share
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    low, high = 0.0, 1.0
    while 1 - share < student_cdf(-high, degrees):
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if 1 - share < student_cdf(-middle, degrees) else (low, middle)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function of `x`, from 0 to 1.

    By its continued fraction 1 + d1 / (1 + d2 / (1 + ...)) (Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.5.8 and 26.7.1), evaluated from the front (Lentz 1976, in Thompson and Barnett's form).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    value = numerator = 1.0
    denominator = 0.0
    for number in range(1, _MAX_TERMS):
        half = number // 2
        if number % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / (1 + term * denominator or _TINY)
        numerator = 1 + term / numerator or _TINY
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < _CONVERGED:
            break
    return math.exp(log_front) / (a * value)
