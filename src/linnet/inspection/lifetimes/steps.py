"""Numbers of steps, for people and for JSON: a whole number, one too large to be exact, or endless."""

import math

from linnet.present import numbers

EXACT = 2.0**53
"""From here on float64 does not know every whole number."""

GROUPED = 1e9
"""From here on so many digits say nothing."""

ENDLESS = "endless"


def whole_steps(lifetime: float) -> str:
    """`1,234`, `3.2e+12`, or `endless`."""
    if math.isinf(lifetime):
        return ENDLESS
    return numbers.grouped(lifetime) if lifetime < GROUPED else f"{lifetime:.3g}"


def steps(age: float) -> str:
    """Three digits: `0.231`, `12.0`, `1,234`; `3.2e+12`, or `endless`."""
    return numbers.significant(age) if age < 1000 else whole_steps(age)


def json_steps(lifetime: float) -> int | float | None:
    """None, which is null, for one that never ends."""
    if math.isinf(lifetime):
        return None
    return int(lifetime) if lifetime < EXACT else lifetime
