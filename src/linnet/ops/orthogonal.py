"""The orthogonal factor of a matrix: `U V^T` of its singular value decomposition `U S V^T`.

Legend: `L` matrices, `M` rows, `N` columns, `m <= n` the smaller and the larger of the two.

The iteration applies odd polynomials `a x + b x^3 + c x^5` to the matrix, which bring its singular values towards 1.
The polynomial of step k is the best one on the interval in which step k-1 leaves the singular values (Amsel et al., The
Polar Express, arXiv 2505.16932, theorem 3.1), for a given number of steps and the error `ERROR`. The first interval
ends at 1: the matrix is divided by the eighth root of the sum of the eighth powers of its singular values, which is at
least the largest of them and, unlike the Frobenius norm, hardly larger (Grishina et al., arXiv 2506.10935, section 4;
the first step computes the product for it). This saves about one step.
"""

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

ERROR = 0.3
"""Singular values in the covered range end within this distance of 1; smaller ones end below."""

MARGIN = 1.01
"""Each polynomial is valid this factor beyond its interval, where rounding may leave a singular value."""

CUSHION = 0.1
"""No interval begins below this fraction of its end (section 4.3 there): the best polynomial of a longer one is almost
0 somewhere in it, where only rounding remains in half precision. Smaller singular values grow nearly as much.
"""

SMALLEST_NORM = 1e-30
"""A matrix with a smaller norm has no direction and becomes zeros."""

GRAM_ASPECT = 1.5
"""For a larger ratio of columns to rows, products of only the small side are less work, for any number of steps."""

GRAM_STEPS = 4
"""Steps between two products with the matrix: more would amplify the rounding of squares of small singular values."""

Polynomial = tuple[float, float, float]


def orthogonal_reference(matrices_LMN: Tensor, steps: int | None = None) -> Tensor:
    """`U V^T` of each matrix, exactly; with `steps`, the exact result of that many steps of the iteration."""
    left_LMm, s_Lm, right_LmN = torch.linalg.svd(matrices_LMN, full_matrices=False)
    size_L1 = s_Lm.norm(dim=-1, keepdim=True)
    if steps is None:
        s_Lm = (s_Lm > size_L1 * torch.finfo(s_Lm.dtype).eps).to(s_Lm.dtype)
    else:
        s_Lm = s_Lm / size_L1.clamp(min=SMALLEST_NORM)
        s_Lm = s_Lm / s_Lm.pow(8).sum(dim=-1, keepdim=True).pow(1 / 8).clamp(min=SMALLEST_NORM)
        for a, b, c in polynomials(steps):
            s_Lm = a * s_Lm + b * s_Lm**3 + c * s_Lm**5
    factor_LMN: Tensor = (left_LMm * s_Lm[:, None]) @ right_LmN
    return factor_LMN


def orthogonal(matrices_LMN: Tensor, steps: int = 3) -> Tensor:
    """`orthogonal_reference` up to an error, by matrix products alone: `[L, M, N]`, in the precision of its input.

    Singular values above `covered(steps)` times the largest (more exactly, the bound described above) end within
    `ERROR` of 1. The iteration on the small side is used only in float32 or wider.
    """
    rows, columns = matrices_LMN.shape[1:]
    x_Lmn = matrices_LMN if rows <= columns else matrices_LMN.transpose(1, 2)
    x_Lmn = x_Lmn / x_Lmn.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM)[:, None, None]
    wide = x_Lmn.dtype in (torch.float32, torch.float64)
    small_side = wide and max(rows, columns) > GRAM_ASPECT * min(rows, columns)
    x_Lmn = (_by_gram if small_side else _directly)(x_Lmn, polynomials(steps))
    return x_Lmn if rows <= columns else x_Lmn.transpose(1, 2)


def _directly(x_Lmn: Tensor, schedule: tuple[Polynomial, ...]) -> Tensor:
    """Two products with the matrices and one of the small side in each step.

    The first step also computes the bound of the singular values: the eighth root of the sum of their eighth powers,
    from the square of `x x^T`.
    """
    for number, (a, b, c) in enumerate(schedule):
        gram_Lmm = torch.bmm(x_Lmn, x_Lmn.mT)
        if number == 0:
            square_Lmm = torch.bmm(gram_Lmm, gram_Lmm)
            bound_L11 = square_Lmm.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM).pow(1 / 4)[:, None, None]
            x_Lmn = x_Lmn / bound_L11
            factor_Lmm = gram_Lmm * (b / bound_L11**2) + square_Lmm * (c / bound_L11**4)
        else:
            factor_Lmm = torch.baddbmm(gram_Lmm, gram_Lmm, gram_Lmm, beta=b, alpha=c)
        x_Lmn = torch.baddbmm(x_Lmn, factor_Lmm, x_Lmn, beta=a)
    return x_Lmn


def _by_gram(x_Lmn: Tensor, schedule: tuple[Polynomial, ...]) -> Tensor:
    """Products of the small side alone, except for one at the beginning and one at the end of `GRAM_STEPS`.

    The factors of the steps are polynomials of `x x^T`, which commute, so their product is applied once.
    """
    for first in range(0, len(schedule), GRAM_STEPS):
        gram_Lmm = torch.bmm(x_Lmn, x_Lmn.mT)
        product_Lmm: Tensor | None = None
        part = schedule[first : first + GRAM_STEPS]
        for number, (a, b, c) in enumerate(part, start=1):
            square_Lmm = torch.bmm(gram_Lmm, gram_Lmm)
            if first == 0 and number == 1:
                bound_L11 = square_Lmm.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM).pow(1 / 4)[:, None, None]
                x_Lmn, gram_Lmm, square_Lmm = x_Lmn / bound_L11, gram_Lmm / bound_L11**2, square_Lmm / bound_L11**4
            factor_Lmm = square_Lmm.mul_(c).add_(gram_Lmm, alpha=b)
            factor_Lmm.diagonal(dim1=1, dim2=2).add_(a)
            product_Lmm = factor_Lmm if product_Lmm is None else torch.bmm(factor_Lmm, product_Lmm)
            if number < len(part):
                gram_Lmm = torch.bmm(torch.bmm(factor_Lmm, gram_Lmm), factor_Lmm)
        assert product_Lmm is not None, "no steps"
        x_Lmn = torch.bmm(product_Lmm, x_Lmn)
    return x_Lmn


@cache
def polynomials(steps: int) -> tuple[Polynomial, ...]:
    """`(a, b, c)` of each step, for singular values from `covered(steps)` to 1."""
    return _schedule(covered(steps), steps)[0]


@cache
def covered(steps: int) -> float:
    """The smallest singular value that this number of steps brings within `ERROR` of 1, of values up to 1."""
    low, high = math.log(1e-12), 0.0
    for _ in range(40):
        middle = (low + high) / 2
        if _schedule(math.exp(middle), steps)[1] > ERROR:
            low = middle
        else:
            high = middle
    return math.exp(high)


def _schedule(lowest: float, steps: int) -> tuple[tuple[Polynomial, ...], float]:
    """The best polynomial of each step after the ones before, and how far below 1 the last one leaves any value."""
    low, high, schedule = lowest, MARGIN, []
    for _ in range(steps):
        (a, b, c), error = _best(max(low, CUSHION * high), high)
        schedule.append((a, b, c))
        low, high = min(a * low + b * low**3 + c * low**5, 1 - error), (1 + error) * MARGIN
    return tuple(schedule), 1 - low


def _best(low: float, high: float) -> tuple[Polynomial, float]:
    """The odd polynomial of degree 5 that is closest to 1 on an interval, and its largest distance (Remez)."""
    inner = np.array([low + (high - low) / 4, low + 3 * (high - low) / 4])
    for _ in range(30):
        x = np.array([low, *inner, high])
        system = np.stack([x, x**3, x**5, [1.0, -1.0, 1.0, -1.0]], axis=1)
        a, b, c, error = np.linalg.solve(system, np.ones(4)).tolist()
        root = math.sqrt(max(0.0, 9 * b * b - 20 * a * c))
        squares = [(-3 * b - root) / (10 * c), (-3 * b + root) / (10 * c)]
        if not low**2 < min(squares) <= max(squares) < high**2:
            break  # the interval is a point to working precision, or the iteration has converged
        inner = np.sqrt(np.sort(squares))
    return (a, b, c), abs(error)
