"""Mixing of a token with the tokens just before it: a causal convolution and RWKV's token shift.

The token shift is `mixed_t = x_t + share (x_(t-1) - x_t)` for each channel (Peng et al., 2023, arXiv 2305.13048,
section 3.1; `1 - share` is called mu there, and `time_mix` in the published weights of version 4).

Shapes: `B` batch, `T` tokens of the chunk, `D` or `E` channels, `W` inputs of one output.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnet.nn.cost import Cost


class KeepsInputs(Protocol):
    """A state with the last inputs of a convolution, `[B, E, W - 1]`."""

    inputs: Tensor


class CausalConvolution(nn.Conv1d):
    """`out_t = bias + sum over w = 0..W-1 of  weight_w x_(t-W+1+w)`, initialized like PyTorch's convolution.

    before: the number of earlier inputs that an output depends on, W - 1.
    """

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.before = width - 1

    def following(self, x_BET: Tensor, before_BEW: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs `[B, E, T]`, and the last inputs `[B, E, W - 1]`, which the next chunk needs.

        before_BEW: the inputs before the first token, `[B, E, W - 1]`; None for zeros.
        """
        if before_BEW is None:
            x_BET = F.pad(x_BET, (self.before, 0))
        else:
            x_BET = torch.cat([before_BEW.to(x_BET.dtype), x_BET], dim=2)
        out_BET: Tensor = self(x_BET)
        return out_BET, x_BET[:, :, x_BET.shape[2] - self.before :]

    def advancing(self, x_BET: Tensor, state: KeepsInputs | None) -> Tensor:
        """The outputs `[B, E, T]` after the inputs of a state, which is advanced; without a state these are zeros."""
        out_BET, last_BEW = self.following(x_BET, None if state is None else state.inputs)
        if state is not None:
            state.inputs = last_BEW.detach().to(state.inputs.dtype).clone()
        return out_BET


def convolution_cost(channels: int, width: int, bias: bool) -> Cost:
    """Parameters, products, and the last inputs as state; the caller counts the input that it keeps."""
    return Cost(
        parameters=channels * (width + bias),
        flops_per_token=2 * channels * width,
        state_elements=channels * (width - 1),
    )


class KeepsLast(Protocol):
    """A state with the last token of a stream, `[B, D]`."""

    last: Tensor


def token_mixes(x_BTD: Tensor, shares: Sequence[Tensor], state: KeepsLast | None) -> tuple[Tensor, ...]:
    """For each share `[D]` the mixed tokens, `[B, T, D]`; reads and advances the state. Differentiable once.

    Zeros precede the first token of a stream, and of a chunk without a state. A share of 0 leaves a token unchanged, a
    share of 1 replaces it by the previous one.
    """
    before_BD = torch.zeros_like(x_BTD[:, 0]) if state is None else state.last.to(x_BTD.dtype)
    if state is not None:
        state.last = x_BTD[:, -1].detach().to(state.last.dtype).clone()  # a view would keep all tokens alive
    shares = [share_D.to(x_BTD.dtype) for share_D in shares]
    mixes: tuple[Tensor, ...] = _Mixes.apply(x_BTD, before_BD, *shares)  # type: ignore[no-untyped-call]
    return mixes


def token_shift_cost(channels: int, shares: int) -> Cost:
    """Shares; the last token as state; the previous token, the tokens and each mix are kept for the backward pass."""
    return Cost(
        parameters=channels * shares,
        state_elements=channels,
        activations_per_sequence=channels,
        activations_per_token=channels * (1 + shares),
    )


class _Mixes(torch.autograd.Function):
    """The mixes of a token shift; forward keeps only its inputs, which a preceding norm may keep anyway."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, before_BD: Tensor, *shares: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x_BTD, before_BD, *shares)
        step_BTD = _differences(x_BTD, before_BD)
        return tuple(torch.addcmul(x_BTD, step_BTD, share_D) for share_D in shares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, ...]:
        x_BTD, before_BD, *shares = ctx.saved_tensors
        step_BTD = _differences(x_BTD, before_BD)
        grad_x_BTD, grad_step_BTD = torch.zeros_like(step_BTD), torch.zeros_like(step_BTD)
        grad_shares = []
        for upstream_BTD, share_D in zip(upstreams, shares, strict=True):
            grad_x_BTD += upstream_BTD
            grad_step_BTD.addcmul_(upstream_BTD, share_D)
            grad_shares.append((upstream_BTD * step_BTD).sum((0, 1)))
        grad_x_BTD -= grad_step_BTD
        grad_x_BTD[:, :-1] += grad_step_BTD[:, 1:]
        return grad_x_BTD, grad_step_BTD[:, 0], *grad_shares


def _differences(x_BTD: Tensor, before_BD: Tensor) -> Tensor:
    """The previous token minus each token, `[B, T, D]`."""
    return torch.cat([before_BD[:, None], x_BTD[:, :-1]], dim=1).sub_(x_BTD)
