"""The tensors of power-law graph attention (Gokden, arXiv 2502.13502), without any module around them.

Legend: `B` batch, `H` heads, `T` tokens, `K` head width. All of `A, A_LM, A_P, G` are `[B, H, K, K]`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

METRIC_FLOOR = 1e-9
"""Added to the metric tensor, so that its powers and their gradients exist."""


def density(q_BHTK: Tensor, real_BT: Tensor | None = None) -> Tensor:
    """`D0 = q^T q` summed over the real tokens of the whole sequence, `[B, H, K, K]`, in at least float32."""
    q_BHTK = q_BHTK.to(torch.promote_types(q_BHTK.dtype, torch.float32))
    if real_BT is not None:
        q_BHTK = q_BHTK.masked_fill(~real_BT[:, None, :, None], 0.0)
    return q_BHTK.transpose(-1, -2) @ q_BHTK


def iswiglu(z: Tensor) -> Tensor:
    """`z * silu(z)`, never negative."""
    return z * F.silu(z)


def metric_tensor(a_BHKK: Tensor, weight_HKK: Tensor, bias_HKK: Tensor) -> Tensor:
    """`A_LM = iswiglu(W A + b) + 1e-9`."""
    return iswiglu(weight_HKK @ a_BHKK + bias_HKK) + METRIC_FLOOR


def potential_tensor(a_lm_BHKK: Tensor, power_HKK: Tensor) -> Tensor:
    """`A_P = A_LM ** P`, element by element."""
    return a_lm_BHKK**power_HKK


def energy_curvature_tensor(a_p_BHKK: Tensor, weight_HKK: Tensor, bias_HKK: Tensor) -> Tensor:
    """`G = a A_P + b_a`, the operator between query and key."""
    return weight_HKK @ a_p_BHKK + bias_HKK
