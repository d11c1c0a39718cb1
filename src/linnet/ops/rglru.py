"""The real-gated linear recurrent unit of Griffin (De et al., 2024, arXiv 2402.19427, section 2.4).

With gates r, i in (0, 1) for each token and channel, and a rate `s > 0` for each channel (`c softplus` of a parameter):

    a_t = exp(-s r_t),   h_t = a_t h_(t-1) + sqrt(1 - a_t^2) (i_t x_t)      (eqs. 3 and 4)

The decay stays a logarithm up to its last use, so that a rate near 0 keeps its digits: `1 - a^2` is `-expm1(-2 s r)`.
The first token of a stream is not scaled by the root, as nothing is before it that it would have to balance: so the
published code has it, not the paper. The root's slope is infinite where nothing is forgotten; as in the published code,
it is at most `STEEPEST`.

Legend: `B` batch, `T` tokens, `E` channels.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.linear_scan import linear_scan

STEEPEST = 1000.0
"""Largest slope of the root."""


def rglru_reference(
    x_BTE: Tensor, input_gate_BTE: Tensor, gate_BTE: Tensor, rate_E: Tensor, begins_B1: Tensor, h_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: all states `[B, T, E]`, and the last, `[B, E]`.

    input_gate_BTE: i; gate_BTE: r, the recurrence's. rate_E: s. begins_B1: bool, whether the first token is the first
    of its stream (`[1, 1]` where rows agree). h_BE: the state before it.
    """
    states = []
    for place, (x_BE, i_BE, r_BE) in enumerate(
        zip(*(part.unbind(1) for part in (x_BTE, input_gate_BTE, gate_BTE)), strict=True)
    ):
        scale_BE = _Root.apply(-torch.expm1(-2 * rate_E * r_BE))  # type: ignore[no-untyped-call]
        if place == 0:
            scale_BE = torch.where(begins_B1, 1.0, scale_BE)
        h_BE = (-rate_E * r_BE).exp() * h_BE + scale_BE * i_BE * x_BE
        states.append(h_BE)
    return torch.stack(states, dim=1), h_BE


def rglru(
    x_BTE: Tensor, input_gate_BTE: Tensor, gate_BTE: Tensor, rate_E: Tensor, begins_B1: Tensor, h_BE: Tensor
) -> tuple[Tensor, Tensor]:
    """The same, fast: in time and memory linear in the length, parallel over it. Differentiable once."""
    a_BTE, b_BTE = _Gated.apply(x_BTE, input_gate_BTE, gate_BTE, rate_E, begins_B1)  # type: ignore[no-untyped-call]
    return linear_scan(a_BTE, b_BTE, h_BE)


class _Root(torch.autograd.Function):
    """The square root, with a slope of at most `STEEPEST`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        root: Tensor = ctx.saved_tensors[0]
        return upstream / (2 * root).clamp(min=1 / STEEPEST)


class _Gated(torch.autograd.Function):
    """Decays a and inputs b of the recurrence, `[B, T, E]` each; backward makes decays and roots again."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, input_gate_BTE: Tensor, gate_BTE: Tensor, rate_E: Tensor, begins_B1: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x_BTE, input_gate_BTE, gate_BTE, rate_E, begins_B1)
        log_a_BTE = gate_BTE * -rate_E
        scale_BTE = _scale(log_a_BTE, begins_B1)
        return log_a_BTE.exp_(), scale_BTE.mul_(input_gate_BTE).mul_(x_BTE)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_a_BTE: Tensor, of_b_BTE: Tensor) -> tuple[Tensor | None, ...]:
        x_BTE, input_gate_BTE, gate_BTE, rate_E, begins_B1 = ctx.saved_tensors
        log_a_BTE = gate_BTE * -rate_E
        scale_BTE, a_BTE = _scale(log_a_BTE, begins_B1), log_a_BTE.exp_()
        of_scaled_BTE = of_b_BTE * scale_BTE
        # scale = sqrt(1 - a^2), so its derivative by a is -a / scale
        slope_BTE = a_BTE / scale_BTE.clamp_(min=0.5 / STEEPEST)
        slope_BTE[:, 0].masked_fill_(begins_B1, 0)
        of_a_BTE = of_a_BTE.addcmul(of_b_BTE * input_gate_BTE * x_BTE, slope_BTE, value=-1)
        of_log_a_BTE = of_a_BTE.mul_(a_BTE)
        of_rate_E = -(of_log_a_BTE * gate_BTE).sum((0, 1))
        return of_scaled_BTE * input_gate_BTE, of_scaled_BTE * x_BTE, of_log_a_BTE * -rate_E, of_rate_E, None


def _scale(log_a_BTE: Tensor, begins_B1: Tensor) -> Tensor:
    """`sqrt(1 - a^2)`, 1 for the first token of a stream."""
    scale_BTE = (2 * log_a_BTE).expm1_().neg_().sqrt_()
    scale_BTE[:, 0].masked_fill_(begins_B1, 1)
    return scale_BTE
