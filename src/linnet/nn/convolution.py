"""A causal convolution along the tokens, each channel by itself.

Legend: `B` batch, `E` channels, `T` tokens of the chunk, `W` inputs of an output, its own token's the last.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.nn.cost import Cost


class KeepsInputs(Protocol):
    """A state with the last inputs of a convolution, `[B, E, W - 1]`."""

    inputs: Tensor


class CausalConvolution(nn.Conv1d):
    """`out_t = bias + sum over w = 0..W-1 of  weight_w x_(t-W+1+w)`; starts as PyTorch's convolution does."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)

    @property
    def before(self) -> int:
        """Inputs before the first token that an output depends on, W - 1."""
        return self.kernel_size[0] - 1

    def following(self, x_BET: Tensor, before_BEW: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs `[B, E, T]`, and the inputs `[B, E, W - 1]` that the next chunk follows.

        before_BEW: the inputs before the first token, `[B, E, W - 1]`; None for zeros.
        """
        if before_BEW is None:
            x_BET = F.pad(x_BET, (self.before, 0))
        else:
            x_BET = torch.cat([before_BEW.to(x_BET.dtype), x_BET], dim=2)
        out_BET: Tensor = self(x_BET)
        return out_BET, x_BET[:, :, x_BET.shape[2] - self.before :]

    def advancing(self, x_BET: Tensor, state: KeepsInputs | None) -> Tensor:
        """The outputs `[B, E, T]` behind the inputs that a state keeps, and the state advanced; zeros without one."""
        out_BET, last_BEW = self.following(x_BET, None if state is None else state.inputs)
        if state is not None:
            state.inputs = last_BEW.detach().to(state.inputs.dtype).clone()
        return out_BET


def convolution_cost(channels: int, width: int, bias: bool) -> Cost:
    """Parameters, products, and the last inputs as state. What it reads is kept for it by whoever calls it."""
    return Cost(
        parameters=channels * (width + bias),
        flops_per_token=2 * channels * width,
        state_elements=channels * (width - 1),
    )
