"""Equations with a triangular matrix whose diagonal is 1, as delta rules have them within a chunk.

Legend: `C` tokens of a chunk, `V` columns.
"""

import torch
from torch import Tensor

from linnet.ops.support import is_exporting

FEW = 8
"""Equations that are solved by powers: of more, powers would be much larger than what they add up to."""


def solved(below_CC: Tensor, right_CV: Tensor) -> Tensor:
    """x of `(1 + below) x = right`, `[..., C, V]`; of `below`, `[..., C, C]`, what lies below the diagonal counts."""
    if is_exporting():  # ONNX has no operator for it
        return solved_by_products(below_CC, right_CV)
    x_CV: Tensor = torch.linalg.solve_triangular(below_CC, right_CV, upper=False, unitriangular=True)
    return x_CV


def solved_by_products(below_CC: Tensor, right_CV: Tensor) -> Tensor:
    """The same in products alone: the first half of x, and the second of what it leaves."""
    size, half = below_CC.shape[-1], below_CC.shape[-1] // 2
    if size <= FEW:
        return _by_powers(below_CC, right_CV)
    first_HV = solved_by_products(below_CC[..., :half, :half], right_CV[..., :half, :])
    left_HV = right_CV[..., half:, :] - below_CC[..., half:, :half] @ first_HV
    return torch.cat([first_HV, solved_by_products(below_CC[..., half:, half:], left_HV)], dim=-2)


def _by_powers(below_CC: Tensor, right_CV: Tensor) -> Tensor:
    """With `N = -below`, whose C-th power is 0, x is `(1 + N) (1 + N^2) (1 + N^4) ...`."""
    power_CC, x_CV, reached = -below_CC.tril(-1), right_CV, 1
    while reached < below_CC.shape[-1]:
        x_CV = x_CV + power_CC @ x_CV
        power_CC, reached = power_CC @ power_CC, 2 * reached
    return x_CV
