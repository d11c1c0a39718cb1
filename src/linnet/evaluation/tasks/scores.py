"""What a score is worth: standard error, chance, paired differences, and their correction for several tasks.

Legend: `N` items of a task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
"""`[N]`."""

SIGNIFICANCE = 0.05
NORMAL_95 = 1.959963984540054
"""So many standard errors to each side hold 95 % of a normal distribution."""


def standard_error(values_N: Values) -> float | None:
    """Of the mean: the sample's standard deviation over the root of N; None of a single value."""
    count = len(values_N)
    return float(values_N.std(ddof=1)) / math.sqrt(count) if count > 1 else None


def chance_probability(values_N: Values, chances_N: Values) -> float:
    """How probable a mean at least as far from chance is for somebody who guesses; two-sided.

    chances_N: what guessing gives of each item on average. Right or wrong answers (0 and 1): exact, by the distribution
    of their number (a Poisson binomial); of other values, by the normal one of their differences from chance.
    """
    if not np.isin(values_N, (0.0, 1.0)).all():
        return paired_difference(values_N, chances_N).probability
    right = int(values_N.sum())
    of_number = number_right(chances_N)
    return min(1.0, 2 * min(float(of_number[: right + 1].sum()), float(of_number[right:].sum())))


def number_right(chances_N: Values) -> Values:
    """The probability of each number of right answers, 0 to N, `[N + 1]`, where each is right by its own chance."""
    of_number = np.zeros(len(chances_N) + 1)
    of_number[0] = 1.0
    for done, chance in enumerate(chances_N, start=1):
        of_number[1 : done + 1] = of_number[1 : done + 1] * (1 - chance) + of_number[:done] * chance
        of_number[0] *= 1 - chance
    return of_number


@dataclass(frozen=True)
class Difference:
    """Of means: its standard error (None of a single item), and the probability of one as large where there is none."""

    value: float
    standard_error: float | None
    probability: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval."""
        if self.standard_error is None:
            return None
        reach = NORMAL_95 * self.standard_error
        return self.value - reach, self.value + reach


def paired_difference(first_N: Values, second_N: Values) -> Difference:
    """Of two models on the same items: the mean of `first - second`, by the normal distribution."""
    apart_N = first_N - second_N
    return difference_of(float(apart_N.mean()), standard_error(apart_N))


def difference_of(value: float, error: float | None) -> Difference:
    """With the two-sided probability of the normal distribution."""
    if error is None or not math.isfinite(value):
        return Difference(value, error, 1.0)
    if error == 0:
        return Difference(value, error, 1.0 if value == 0 else 0.0)
    return Difference(value, error, math.erfc(abs(value) / error / math.sqrt(2)))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Each corrected for their number (Holm, 1979): below 0.05, it is so at 5 % for all of them together."""
    order = sorted(range(len(probabilities)), key=lambda place: probabilities[place])
    corrected, highest = [0.0] * len(probabilities), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, (len(order) - rank) * probabilities[place])
        corrected[place] = min(1.0, highest)
    return corrected
