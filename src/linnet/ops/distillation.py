"""Distillation from hidden vectors: cross-entropy and the divergence from a teacher, without all logits in memory.

The loss of a token is `(1 - a) (-log p(target)) + a T^2 KL(q_T || p_T)`, where `p` are the student's probabilities, `q`
the teacher's, and the index T divides the logits by the temperature (Hinton et al., arXiv 1503.02531, section 2; the
factor T^2 keeps the size of the gradient when T changes). As in `ops.cross_entropy`, the logits of a slice of tokens,
here of both models, become the gradient of the slice and are consumed at once.

Legend: `N` tokens, `n` tokens of a slice, `D` width, `V` vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.cross_entropy import (
    IGNORE_INDEX,
    HeadArguments,
    HeadGradients,
    LogitSlice,
    apply_soft_cap,
    logit_slices,
    row_max,
)
from linnet.ops.support import accumulation_dtype


class SoftTargets(NamedTuple):
    """What a student learns from besides the targets.

    logits: of the teacher, for a slice of the tokens: `slice -> [n, V]`. weight: `a`, the share of the divergence in
    the loss. temperature: `T`.
    """

    logits: Callable[[slice], Tensor]
    weight: float
    temperature: float


class DistilledLoss(NamedTuple):
    """Sums over the targets that are not ignored: `total` carries the graph, the others are detached.

    Only `total` has the weights of the targets. nats: the cross-entropy. correct: how many targets were the most likely
    token. divergence: `T^2 KL(q_T || p_T)`.
    """

    total: Tensor
    nats: Tensor
    correct: Tensor
    divergence: Tensor


def linear_distillation_reference(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    soft_targets: SoftTargets,
    soft_cap: float | None = None,
    weights_N: Tensor | None = None,
) -> DistilledLoss:
    """The definition, with all logits in memory."""
    logits_NV = F.linear(x_ND, weight_VD, bias_V)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if soft_cap is not None:
        logits_NV = apply_soft_cap(logits_NV, soft_cap)
    nats_N = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORE_INDEX, reduction="none")
    correct = (logits_NV.argmax(dim=-1) == targets_N).sum()
    temperature = soft_targets.temperature
    teacher_NV = soft_targets.logits(slice(None)).to(logits_NV.dtype)
    log_p_NV, log_q_NV = (each.div(temperature).log_softmax(dim=-1) for each in (logits_NV, teacher_NV))
    divergence_N = F.kl_div(log_p_NV, log_q_NV, reduction="none", log_target=True).sum(dim=-1)
    divergence_N = temperature**2 * divergence_N.masked_fill(targets_N == IGNORE_INDEX, 0.0)
    total_N = (1 - soft_targets.weight) * nats_N + soft_targets.weight * divergence_N
    total = (total_N if weights_N is None else weights_N * total_N).sum()
    return DistilledLoss(total, nats_N.sum().detach(), correct, divergence_N.sum().detach())


def linear_distillation(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    soft_targets: SoftTargets,
    soft_cap: float | None = None,
    weights_N: Tensor | None = None,
) -> DistilledLoss:
    """`linear_distillation_reference` in slices; targets int64 `[N]`, some of them possibly `IGNORE_INDEX`.

    soft_cap: of the student's logits, if not None; the teacher's are capped already. weights_N: of the targets in
    `total`; None: 1 each. `total` is float64. Gradients are computed in the forward pass and can be used once; the
    teacher receives none. Under autocast the products are in autocast's precision, all else in float32.
    """
    if torch.compiler.is_compiling():
        return linear_distillation_reference(x_ND, weight_VD, bias_V, targets_N, soft_targets, soft_cap, weights_N)
    head = HeadArguments.of(x_ND, weight_VD, bias_V)
    with torch.autocast(x_ND.device.type, enabled=False):
        found = _LinearDistillation.apply(  # type: ignore[no-untyped-call]
            *head, targets_N, soft_targets, soft_cap, weights_N
        )
    return DistilledLoss(*found)


class _LinearDistillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        soft_targets: SoftTargets,
        soft_cap: float | None,
        weights_N: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        needs_gradients, wide = any(ctx.needs_input_grad), accumulation_dtype(x_ND.device)
        head = HeadArguments(x_ND, weight_VD, bias_V)
        gradients = HeadGradients(head, ctx.needs_input_grad) if needs_gradients else None
        total, nats, divergence = torch.zeros((3,), dtype=wide, device=x_ND.device)
        correct = torch.zeros((), dtype=torch.int64, device=x_ND.device)
        for own in logit_slices(head, targets_N, soft_cap):
            weights_n1 = None if weights_N is None else weights_N[own.part, None].to(own.logits_nV.dtype)
            sums, grad_nV = _slice_loss(own, soft_targets, weights_n1)
            total += sums.total
            nats += sums.nats
            divergence += sums.divergence
            correct += sums.correct
            if gradients is not None:
                gradients.add(head, own, grad_nV)
        ctx.gradients = gradients
        ctx.mark_non_differentiable(nats, correct, divergence)
        return total, nats, correct, divergence

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, upstream: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        gradients = ctx.gradients
        ctx.gradients = None
        return *gradients.scaled_(upstream), None, None, None, None


class _SliceSums(NamedTuple):
    total: Tensor
    nats: Tensor
    correct: Tensor
    divergence: Tensor


def _slice_loss(own: LogitSlice, soft_targets: SoftTargets, weights_n1: Tensor | None) -> tuple[_SliceSums, Tensor]:
    """The sums of a slice, and the gradient of its total with respect to the student's logits, `[n, V]`."""
    share, temperature = soft_targets.weight, soft_targets.temperature
    part, logits_nV, _, targets_n1, ignored_n1 = own
    log_p_nV = logits_nV.log_softmax(dim=-1)
    nats_n1 = log_p_nV.gather(1, targets_n1).neg()
    correct = ((row_max(logits_nV)[1] == targets_n1) & ~ignored_n1).sum()
    log_q_nV = soft_targets.logits(part).to(logits_nV.dtype).div(temperature).log_softmax(dim=-1)
    softened_nV = log_p_nV if temperature == 1 else (logits_nV / temperature).log_softmax(dim=-1)
    q_nV = log_q_nV.exp()
    divergence_n1 = temperature**2 * (q_nV * (log_q_nV - softened_nV)).sum(dim=-1, keepdim=True)
    # The derivatives: p - onehot of the cross-entropy, T (p_T - q_T) of the divergence.
    grad_nV = log_p_nV.exp().scatter_add_(1, targets_n1, torch.full_like(nats_n1, -1.0)).mul_(1 - share)
    grad_nV.add_(softened_nV.exp().sub_(q_nV), alpha=share * temperature).masked_fill_(ignored_n1, 0.0)
    nats_n1, divergence_n1 = (each.masked_fill(ignored_n1, 0.0) for each in (nats_n1, divergence_n1))
    total_n1 = (1 - share) * nats_n1 + share * divergence_n1
    if weights_n1 is not None:
        total_n1, grad_nV = weights_n1 * total_n1, grad_nV.mul_(weights_n1)
    wide = accumulation_dtype(logits_nV.device)
    total, nats, divergence = (each_n1.sum(dtype=wide) for each_n1 in (total_n1, nats_n1, divergence_n1))
    return _SliceSums(total, nats, correct, divergence), grad_nV
