"""Cross-entropy of the next token directly from hidden vectors, without all logits in memory; soft caps; row maxima.

The logits of a slice of tokens are computed, converted to their own gradient in place, and consumed at once, so memory
is that of a slice. (PyTorch 2.13 has a function of this kind, 2.11 has none.)

Legend: `N` tokens, `n` tokens of a slice, `D` width, `V` vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.linear import linear_product, matmul
from linnet.ops.support import accumulation_dtype, to_autocast_dtype, widen

SLICE_ELEMENTS = 1 << 21
"""Logits of one slice: 8 MiB of float32, which stays in a processor's cache."""

SLICE_ELEMENTS_DEVICE = 1 << 26
"""The same on a GPU, 256 MiB: there each slice reads and writes the gradient of the head in main memory."""

SLICE_TOKENS = 256
"""Smallest number of tokens of a slice: each slice adds to the head's gradient, which is as large as the vocabulary."""

IGNORE_INDEX = -100
"""A target that is not predicted: it adds nothing to a loss, a count or a gradient."""

GROUP = 64
"""Elements of a group in `row_max`; the remainder at the end of a row is one more group."""


class SummedLoss(NamedTuple):
    """Summed `-log p(target)` in nats, and how many targets were the most likely token.

    total: `nats` plus the z-loss, each target times its weight; carries the graph (and so does `nats`, if they are the
    same tensor). All else is without weights. squared_log_z: the sum of `log^2 Z` over the targets, if there is a
    z-loss. divergence: from a teacher, if there is one (`ops.distillation`).
    """

    nats: Tensor
    correct: Tensor
    total: Tensor
    squared_log_z: Tensor | None = None
    divergence: Tensor | None = None


class TokenLosses(NamedTuple):
    """`-log p(target)` of each target in nats, float64 (0 where ignored), and whether it was the most likely token."""

    nats: Tensor
    correct: Tensor


def apply_soft_cap(logits: Tensor, cap: float) -> Tensor:
    """`cap tanh(logits / cap)` (Gemma 2, arXiv 2408.00118, section 2.2), in the dtype of `logits`.

    Logits near 0 hardly change, and their order is kept. Computed in float32 or wider.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (cap * torch.tanh(wide / cap)).to(logits.dtype)


def soft_cap_(logits_NV: Tensor, cap: float) -> Tensor:
    """`apply_soft_cap` in place, without gradients, of logits in float32 or wider; returns the derivatives `[N, V]`."""
    logits_NV.div_(cap).tanh_()
    slopes_NV = torch.addcmul(logits_NV.new_ones(()), logits_NV, logits_NV, value=-1)
    logits_NV.mul_(cap)
    return slopes_NV


def row_max_reference(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """The largest element of each row and the index of its first occurrence, `[N, 1]` each."""
    largest_N1, index_N1 = logits_NV.max(dim=-1, keepdim=True)
    return largest_N1, index_N1


def row_max(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """`row_max_reference`, fast on a CPU.

    There PyTorch's `max` with indices visits one element at a time; without indices it takes an eighth of the time. So
    the maxima of groups come first, then the index of the best group, then the index within one group of each row.
    """
    width = logits_NV.shape[1]
    whole = width - width % GROUP
    if logits_NV.device.type != "cpu" or whole < 2 * GROUP:
        return row_max_reference(logits_NV)
    groups_NG = torch.unflatten(logits_NV[:, :whole], 1, (-1, GROUP)).amax(dim=-1)
    if whole < width:
        groups_NG = torch.cat([groups_NG, logits_NV[:, whole:].amax(dim=-1, keepdim=True)], dim=1)
    largest_N1, group_N1 = row_max_reference(groups_NG)
    # The last window reaches back into the group before, whose elements are smaller.
    begin_N1 = (group_N1 * GROUP).clamp_(max=width - GROUP)
    window_NW = logits_NV.gather(1, begin_N1 + torch.arange(GROUP, device=logits_NV.device))
    return largest_N1, begin_N1 + window_NW.argmax(dim=-1, keepdim=True)


def linear_cross_entropy_reference(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
    weights_N: Tensor | None = None,
) -> SummedLoss:
    """The definition, with all logits in memory."""
    logits_NV = F.linear(x_ND, weight_VD, bias_V)
    if soft_cap is not None:
        logits_NV = apply_soft_cap(logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)), soft_cap)
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    correct = (logits_NV.argmax(dim=-1) == targets_N).sum()
    nats_N = F.cross_entropy(wide_NV, targets_N, ignore_index=IGNORE_INDEX, reduction="none")
    nats = nats_N.sum()
    if not z_loss and weights_N is None:
        return SummedLoss(nats, correct, nats)
    squares_N = wide_NV.logsumexp(dim=-1).square().masked_fill(targets_N == IGNORE_INDEX, 0.0)
    total_N = nats_N + z_loss * squares_N if z_loss else nats_N
    total = (total_N if weights_N is None else weights_N * total_N).sum()
    return SummedLoss(nats.detach(), correct, total, squares_N.sum().detach() if z_loss else None)


def linear_cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
    weights_N: Tensor | None = None,
) -> SummedLoss:
    """`linear_cross_entropy_reference` in slices; targets int64 `[N]`, some of them possibly `IGNORE_INDEX`.

    soft_cap: of the logits, if not None. z_loss: the coefficient of `log^2 Z` in `total`, where Z is the normalizer of
    the probabilities (Chowdhery et al., PaLM, arXiv 2204.02311, section 5). weights_N: of the targets in `total`,
    without a gradient; None: 1 each. `total` is float64. Gradients are computed in the forward pass and can be used
    once. Under autocast the products are in autocast's precision, all else in float32.
    """
    if torch.compiler.is_compiling():
        return linear_cross_entropy_reference(x_ND, weight_VD, bias_V, targets_N, soft_cap, z_loss, weights_N)
    head = HeadArguments.of(x_ND, weight_VD, bias_V)
    with torch.autocast(x_ND.device.type, enabled=False):
        total, nats, correct, squares = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            *head, targets_N, soft_cap, z_loss, weights_N
        )
    if not z_loss and weights_N is None:
        return SummedLoss(total, correct, total)
    return SummedLoss(nats, correct, total, squares if z_loss else None)


def tokens_per_slice(weight_VD: Tensor) -> int:
    """Number of tokens whose logits have the size that the device prefers."""
    elements = SLICE_ELEMENTS if weight_VD.device.type == "cpu" else SLICE_ELEMENTS_DEVICE
    return max(SLICE_TOKENS, elements // weight_VD.shape[0])


class HeadArguments(NamedTuple):
    """What the logits `x W^T + b` are made of, in one precision, autocast's included."""

    x_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None

    @classmethod
    def of(cls, x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> "HeadArguments":
        weight, bias = to_autocast_dtype(weight_VD, bias_V)
        assert weight is not None, "a head without a matrix"
        return cls(x_ND.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


class LogitSlice(NamedTuple):
    """The logits of a slice of the tokens, in float32 or wider, and their targets, 0 where they are ignored.

    slopes_nV: the derivatives of the soft cap; None without one.
    """

    part: slice
    logits_nV: Tensor
    slopes_nV: Tensor | None
    targets_n1: Tensor
    ignored_n1: Tensor


def logit_slices(head: HeadArguments, targets_N: Tensor, soft_cap: float | None) -> Iterator[LogitSlice]:
    """The logits of all tokens, slice by slice, without gradients; a slice may be changed in place."""
    x_ND, weight_VD, bias_V = head
    step = tokens_per_slice(weight_VD)
    for first in range(0, x_ND.shape[0], step):
        part = slice(first, first + step)
        logits_nV = linear_product(x_ND[part], weight_VD, bias_V)
        logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
        slopes_nV = None if soft_cap is None else soft_cap_(logits_nV, soft_cap)
        ignored_n1 = targets_N[part, None] == IGNORE_INDEX
        yield LogitSlice(part, logits_nV, slopes_nV, targets_N[part, None].masked_fill(ignored_n1, 0), ignored_n1)


class HeadGradients:
    """Gradients of a sum over the logits `x W^T + b`, added up slice by slice of the tokens in the forward pass.

    Until the backward pass only the gradients are held, and not `x` or `W`. That of a frozen matrix is left out.
    """

    def __init__(self, head: HeadArguments, needed: Sequence[bool]) -> None:
        """needed: whether the gradients of x, weight and bias are; all of x are computed in any case."""
        x_ND, weight_VD, bias_V = head
        self._dtype = weight_VD.dtype
        # Sums of many slices would lose digits in half precision.
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        self._of_x_ND = torch.empty_like(x_ND)
        self._of_weight_VD = torch.zeros_like(weight_VD, dtype=wide) if needed[1] else None
        self._of_bias_V = None if bias_V is None or not needed[2] else torch.zeros_like(bias_V, dtype=wide)

    def add(self, head: HeadArguments, own: LogitSlice, grad_nV: Tensor) -> None:
        """Add a slice, with the gradient of its capped logits, which is changed in place."""
        grad_nV = (grad_nV if own.slopes_nV is None else grad_nV.mul_(own.slopes_nV)).to(self._dtype)
        self._of_x_ND[own.part] = matmul(grad_nV, head.weight_VD)
        if self._of_weight_VD is not None and self._of_weight_VD.dtype == grad_nV.dtype:
            self._of_weight_VD.addmm_(grad_nV.T, head.x_ND[own.part])
        elif self._of_weight_VD is not None:
            self._of_weight_VD += grad_nV.T @ head.x_ND[own.part]
        if self._of_bias_V is not None:
            self._of_bias_V += grad_nV.sum(dim=0)

    def scaled_(self, upstream: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The gradients of x, weight and bias, multiplied in place; they can be used once."""
        weight_VD, bias_V = (
            None if each is None else each.mul_(upstream).to(self._dtype)
            for each in (self._of_weight_VD, self._of_bias_V)
        )
        return self._of_x_ND.mul_(upstream), weight_VD, bias_V


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
        weights_N: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        needs_gradients, wide = any(ctx.needs_input_grad), accumulation_dtype(x_ND.device)
        head = HeadArguments(x_ND, weight_VD, bias_V)
        gradients = HeadGradients(head, ctx.needs_input_grad) if needs_gradients else None
        total, nats, squares = torch.zeros((3,), dtype=wide, device=x_ND.device)
        correct = torch.zeros((), dtype=torch.int64, device=x_ND.device)
        for own in logit_slices(head, targets_N, soft_cap):
            part, logits_nV, _, targets_n1, ignored_n1 = own
            largest_n1, best_n1 = row_max(logits_nV)
            correct += ((best_n1 == targets_n1) & ~ignored_n1).sum()
            # Softmax and loss of the slice, in the memory of its logits.
            logits_nV -= largest_n1
            target_logit_n1 = logits_nV.gather(1, targets_n1)
            sum_n1 = logits_nV.exp_().sum(dim=-1, keepdim=True)
            loss_n1 = (sum_n1.log() - target_logit_n1).masked_fill(ignored_n1, 0.0)
            nats += loss_n1.sum(dtype=wide)
            if z_loss:
                log_z_n1 = sum_n1.log() + largest_n1
                square_n1 = log_z_n1.square().masked_fill(ignored_n1, 0.0)
                squares += square_n1.sum(dtype=wide)
                loss_n1 = loss_n1 + z_loss * square_n1
            weights_n1 = None if weights_N is None else weights_N[part, None].to(logits_nV.dtype)
            total += (loss_n1 if weights_n1 is None else weights_n1 * loss_n1).sum(dtype=wide)
            if gradients is not None:
                logits_nV /= sum_n1.masked_fill(ignored_n1, torch.inf)
                if z_loss:  # the derivative of log Z is the probability
                    logits_nV *= 1 + 2 * z_loss * log_z_n1
                logits_nV.scatter_add_(1, targets_n1, ignored_n1.to(logits_nV.dtype) - 1.0)
                if weights_n1 is not None:
                    logits_nV *= weights_n1
                gradients.add(head, own, logits_nV)
        ctx.gradients = gradients
        ctx.mark_non_differentiable(nats, correct, squares)
        return total, nats, correct, squares

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, upstream: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        gradients = ctx.gradients
        ctx.gradients = None
        return *gradients.scaled_(upstream), None, None, None, None


@torch.no_grad()
def token_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, soft_cap: float | None = None
) -> TokenLosses:
    """The terms that `linear_cross_entropy` sums, for each target `[N]`, in slices and without gradients."""
    parts = []
    head = HeadArguments(x_ND.to(weight_VD.dtype), weight_VD, bias_V)
    for _, logits_nV, _, targets_n1, ignored_n1 in logit_slices(head, targets_N, soft_cap):
        largest_n1, best_n1 = row_max(logits_nV)
        target_logit_n1 = logits_nV.sub_(largest_n1).gather(1, targets_n1)
        nats_n1 = logits_nV.exp_().sum(dim=-1, keepdim=True).log() - target_logit_n1
        correct_n1 = (best_n1 == targets_n1) & ~ignored_n1
        parts.append((widen(nats_n1[:, 0]).masked_fill(ignored_n1[:, 0], 0.0), correct_n1[:, 0]))
    nats, correct = zip(*parts, strict=True)
    return TokenLosses(torch.cat(nats), torch.cat(correct))


def linear_token_nats_reference(
    x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, soft_cap: float | None = None
) -> Tensor:
    """The definition of `linear_token_nats`, with all logits in memory."""
    logits_NV = F.linear(x_ND, weight_VD, bias_V)
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if soft_cap is not None:
        wide_NV = apply_soft_cap(wide_NV, soft_cap)
    return F.cross_entropy(wide_NV, targets_N, ignore_index=IGNORE_INDEX, reduction="none")


def linear_token_nats(
    x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, soft_cap: float | None = None
) -> Tensor:
    """`-log p(target)` of each target in nats, `[N]`, with gradients; 0 where ignored.

    For objectives whose weight of a target depends on the likelihoods themselves (preferences, rewards). The logits of
    a slice are computed in the forward pass and again in the backward pass, so memory is that of a slice; where the
    weights are known before, `linear_cross_entropy` computes them once. float64 (`support.accumulation_dtype`). Under
    autocast the products are in autocast's precision, all else in float32.
    """
    head = HeadArguments.of(x_ND, weight_VD, bias_V)
    with torch.autocast(x_ND.device.type, enabled=False):
        nats_N: Tensor = _LinearTokenNats.apply(*head, targets_N, soft_cap)  # type: ignore[no-untyped-call]
    return nats_N


class _LinearTokenNats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        soft_cap: float | None,
    ) -> Tensor:
        ctx.save_for_backward(x_ND, weight_VD, bias_V, targets_N)
        ctx.soft_cap = soft_cap
        return token_cross_entropy(x_ND, weight_VD, bias_V, targets_N, soft_cap).nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_N: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        *arguments, targets_N = ctx.saved_tensors
        head = HeadArguments(*arguments)
        gradients = HeadGradients(head, ctx.needs_input_grad)
        for own in logit_slices(head, targets_N, ctx.soft_cap):
            grad_nV = own.logits_nV.softmax(dim=-1)
            grad_nV.scatter_add_(1, own.targets_n1, grad_nV.new_full(own.targets_n1.shape, -1.0))
            grad_nV.mul_(upstream_N[own.part, None].to(grad_nV.dtype)).masked_fill_(own.ignored_n1, 0.0)
            gradients.add(head, own, grad_nV)
        return *gradients.scaled_(head.x_ND.new_ones(())), None, None
