"""The decaying sum as defined, and as one matrix of weights.

`o_t = sum_{j <= t} exp(-rate_j (t - j)) v_j` (github.com/biuq/ted): the rate belongs to the SOURCE token.

Legend: `B` batch, `S` tokens of the stream, `T` the last tokens of it whose sums are wanted, `N` heads, `C` channels
of a head (`N = 1`: one rate per token).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def decay_rates(logits: Tensor) -> Tensor:
    """`rate = -log(sigmoid(logit))`, always positive; computed as softplus, so no rounded zero meets a logarithm."""
    return F.softplus(-logits)


def decay_definition(rates_BSN: Tensor, v_BSNC: Tensor, queries: int) -> Tensor:
    """The definition, one sum after another: `[B, T, N, C]` for the last `queries` tokens. For tests."""
    sums = []
    for t in range(rates_BSN.shape[1] - queries, rates_BSN.shape[1]):
        total = torch.zeros_like(v_BSNC[:, 0])
        for j in range(t + 1):
            total = total + torch.exp(-rates_BSN[:, j] * (t - j))[..., None] * v_BSNC[:, j]
        sums.append(total)
    return torch.stack(sums, dim=1)


def decay_weights(rates_BSN: Tensor, queries: int) -> Tensor:
    """`exp(-rate_j (t - j))` for the last `queries` tokens t and every source j, 0 for j > t: `[B, N, T, S]`."""
    length = rates_BSN.shape[1]
    steps = torch.arange(length, device=rates_BSN.device)
    age_TS = steps[length - queries :, None] - steps
    exponents = -rates_BSN.transpose(1, 2)[:, :, None, :] * age_TS.clamp(min=0)
    return exponents.exp().masked_fill(age_TS < 0, 0.0)


def decay_reference(rates_BSN: Tensor, v_BSNC: Tensor, queries: int) -> Tensor:
    """The same as one matrix product per head; quadratic in the length: `[B, T, N, C]`."""
    weights_BNTS = decay_weights(rates_BSN, queries).to(v_BSNC.dtype)
    return (weights_BNTS @ v_BSNC.transpose(1, 2)).transpose(1, 2)
