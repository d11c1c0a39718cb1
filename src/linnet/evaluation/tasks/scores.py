"""What a score is worth: standard error, chance, and paired differences by the normal distribution.

Legend: `N` items of a task.
"""

import math
from dataclasses import dataclass

import numpy as np

from linnet.evaluation.statistics import Floats, chance_p_value, mean

SIGNIFICANCE = 0.05
NORMAL_95 = 1.959963984540054
"""So many standard errors to each side hold 95 % of a normal distribution."""


def chance_probability(values_N: Floats, chances_N: Floats) -> float:
    """How probable a mean at least as far from chance is for somebody who guesses; two-sided.

    chances_N: what guessing gives of each item on average. Right or wrong answers (0 and 1): exact, by the distribution
    of their number (a Poisson binomial); of other values, by the normal one of their differences from chance.
    """
    if not np.isin(values_N, (0.0, 1.0)).all():
        return paired_difference(values_N, chances_N).probability
    return chance_p_value(int(values_N.sum()), chances_N)


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


def paired_difference(first_N: Floats, second_N: Floats) -> Difference:
    """Of two models on the same items: the mean of `first - second`, by the normal distribution."""
    apart = mean(first_N - second_N)
    return difference_of(apart.value, apart.standard_error)


def difference_of(value: float, error: float | None) -> Difference:
    """With the two-sided probability of the normal distribution."""
    if error is None or not math.isfinite(value):
        return Difference(value, error, 1.0)
    if error == 0:
        return Difference(value, error, 1.0 if value == 0 else 0.0)
    return Difference(value, error, math.erfc(abs(value) / error / math.sqrt(2)))
