"""How far a measured number can be trusted: errors, intervals, differences, and tests against chance.

A text is a sample of documents, a task one of items; what differs between them is what the errors come from. Documents
differ in length, so a figure per byte or token is the ratio of two sums, and its error is that of a ratio estimator
(Cochran, Sampling Techniques, 3rd edition, equation 6.13). Intervals and tests of means are Student's, with one degree
of freedom less than there are documents. Right and wrong answers are held to guessing exactly. All tests are two-sided,
at `SIGNIFICANT`; several are corrected for their number (`holm_correction`).

Legend: `N` documents or items, `R` resamples, `P` tests, `E` estimates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from linnet.evaluation.student import below, incomplete_beta, quantile

Floats = NDArray[np.float64]
Interval = tuple[float, float]

SIGNIFICANT = 0.05
"""A p-value below this is told as a difference."""

LEVEL = 1 - SIGNIFICANT
"""The share of samples whose interval holds the true value."""

ROUNDING = 1e-9
"""Degrees of freedom that lie so little below a whole number, relatively, are that number."""

RESAMPLES = 1000
_RESAMPLED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Estimate:
    """A figure of a sample of `count` documents or items; the error is None where one alone says nothing of it.

    pooled_degrees: degrees of freedom of the error, where it is not that of one sample.
    """

    value: float
    standard_error: float | None
    count: int
    pooled_degrees: int | None = None

    @property
    def degrees(self) -> int:
        """Of freedom, of the error."""
        return self.count - 1 if self.pooled_degrees is None else self.pooled_degrees

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Student's; None without an error, and of what is no finite number."""
        if self.standard_error is None or not math.isfinite(self.value):
            return None
        reach = quantile((1 + level) / 2, self.degrees) * self.standard_error
        return self.value - reach, self.value + reach

    def p_value(self, expected: float = 0.0) -> float | None:
        """How often a sample from a truth of `expected` lies as far from it, to either side; None as above."""
        if self.standard_error is None or not math.isfinite(self.value):
            return None
        apart = abs(self.value - expected)
        if not self.standard_error:
            return 0.0 if apart else 1.0
        return 2 * below(-apart / self.standard_error, self.degrees)


def ratio(numerators_N: ArrayLike, denominators_N: ArrayLike) -> Estimate:
    """The sum of the numerators over that of the denominators, with the error of a ratio estimator.

    Neither needs to be independent of the other; documents have to be. The denominators' sum is above 0.
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
    """The plain mean of scores, and its error: their standard deviation over the root of their number."""
    values_N = np.asarray(values_N, dtype=np.float64)
    return ratio(values_N, np.ones(len(values_N)))


def mean_of(estimates_E: Sequence[Estimate]) -> Estimate:
    """The mean of figures of samples that share nothing, each counting alike; no error where one has none.

    The degrees of freedom of its error are Welch's (1947) and Satterthwaite's, rounded down.
    """
    count, value = len(estimates_E), sum(one.value for one in estimates_E) / len(estimates_E)
    items = sum(one.count for one in estimates_E)
    errors = [one.standard_error for one in estimates_E if one.standard_error is not None]
    if len(errors) < count or not math.isfinite(value):
        return Estimate(value, None, items)
    variance = sum(error**2 for error in errors)
    spread = sum(error**4 / one.degrees for error, one in zip(errors, estimates_E, strict=True))
    degrees = int(variance**2 / spread * (1 + ROUNDING)) if spread else items - count
    return Estimate(value, math.sqrt(variance) / count, items, degrees)


def accuracy(right: int, items: int) -> Estimate:
    """The share of items that are right; `mean` of so many ones among zeros."""
    assert 0 <= right <= items and items, (right, items)
    share = right / items
    return Estimate(share, math.sqrt(share * (1 - share) / (items - 1)) if items > 1 else None, items)


def accuracy_interval(right: int, items: int, level: float = LEVEL) -> Interval:
    """Wilson's (1927): it stays within 0 and 1, and is not empty where all items are right, or none."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, widened = right / items, 1 + z * z / items
    middle = (share + z * z / (2 * items)) / widened
    reach = z / widened * math.sqrt(share * (1 - share) / items + (z / (2 * items)) ** 2)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def paired_difference(first_N: ArrayLike, second_N: ArrayLike, denominators_N: ArrayLike | None = None) -> Estimate:
    """The second's figure less the first's, both measured on the same documents, with the error of the difference.

    denominators: what both sums are divided by (bytes); None: the number of items. What makes a document hard for both
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

    None with one document, and where a number is not finite. The same numbers and seed give the same interval.
    """
    above_N, below_N = (np.asarray(values, dtype=np.float64) for values in (numerators_N, denominators_N))
    if len(above_N) < 2 or not np.isfinite(above_N).all():
        return None
    random, found = np.random.default_rng(seed), []
    at_once = max(1, _RESAMPLED_AT_ONCE // len(above_N))
    for first in range(0, resamples, at_once):
        chosen_RN = random.integers(len(above_N), size=(min(at_once, resamples - first), len(above_N)))
        with np.errstate(invalid="ignore", divide="ignore"):  # a sample of empty documents alone has no ratio
            found.append(above_N[chosen_RN].sum(1) / below_N[chosen_RN].sum(1))
    low, high = np.nanquantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def holm_correction(p_values_P: Sequence[float | None]) -> list[float | None]:
    """The p-values of several tests made so large that the chance of any false find among all is kept (Holm, 1979).

    In the order in which they were given; None for what is None or no number, which does not count.
    """
    known = [(value, number) for number, value in enumerate(p_values_P) if value is not None and value == value]
    adjusted: list[float | None] = [None] * len(p_values_P)
    least = 0.0
    for rank, (value, number) in enumerate(sorted(known)):
        least = max(least, min(1.0, (len(known) - rank) * value))
        adjusted[number] = least
    return adjusted


def p_value_against_chance(values_N: ArrayLike, chances_N: ArrayLike) -> float | None:
    """How often guessing gives a mean score as far from its expected one, or farther, to either side.

    chances: what guessing gives of each item on average. Of right and wrong answers, ones and zeros, exact
    (`exact_p_value`); of other scores by their paired difference from chance.
    """
    values_N = np.asarray(values_N, dtype=np.float64)
    if np.isin(values_N, (0.0, 1.0)).all():
        return exact_p_value(int(values_N.sum()), chances_N)
    return paired_difference(chances_N, values_N).p_value()


def exact_p_value(right: int, chances_N: ArrayLike) -> float:
    """How often guessing is as far from its expected number of right items, or farther, to either side.

    chances: of guessing each item right. Exact: the number of right items is a sum of coins of different weights, the
    Poisson binomial distribution, whose smaller tail is doubled; of coins of one weight, the binomial.
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


NOT_ABOVE_CHANCE = "not above chance"
"""What is said of a score that does not beat it: not distinguishable from it, or below."""


def beats_chance(p_value: float | None, value: float, chance: float) -> bool:
    """Whether a score is above chance by more than chance explains; where not, it is `NOT_ABOVE_CHANCE`."""
    return p_value is not None and p_value < SIGNIFICANT and value > chance


def poisson_binomial(chances_N: Floats) -> Floats:
    """The probability of 0 to N right items, `[N + 1]`: one item after the other."""
    weights = np.zeros(len(chances_N) + 1)
    weights[0] = 1.0
    for done, chance in enumerate(chances_N.tolist(), start=1):
        weights[1 : done + 1] = weights[1 : done + 1] * (1 - chance) + weights[:done] * chance
        weights[0] *= 1 - chance
    return weights
