"""Mixtures of experts: which experts a token goes to, the losses that keep all of them in use, and their sum.

A router gives each token a score for each expert; the token goes to those with the highest scores (Shazeer et al.,
arXiv 1701.06538). The losses are those of Switch Transformers (Fedus et al., arXiv 2101.03961, equations 4 to 6) and
ST-MoE (Zoph et al., arXiv 2202.08906, equation 5).

An expert is two maps with an element-wise function between them, `down inner(up x)`. Choices are sorted by expert, so
that each expert has one product of all of its tokens; none is dropped or padded (Gale et al., "MegaBlocks", arXiv
2211.15841). The routing weight multiplies the hidden vector, which is narrower than the output. Tokens and outputs of
the first maps are saved for the backward pass; all else is recomputed.

Legend: `B` batch, `T` tokens, `R` tokens of all rows, `D` width, `E` experts, `K` experts of a token, `S` choices of
all tokens, `U` outputs of the first map, `F` inputs of the second.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.support import is_exporting, to_autocast_dtype

Scoring = Literal["softmax", "sigmoid"]

Inner = Callable[[Tensor], Tensor]
"""`[S, U] -> [S, F]`, element by element."""

SMALLEST_SUM = 1e-20
"""Weights are divided by their sum, which sigmoids may bring to 0 (DeepSeek-V3)."""


class Routes(NamedTuple):
    """The experts of each token, int64 `[..., K]`, best first, and the weights of their outputs, `[..., K]`.

    score: of every expert, `[..., E]`.
    """

    chosen: Tensor
    weight: Tensor
    score: Tensor


def routes(logits: Tensor, top_k: int, scoring: Scoring, normalize: bool) -> Routes:
    """Routes of tokens with these logits `[..., E]`.

    scoring: the softmax over all experts, or the sigmoid of each (DeepSeek-V3, arXiv 2412.19437, equations 13 to 16).
    normalize: the weights of a token add up to 1; with softmax they are then the softmax over its `top_k` experts.
    Logits decide, because scores round to 1 or 0 where these are large (a sigmoid in float32 from 17 on).
    """
    score = logits.softmax(dim=-1) if scoring == "softmax" else logits.sigmoid()
    chosen = logits.detach().topk(top_k, dim=-1).indices
    weight = score.gather(-1, chosen)
    if normalize:
        weight = weight / weight.sum(dim=-1, keepdim=True).clamp_min(SMALLEST_SUM)
    return Routes(chosen, weight, score)


def counts(chosen: Tensor, experts: int) -> Tensor:
    """Number of tokens of each expert, int64 `[E]`; a choice equal to `experts` goes nowhere."""
    return torch.zeros(experts + 1, dtype=torch.int64, device=chosen.device).scatter_add_(
        0, chosen.flatten(), torch.ones_like(chosen.flatten())
    )[:experts]


def balance_loss(score_RE: Tensor, share_E: Tensor) -> Tensor:
    """`E sum_e f_e P_e`: f are the shares of tokens that go to each expert (they add up to K), P the mean scores.

    It is K where all experts are used equally, and larger where tokens concentrate on experts with high scores. Scores
    of a token are normalized by their sum, as softmax's are (DeepSeek-V3, equation 19). Gradients reach only the
    scores.
    """
    probability_E = (score_RE / score_RE.sum(dim=-1, keepdim=True)).mean(dim=0)
    return len(share_E) * (share_E * probability_E).sum()


def router_z_loss(logits_RE: Tensor) -> Tensor:
    """The mean of `log^2 sum_e exp(logit_e)`, which keeps logits so small that rounding does not decide the route."""
    return logits_RE.logsumexp(dim=-1).square().mean()


def within_capacity_reference(chosen_BTK: Tensor, experts: int, capacity: int) -> Tensor:
    """The choices, with `experts` in place of those for which an expert has no capacity left in the row.

    In each row an expert takes `capacity` tokens: all first choices before all second ones, earlier tokens first
    (Lepikhin et al., "GShard", arXiv 2006.16668, algorithm 1).
    """
    accepted_BTK = chosen_BTK.clone()
    batch, length, choices = chosen_BTK.shape
    for row in range(batch):
        taken = [0] * experts
        for choice in range(choices):
            for token in range(length):
                expert = int(chosen_BTK[row, token, choice])
                if expert < experts:
                    taken[expert] += 1
                    if taken[expert] > capacity:
                        accepted_BTK[row, token, choice] = experts
    return accepted_BTK


def within_capacity(chosen_BTK: Tensor, experts: int, capacity: int) -> Tensor:
    """The same without loops: the place of a choice in its expert's queue is its place after sorting by expert."""
    choices_BS = chosen_BTK.transpose(1, 2).flatten(1)
    sorted_BS, order_BS = choices_BS.sort(dim=1, stable=True)
    index_S = torch.arange(choices_BS.shape[1], device=choices_BS.device)
    queue_BS = index_S - torch.searchsorted(sorted_BS, sorted_BS)
    accepted_BS = torch.empty_like(choices_BS).scatter_(1, order_BS, sorted_BS.where(queue_BS < capacity, experts))
    return accepted_BS.view(chosen_BTK.shape[0], chosen_BTK.shape[2], -1).transpose(1, 2)


def experts_reference(
    x_RD: Tensor,
    weight_RK: Tensor,
    chosen_RK: Tensor,
    up_EUD: Sequence[Tensor],
    down_EDF: Sequence[Tensor],
    inner: Inner,
) -> Tensor:
    """The definition: `[R, D] -> [R, D]`, token by token and expert by expert. A choice equal to E adds nothing."""
    ups, downs, outs = torch.stack(list(up_EUD)), torch.stack(list(down_EDF)), []
    for x_D, weight_K, chosen_K in zip(x_RD, weight_RK, chosen_RK.tolist(), strict=True):
        out_D = torch.zeros_like(x_D)
        for weight, expert in zip(weight_K, chosen_K, strict=True):
            if expert < len(up_EUD):
                out_D = out_D + weight * (downs[expert] @ inner(ups[expert] @ x_D))
        outs.append(out_D)
    return torch.stack(outs) if outs else torch.zeros_like(x_RD)


@_disable_dynamo  # the shapes of the products depend on the values
def experts(
    x_RD: Tensor,
    weight_RK: Tensor,
    chosen_RK: Tensor,
    up_EUD: Sequence[Tensor],
    down_EDF: Sequence[Tensor],
    inner: Inner,
) -> Tensor:
    """`experts_reference`, fast, in the precision of products; differentiable once. Idle experts get gradient 0."""
    x_RD, *maps = to_autocast_dtype(x_RD, *up_EUD, *down_EDF)  # type: ignore[assignment]
    out_RD: Tensor = _Experts.apply(x_RD, weight_RK, chosen_RK, inner, *maps)  # type: ignore[no-untyped-call]
    return out_RD


@_disable_dynamo
def dispatch_experts(
    x_RD: Tensor, weight_RK: Tensor, chosen_RK: Tensor, expert_E: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """`experts` for any functions `[S, D] -> [S, D]`, such as packed ones. Experts without a token are not called.

    An exported graph cannot depend on the choices: there all experts read all tokens.
    """
    if is_exporting():
        shares_ER1 = [(weight_RK * (chosen_RK == e)).sum(1, keepdim=True).to(x_RD.dtype) for e in range(len(expert_E))]
        outs_ERD = [expert(x_RD) * share_R1 for expert, share_R1 in zip(expert_E, shares_ER1, strict=True)]
        return torch.stack(outs_ERD).sum(0)
    (out_RD,) = to_autocast_dtype(x_RD)
    assert out_RD is not None
    out_RD, k = torch.zeros_like(out_RD), chosen_RK.shape[1]
    for expert, place_S in _by_expert(chosen_RK, len(expert_E)):
        out_SD = expert_E[expert](x_RD[place_S // k])
        out_SD = out_SD * weight_RK.flatten()[place_S, None].to(out_SD.dtype)
        out_RD = out_RD.index_add(0, place_S // k, out_SD)
    return out_RD


def _by_expert(chosen_RK: Tensor, experts: int) -> Iterator[tuple[int, Tensor]]:
    """Each expert that has tokens, with the indices `[S]` of its choices among all of `[R, K]`."""
    order = chosen_RK.flatten().argsort(stable=True)
    end = 0
    for expert, count in enumerate(counts(chosen_RK, experts).tolist()):
        begin, end = end, end + count
        if count:
            yield expert, order[begin:end]


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, weight_RK: Tensor, chosen_RK: Tensor, inner: Inner, *maps: Tensor) -> Tensor:
        count, k = len(maps) // 2, chosen_RK.shape[1]
        used = list(_by_expert(chosen_RK, count))
        joints, out_RD, weight_S = [], torch.zeros_like(x_RD), weight_RK.to(x_RD.dtype).flatten()
        for expert, place_S in used:
            token_S = place_S // k
            joint_SU = F.linear(x_RD[token_S], maps[expert])
            hidden_SF = inner(joint_SU).mul_(weight_S[place_S, None])
            out_RD.index_add_(0, token_S, F.linear(hidden_SF, maps[count + expert]))
            joints.append(joint_SU)
        ctx.used, ctx.inner, ctx.k = [expert for expert, _ in used], inner, k
        ctx.save_for_backward(x_RD, weight_RK, *maps, *(place_S for _, place_S in used), *joints)
        return out_RD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_RD: Tensor) -> tuple[Tensor | None, ...]:
        x_RD, weight_RK, *saved = ctx.saved_tensors
        maps, rest = saved[: len(saved) - 2 * len(ctx.used)], saved[len(saved) - 2 * len(ctx.used) :]
        places, joints, count = rest[: len(ctx.used)], rest[len(ctx.used) :], len(maps) // 2
        grad_x_RD, grad_weight_RK = torch.zeros_like(x_RD), torch.zeros_like(weight_RK)
        grad_maps: list[Tensor | None] = [None] * len(maps)
        weight_S, grad_weight_S = weight_RK.to(x_RD.dtype).flatten(), grad_weight_RK.view(-1)
        with torch.autocast(grad_out_RD.device.type, enabled=False):  # the forward pass was in one precision
            for expert, place_S, joint_SU in zip(ctx.used, places, joints, strict=True):
                token_S, weight_S1 = place_S // ctx.k, weight_S[place_S, None]
                grad_out_SD = grad_out_RD[token_S]
                grad_weighted_SF = grad_out_SD @ maps[count + expert]
                with torch.enable_grad():
                    leaf_SU = joint_SU.detach().requires_grad_()
                    inner_SF = ctx.inner(leaf_SU)
                hidden_SF = inner_SF.detach()
                grad_weight_S[place_S] = (grad_weighted_SF * hidden_SF).sum(1, dtype=weight_RK.dtype)
                grad_maps[count + expert] = grad_out_SD.t() @ (hidden_SF * weight_S1)
                (grad_joint_SU,) = torch.autograd.grad(inner_SF, leaf_SU, grad_weighted_SF.mul_(weight_S1))
                grad_maps[expert] = grad_joint_SU.t() @ x_RD[token_S]
                grad_x_RD.index_add_(0, token_S, grad_joint_SU @ maps[expert])
        grad_maps = [torch.zeros_like(m) if grad is None else grad for m, grad in zip(maps, grad_maps, strict=True)]
        return grad_x_RD, grad_weight_RK, None, None, *grad_maps
