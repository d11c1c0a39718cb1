"""Student's t distribution and the incomplete beta function, for intervals and tests, without SciPy's time to import.

By the continued fraction of the incomplete beta function (Abramowitz and Stegun, Handbook of Mathematical Functions,
26.5.8 and 26.7.1), computed from its front (Lentz 1976, in Thompson and Barnett's form).
"""

import math

_CLOSE, _TINY, _MOST_TERMS, _HALVINGS = 1e-15, 1e-300, 100_000, 200


def below(t: float, degrees: int) -> float:
    """The probability that a value of so many degrees of freedom, at least 1, is at most `t`."""
    if math.isnan(t):
        return math.nan
    square = t * t
    if math.isinf(square):
        tail = 0.0
    elif square < degrees:  # of the two forms the one whose fraction is soon at its end
        tail = 0.5 * (1 - incomplete_beta(square / (degrees + square), 0.5, degrees / 2))
    else:
        tail = 0.5 * incomplete_beta(degrees / (degrees + square), degrees / 2, 0.5)
    return tail if t < 0 else 1 - tail


def quantile(share: float, degrees: int) -> float:
    """The value that this share of all, above 0 and below 1, is at most."""
    assert 0 < share < 1, share
    if share < 0.5:
        return -quantile(1 - share, degrees)
    low, high = 0.0, 1.0
    while 1 - share < below(-high, degrees):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if 1 - share < below(-middle, degrees) else (low, middle)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function of `x`, from 0 to 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...))."""
    value = above = 1.0
    under = 0.0
    for number in range(1, _MOST_TERMS):
        half = number // 2
        if number % 2:
            part = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            part = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        under = 1 / (1 + part * under or _TINY)
        above = 1 + part / above or _TINY
        value *= above * under
        if abs(above * under - 1) < _CLOSE:
            break
    return value
