"""Cross-entropy of the next token straight from hidden vectors, without ever holding all logits.

Legend: `N` tokens, `D` width, `V` vocabulary. The logits of a slice of tokens are made, turned into their own gradient
in place, and used up at once; memory is that of a slice. (PyTorch 2.13 has a function of this kind, 2.11 has none.)
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.likeliest import likeliest
from linnet.ops.linear import linear_product, matmul
from linnet.ops.soft_cap import apply_soft_cap, soft_cap_
from linnet.ops.support import to_autocast_dtype

SLICE_ELEMENTS = 1 << 21
"""Logits of one slice: 8 MiB of float32, which stays in a processor's cache."""

SLICE_ELEMENTS_DEVICE = 1 << 26
"""The same on a GPU, 256 MiB: there the head's gradient is read and written from afar for each slice."""

SLICE_TOKENS = 256
"""At least so many in a slice: each adds once to the gradient of the head's matrix, which is large where `V` is."""


IGNORE_INDEX = -100
"""A target that is not to be predicted: it adds nothing to a loss, a count or a gradient."""


class SummedLoss(NamedTuple):
    """Summed `-log p(target)` in nats, and how many targets were the likeliest token.

    total: `nats`, or with a z-loss what it adds to them; carries the graph, and where the two are one so does `nats`.
    squared_log_z: the sum of `log^2 Z` over the targets, where there is a z-loss.
    """

    nats: Tensor
    correct: Tensor
    total: Tensor
    squared_log_z: Tensor | None = None


class TokenLosses(NamedTuple):
    """`-log p(target)` in nats of each target, float64 (0 where it is ignored), and whether it was the likeliest."""

    nats: Tensor
    correct: Tensor


def linear_cross_entropy_reference(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
) -> SummedLoss:
    """The definition, with all logits in memory."""
    logits_NV = F.linear(x_ND, weight_VD, bias_V)
    if soft_cap is not None:
        logits_NV = apply_soft_cap(logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)), soft_cap)
    nats = F.cross_entropy(
        logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)),
        targets_N,
        ignore_index=IGNORE_INDEX,
        reduction="sum",
    )
    correct = (logits_NV.argmax(dim=-1) == targets_N).sum()
    if not z_loss:
        return SummedLoss(nats, correct, nats)
    log_z_N = logits_NV.to(nats.dtype).logsumexp(dim=-1)
    squares = log_z_N.square().masked_fill(targets_N == IGNORE_INDEX, 0.0).sum()
    return SummedLoss(nats.detach(), correct, nats + z_loss * squares, squares.detach())


def _tokens_of_a_slice(weight_VD: Tensor) -> int:
    elements = SLICE_ELEMENTS if weight_VD.device.type == "cpu" else SLICE_ELEMENTS_DEVICE
    return max(SLICE_TOKENS, elements // weight_VD.shape[0])


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        soft_cap: float | None,
        z_loss: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        differentiate = any(ctx.needs_input_grad)
        gradients = _Gradients(x_ND, weight_VD, bias_V) if differentiate else None
        nats, squares = torch.zeros((2,), dtype=torch.float64, device=x_ND.device)
        correct = torch.zeros((), dtype=torch.int64, device=x_ND.device)
        step = _tokens_of_a_slice(weight_VD)
        for first in range(0, x_ND.shape[0], step):
            part = slice(first, first + step)
            logits_nV = linear_product(x_ND[part], weight_VD, bias_V)
            logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
            slopes_nV = None if soft_cap is None else soft_cap_(logits_nV, soft_cap)
            highest_n1, likeliest_n1 = likeliest(logits_nV)
            ignored_n1 = targets_N[part, None] == IGNORE_INDEX
            targets_n1 = targets_N[part, None].masked_fill(ignored_n1, 0)
            correct += ((likeliest_n1 == targets_n1) & ~ignored_n1).sum()
            logits_nV -= highest_n1
            of_target_n1 = logits_nV.gather(1, targets_n1)
            total_n1 = logits_nV.exp_().sum(dim=-1, keepdim=True)
            nats += (total_n1.log() - of_target_n1).masked_fill(ignored_n1, 0.0).sum(dtype=torch.float64)
            if z_loss:
                log_z_n1 = total_n1.log() + highest_n1
                squares += log_z_n1.square().masked_fill(ignored_n1, 0.0).sum(dtype=torch.float64)
            if gradients is not None:
                logits_nV /= total_n1.masked_fill(ignored_n1, torch.inf)
                if z_loss:  # the slope of log Z is the probability
                    logits_nV *= 1 + 2 * z_loss * log_z_n1
                logits_nV.scatter_add_(1, targets_n1, ignored_n1.to(logits_nV.dtype) - 1.0)
                gradients.add(part, logits_nV if slopes_nV is None else logits_nV.mul_(slopes_nV))
        ctx.gradients = gradients
        ctx.mark_non_differentiable(correct, squares)
        return nats + z_loss * squares, correct, squares

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, upstream: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        of_x, of_weight, of_bias = ctx.gradients.scaled(upstream)
        ctx.gradients = None
        return of_x, of_weight, of_bias, None, None, None


class _Gradients:
    """Gradients of the summed loss, gathered slice by slice."""

    def __init__(self, x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> None:
        self.x_ND, self.weight_VD = x_ND, weight_VD
        self.of_x_ND = torch.empty_like(x_ND)
        wide = torch.promote_types(weight_VD.dtype, torch.float32)  # sums of many slices, so not in half precision
        self.of_weight_VD = torch.zeros_like(weight_VD, dtype=wide)
        self.of_bias_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=wide)

    def add(self, part: slice, of_logits_nV: Tensor) -> None:
        of_logits_nV = of_logits_nV.to(self.weight_VD.dtype)
        self.of_x_ND[part] = matmul(of_logits_nV, self.weight_VD)
        if self.of_weight_VD.dtype == of_logits_nV.dtype:
            self.of_weight_VD.addmm_(of_logits_nV.T, self.x_ND[part])
        else:
            self.of_weight_VD += of_logits_nV.T @ self.x_ND[part]
        if self.of_bias_V is not None:
            self.of_bias_V += of_logits_nV.sum(dim=0)

    def scaled(self, factor: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        dtype = self.weight_VD.dtype
        of_bias_V = None if self.of_bias_V is None else self.of_bias_V.mul_(factor).to(dtype)
        return self.of_x_ND.mul_(factor), self.of_weight_VD.mul_(factor).to(dtype), of_bias_V


def linear_cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
) -> SummedLoss:
    """The same, in slices: hidden vectors `[N, D]`, the head's matrix `[V, D]`, targets int64 `[N]`, maybe
    `IGNORE_INDEX`.

    soft_cap: of the logits (`ops.soft_cap`), where there is one. z_loss: the coefficient of `log^2 Z` in `total`, Z
    being what makes probabilities of logits (Chowdhery et al., PaLM, arXiv 2204.02311, section 5). `total` is float64.
    Gradients are made in the forward pass and can be used once. Under autocast the products are in autocast's
    precision, all behind them in float32.
    """
    if torch.compiler.is_compiling():
        return linear_cross_entropy_reference(x_ND, weight_VD, bias_V, targets_N, soft_cap, z_loss)
    device = x_ND.device.type
    weight, bias = to_autocast_dtype(weight_VD, bias_V)
    assert weight is not None, "a head without a matrix"
    bias = None if bias is None else bias.to(weight.dtype)
    with torch.autocast(device, enabled=False):
        total, correct, squares = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            x_ND.to(weight.dtype), weight, bias, targets_N, soft_cap, z_loss
        )
    if not z_loss:
        return SummedLoss(total, correct, total)
    return SummedLoss(total.detach() - z_loss * squares, correct, total, squares)


@torch.no_grad()
def token_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, soft_cap: float | None = None
) -> TokenLosses:
    """What `linear_cross_entropy` adds up, for each target `[N]`, in slices; without gradients."""
    step, parts = _tokens_of_a_slice(weight_VD), []
    for first in range(0, x_ND.shape[0], step):
        part = slice(first, first + step)
        logits_nV = linear_product(x_ND[part].to(weight_VD.dtype), weight_VD, bias_V)
        logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
        if soft_cap is not None:
            logits_nV = apply_soft_cap(logits_nV, soft_cap)
        highest_n1, likeliest_n1 = likeliest(logits_nV)
        ignored_n1 = targets_N[part, None] == IGNORE_INDEX
        targets_n1 = targets_N[part, None].masked_fill(ignored_n1, 0)
        logits_nV -= highest_n1
        of_target_n1 = logits_nV.gather(1, targets_n1)
        nats_n1 = logits_nV.exp_().sum(dim=-1, keepdim=True).log() - of_target_n1
        right_n1 = (likeliest_n1 == targets_n1) & ~ignored_n1
        parts.append((nats_n1[:, 0].double().masked_fill(ignored_n1[:, 0], 0.0), right_n1[:, 0]))
    nats, correct = zip(*parts, strict=True)
    return TokenLosses(torch.cat(nats), torch.cat(correct))
