"""Logits that never pass a bound: `cap tanh(logits / cap)` (Gemma 2, arXiv 2408.00118, section 2.2).

Near 0 they stay as they are, the order of all stays. Legend: `N` tokens, `V` vocabulary.
"""

import torch
from torch import Tensor


def apply_soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Between `-cap` and `cap`, in the precision of `logits` and computed in float32 or wider."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (cap * torch.tanh(wide / cap)).to(logits.dtype)


def soft_cap_(logits_NV: Tensor, cap: float) -> Tensor:
    """The same in place, of logits in float32 or wider; gives the slopes `[N, V]`, which gradients are multiplied by.

    Without gradients.
    """
    logits_NV.div_(cap).tanh_()
    slopes_NV = torch.addcmul(logits_NV.new_ones(()), logits_NV, logits_NV, value=-1)
    logits_NV.mul_(cap)
    return slopes_NV
