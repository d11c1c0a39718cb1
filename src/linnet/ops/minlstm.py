"""The recurrence of minLSTM (Feng et al., 2024, arXiv 2410.01201, section 3.2), whose gates see the input alone.

With gates f = sigmoid of a logit, i = sigmoid of another, divided by their sum, so that what is forgotten is taken in:

    h_t = f_t / (f_t + i_t) h_(t-1) + i_t / (f_t + i_t) c_t

Both shares come from the difference of logarithms, `f / (f + i) = sigmoid(log f - log i)`: where both gates are so near
0 that float32 has none of them, their ratio is still right. `minlstm_reference` is the definition; `minlstm` takes
`ops.linear_scan`, which needs no logarithm of what is read (the paper's own scan does, so there c has to be positive).

Legend: `B` batch, `T` tokens, `E` channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.linear_scan import linear_scan


def minlstm_reference(
    forget_BTE: Tensor, input_BTE: Tensor, candidate_BTE: Tensor, h_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: all states `[B, T, E]`, and the last, `[B, E]`.

    forget_BTE, input_BTE: logits of the gates. candidate_BTE: c. h_BE: the state before the first token.
    """
    states = []
    for forget_BE, input_BE, candidate_BE in zip(
        *(part.unbind(1) for part in (forget_BTE, input_BTE, candidate_BTE)), strict=True
    ):
        forget_share_BE, input_share_BE = shares(forget_BE, input_BE)
        h_BE = forget_share_BE * h_BE + input_share_BE * candidate_BE
        states.append(h_BE)
    return torch.stack(states, dim=1), h_BE


def minlstm(forget_BTE: Tensor, input_BTE: Tensor, candidate_BTE: Tensor, h_BE: Tensor) -> tuple[Tensor, Tensor]:
    """The same, fast: in time and memory linear in the length, parallel over it. Differentiable once."""
    forget_share_BTE, input_share_BTE = shares(forget_BTE, input_BTE)
    return linear_scan(forget_share_BTE, input_share_BTE * candidate_BTE, h_BE)


def shares(forget: Tensor, input_: Tensor) -> tuple[Tensor, Tensor]:
    """`f / (f + i)` and `i / (f + i)` from the gates' logits, each to its own last digits."""
    difference = F.logsigmoid(forget) - F.logsigmoid(input_)
    return difference.sigmoid(), (-difference).sigmoid()


def positive(x: Tensor) -> Tensor:
    """`x + 1/2` from 0 on, `sigmoid(x)` below (appendix B.3): positive, with a slope that jumps from 1/4 to 1 at 0."""
    return x.relu() + x.clamp(max=0).sigmoid()
