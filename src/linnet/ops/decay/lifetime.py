"""How long a token lasts: its relevance over time, and the steps until nothing above a threshold is left of it.

A token whose quantity is `v` and whose rate is `rate` has, `age` steps later, the relevance `||v|| exp(-rate age)`
(github.com/biuq/ted). With several heads (ours) it is the norm over all heads of what is left:
`sqrt(sum_n (||v_n|| exp(-rate_n age))^2)`. Both are known as soon as the token has been read.

Legend: `X` any shape, `N` heads (`N = 1`: as published).
"""

import math

import torch
from torch import Tensor

MOST_STEPS = 100
"""Of Newton's method. A few are enough, and about 40 where one head's last trace decides about another."""

ROUNDING = 1e-13
"""A step that is so small, in terms of the age, ends it."""


def relevance(norms_XN: Tensor, rates_XN: Tensor, ages_X: Tensor) -> Tensor:
    """What is left of each token at its age, `[X]`; the three broadcast, and the widest precision is kept.

    norms_XN: the norm of each head's quantity. rates_XN: per step, at least 0. ages_X: steps, at least 0.
    """
    left_XN = norms_XN * torch.exp(-rates_XN * ages_X[..., None])
    # Squares alone would underflow; and of one head this is its own norm, to the bit.
    largest_X1 = left_XN.amax(dim=-1, keepdim=True)
    shares_XN = left_XN / largest_X1.clamp(min=torch.finfo(left_XN.dtype).tiny)
    relevance_X: Tensor = largest_X1[..., 0] * torch.linalg.vector_norm(shares_XN, dim=-1)
    return relevance_X


def lifetimes_definition(norms_XN: Tensor, rates_XN: Tensor, threshold: float, most: int) -> Tensor:
    """The definition of `lifetimes`, one step after another, none after `most`: float64 `[X]`. For tests."""
    norms_XN, rates_XN = norms_XN.double(), rates_XN.double()
    held_X = torch.zeros(norms_XN.shape[:-1], dtype=torch.float64, device=norms_XN.device)
    for age in range(most):
        held_X += relevance(norms_XN, rates_XN, torch.full_like(held_X, age)) >= threshold
    return held_X


def lifetimes(norms_XN: Tensor, rates_XN: Tensor, threshold: float) -> Tensor:
    """The first whole age, in steps, at which the relevance of each token is below the threshold: float64 `[X]`.

    A context that at every step, after the newest token has joined at age 0, drops all below the threshold holds the
    token for exactly so many steps: 0 if it drops it at once. Of one head it is `floor(ln(||v|| / threshold) / rate)
    + 1`, where the norm is not below the threshold. Infinite where the relevance stays above for ever.

    Raises:
        ValueError: the threshold is not a positive, finite number.
    """
    norms_XN, rates_XN = norms_XN.double(), rates_XN.double()
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold: {threshold}: must be a finite number above 0")
    crossing_X = fading_ages(norms_XN, rates_XN, torch.full_like(norms_XN[..., 0], threshold))
    # The crossing is rounded, so the relevance itself decides about the whole ages around it.
    whole_X = crossing_X.floor()
    held_X = whole_X.clone()
    for later in range(2):
        held_X += relevance(norms_XN, rates_XN, whole_X + later) >= threshold
    return held_X


def half_lives(norms_XN: Tensor, rates_XN: Tensor) -> Tensor:
    """The age at which half of each token's first relevance is left, float64 `[X]`; `ln 2 / rate` of one head.

    Not rounded to whole steps; infinite for a rate of 0. Of a token without a quantity: as if all heads had the same.
    """
    largest_X1 = norms_XN.double().amax(dim=-1, keepdim=True)
    shares_XN = torch.where(largest_X1 > 0, norms_XN / largest_X1, 1.0)
    return fading_ages(shares_XN, rates_XN, torch.linalg.vector_norm(shares_XN, dim=-1) / 2)


def fading_ages(norms_XN: Tensor, rates_XN: Tensor, levels_X: Tensor) -> Tensor:
    """The age, not rounded to whole steps, at which the relevance has come down to a level: float64 `[X]`.

    0 where it begins below the level, infinite where it never comes down to it. The logarithm of the relevance is
    convex and falls, so Newton's method, from an age at which it is above, comes closer with each step and never
    passes; of one head it is there at once.
    """
    rates_XN = rates_XN.double()
    logs_XN = norms_XN.double().log() - levels_X.double().log()[..., None]
    # Until then the head that lasts longest is above by itself. One that is just at the level: for ever or not at all.
    alone_XN = torch.where(logs_XN == 0, torch.where(rates_XN == 0, math.inf, 0.0), logs_XN / rates_XN)
    ages_X = alone_XN.amax(dim=-1).clamp(min=0)
    for _ in range(MOST_STEPS):
        steps_X = _newton(logs_XN, rates_XN, ages_X)
        ages_X = ages_X + steps_X
        if (steps_X <= ROUNDING * (1 + ages_X)).all():
            break
    return ages_X


def _newton(logs_XN: Tensor, rates_XN: Tensor, ages_X: Tensor) -> Tensor:
    """How far it still is by the tangent at each age; 0 from where the relevance is below the level."""
    exponents_XN = 2 * (logs_XN - rates_XN * torch.where(ages_X.isinf(), 0.0, ages_X)[..., None])
    above_X = exponents_XN.logsumexp(dim=-1) / 2
    slope_X = (exponents_XN.softmax(dim=-1) * rates_XN).sum(dim=-1)
    return torch.where(above_X > 0, above_X / slope_X, 0.0)
