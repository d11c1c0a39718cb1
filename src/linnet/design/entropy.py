"""Entropy of a linear layer (MeRino, arXiv 2403.07921): `H = E sum_j log(1 + s_j^2 / eps^2)`.

`s_j` are the singular values of a matrix of inputs times outputs whose elements are drawn from N(0, sigma^2).
Legend: `k` the smaller of inputs and outputs, `n` the larger.
"""

from functools import cache
from math import log1p, sqrt

import numpy as np

STEP = 32
"""The sampled form draws matrices whose larger side is a multiple of it, and interpolates between."""


@cache
def entropy(inputs: int, outputs: int, sigma: float = 1.0, eps: float = 1.0) -> float:
    """The limit of large matrices in closed form (Marchenko and Pastur, 1967; Verdu and Shamai, 1999).

    With `b = k / n`, `g = n sigma^2 / eps^2`, `f = (sqrt(g (1 + sqrt b)^2 + 1) - sqrt(g (1 - sqrt b)^2 + 1))^2`:
    `H = n (b log(1 + g - f / 4) + log(1 + g b - f / 4) - f / (4 g))`. Beside a large or a small `g` those differences
    lose all digits; here they are written as sums and quotients, which keep them.
    """
    k, n = sorted((inputs, outputs))
    g = n * (sigma / eps) ** 2
    gb, difference = g * (k / n), g * ((n - k) / n)
    root = sqrt(difference**2 + 2 * (g + gb) + 1)  # the product of the two roots in f
    low, high = 1 + root + difference, 1 + root + g + gb
    # 1 + g - f / 4 = 1 + g low / high, 1 + g b - f / 4 = 1 + more, f / (4 g) = more / (1 + more)
    more = 2 * gb / low
    return k * log1p(g * (low / high)) + n * (log1p(more) - more / (1 + more))


@cache
def sampled_entropy(
    inputs: int, outputs: int, sigma: float = 1.0, eps: float = 1.0, samples: int = 4, seed: int = 0
) -> float:
    """The mean over matrices drawn; where the larger side is no multiple of `STEP`, between those of its neighbors.

    As in the paper, which reads a table. The neighbors' matrices are as narrow as this one.
    """
    k, n = sorted((inputs, outputs))
    below = n // STEP * STEP
    if below in (0, n):
        return _drawn(k, n, sigma, eps, samples, seed)
    low, high = (_drawn(k, side, sigma, eps, samples, seed) for side in (below, below + STEP))
    return low + (high - low) * (n - below) / STEP


@cache
def _drawn(inputs: int, outputs: int, sigma: float, eps: float, samples: int, seed: int) -> float:
    k, n = sorted((inputs, outputs))
    draws = np.random.default_rng((seed, k, n))
    values = []
    for _ in range(samples):
        matrix = draws.standard_normal((k, n), dtype=np.float32).astype(np.float64)
        squares = np.linalg.eigvalsh(matrix @ matrix.T).clip(min=0.0)
        values.append(float(np.log1p((sigma / eps) ** 2 * squares).sum()))
    return sum(values) / samples
