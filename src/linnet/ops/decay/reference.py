"""The decaying sum: the definition, and the same as one matrix of weights.

`o_t = sum_{j <= t} exp(-rate_j (t - j)) v_j` (github.com/biuq/ted): the rate belongs to the SOURCE token. With keys
(our addition) each weight is multiplied by `q_t . k_j`, so that a reader selects among what remains.

Legend: `B` batch, `S` tokens of the stream, `T` the last tokens, whose sums are computed, `N` heads, `C` channels
of a head (`N = 1`: one rate per token), `M` width of a key.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Keys(NamedTuple):
    """Queries of the readers, `[B, T, N, M]`, and keys of all tokens of the stream, `[B, S, N, M]`."""

    queries: Tensor
    keys: Tensor


def decay_rates(logits: Tensor) -> Tensor:
    """`rate = -log(sigmoid(logit))`, positive. Computed as softplus, because the sigmoid may round to 0."""
    return F.softplus(-logits)


def decay_definition(rates_BSN: Tensor, v_BSNC: Tensor, queries: int, keys: Keys | None = None) -> Tensor:
    """The definition, one sum after another: `[B, T, N, C]` for the last `queries` tokens. For tests."""
    sums = []
    before = rates_BSN.shape[1] - queries
    for t in range(before, rates_BSN.shape[1]):
        total = torch.zeros_like(v_BSNC[:, 0])
        for j in range(t + 1):
            weight_BN = torch.exp(-rates_BSN[:, j] * (t - j))
            if keys is not None:
                weight_BN = weight_BN * (keys.queries[:, t - before] * keys.keys[:, j]).sum(-1)
            total = total + weight_BN[..., None] * v_BSNC[:, j]
        sums.append(total)
    return torch.stack(sums, dim=1)


def decay_reference(rates_BSN: Tensor, v_BSNC: Tensor, queries: int, keys: Keys | None = None) -> Tensor:
    """The sums as one matrix product per head; quadratic in the length: `[B, T, N, C]`."""
    length = rates_BSN.shape[1]
    steps = torch.arange(length, device=rates_BSN.device)
    age_TS = steps[length - queries :, None] - steps
    # `exp(-rate_j (t - j))` for the last tokens t and every source j, 0 for j > t.
    exponents_BNTS = -rates_BSN.transpose(1, 2)[:, :, None, :] * age_TS.clamp(min=0)
    weights_BNTS = exponents_BNTS.exp().masked_fill(age_TS < 0, 0.0).to(v_BSNC.dtype)
    if keys is not None:
        weights_BNTS = weights_BNTS * (keys.queries.transpose(1, 2) @ keys.keys.permute(0, 2, 3, 1))
    return (weights_BNTS @ v_BSNC.transpose(1, 2)).transpose(1, 2)
