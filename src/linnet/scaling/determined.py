"""Whether the runs determine the law that was fitted to them: what speaks against it, in lines.

A fit always comes to some constants. Four rules tell whether others would have done as well: enough runs, over a wide
enough range, exponents that resampled runs agree on, and an E that is more than nothing.
"""

import math
from collections.abc import Mapping

from linnet.core.arrays import Numbers
from linnet.present import numbers
from linnet.scaling.points import Points

Interval = tuple[float, float]

FEWEST_RUNS = 10
"""Two for each of the five unknowns: through fewer a curve goes whether the law holds or not."""

LEAST_RANGE = 10.0
"""Of sizes, and of tokens, largest to smallest. With an exponent of 0.3 a term halves over it; over less of a range it
can hardly be told from a constant."""

MOST_SPREAD = 2.0
"""Between the ends of an exponent's interval: at twice the exponent a term falls by the square of its factor. On the
240 points of Hoffmann et al.'s figure 4 it is 1.3."""

LEAST_REST = 0.01
"""Of the lowest loss: where the interval of E begins below, E may as well be 0."""

FALLS_WITH = {"alpha": "parameters", "beta": "tokens"}


def doubts(points: Points, intervals: Mapping[str, Interval], coverage: float) -> list[str]:
    """What speaks against a law fitted to these points, with intervals of this coverage; nothing if all is well."""
    found = []
    if len(points) < FEWEST_RUNS:
        found.append(
            f"{len(points)} runs for five unknowns: they can be matched whether the law holds or not; expected at least"
            f" {FEWEST_RUNS}"
        )
    found += _narrow("sizes", points.parameters) + _narrow("numbers of tokens", points.tokens)
    for name, what in FALLS_WITH.items():
        low, high = intervals[name]
        if not high <= MOST_SPREAD * low:
            found.append(
                f"{name} is not determined: its {coverage:.0%} interval is {low:.2g} to {high:.2g}, a factor of more"
                f" than {MOST_SPREAD:g}; how the loss falls with {what} beyond these runs is a guess"
            )
    lowest = float(points.loss.min())
    if intervals["E"][0] < LEAST_REST * lowest:
        found.append(
            f"E is not determined: it may be 0 (its {coverage:.0%} interval begins below {LEAST_REST:.0%} of the lowest"
            f" loss, {lowest:.3g}); what unlimited size and text would bring is a guess"
        )
    return found


def _narrow(what: str, values: Numbers) -> list[str]:
    low, high = float(values.min()), float(values.max())
    if high >= LEAST_RANGE * low:
        return []
    factor = f"{math.floor(10 * high / low) / 10:g}"  # rounded down: 9.99 is not the 10 that is expected
    return [
        f"{what} from {numbers.metric(low)} to {numbers.metric(high)}, a factor of {factor}: too narrow to tell a power"
        f" from a constant; expected a factor of at least {LEAST_RANGE:g}"
    ]
