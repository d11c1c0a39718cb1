"""The sum of what each token's experts make of it, `sum_k w_k expert_k(x)`, without computing the others.

An expert is two maps with something element by element between them: `down inner(up x)`. Choices are sorted by expert,
so that each expert has one product of all of its tokens, none of them dropped or padded (Gale et al., "MegaBlocks",
arXiv 2211.15841). The weight multiplies what lies between the maps, which is narrower than the output; for the way back
the tokens and the outputs of the first maps are kept, all else is made again.

Legend: `R` tokens, `D` width, `E` experts, `K` experts of a token, `S` choices of all tokens, `U` outputs of the first
map, `F` inputs of the second.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.routing import counts
from linnet.ops.support import is_exporting, to_autocast_dtype

Inner = Callable[[Tensor], Tensor]
"""`[S, U] -> [S, F]`, element by element."""


def experts_reference(
    x_RD: Tensor,
    weight_RK: Tensor,
    chosen_RK: Tensor,
    up_EUD: Sequence[Tensor],
    down_EDF: Sequence[Tensor],
    inner: Inner,
) -> Tensor:
    """The definition: `[R, D] -> [R, D]`, token by token and expert by expert. A choice that is E adds nothing."""
    ups, downs, outs = torch.stack(list(up_EUD)), torch.stack(list(down_EDF)), []
    for x_D, weight_K, chosen_K in zip(x_RD, weight_RK, chosen_RK.tolist(), strict=True):
        out_D = torch.zeros_like(x_D)
        for weight, expert in zip(weight_K, chosen_K, strict=True):
            if expert < len(up_EUD):
                out_D = out_D + weight * (downs[expert] @ inner(ups[expert] @ x_D))
        outs.append(out_D)
    return torch.stack(outs) if outs else torch.zeros_like(x_RD)


def experts(
    x_RD: Tensor,
    weight_RK: Tensor,
    chosen_RK: Tensor,
    up_EUD: Sequence[Tensor],
    down_EDF: Sequence[Tensor],
    inner: Inner,
) -> Tensor:
    """The same, fast, in the precision of products. Differentiable once; an expert without a token has gradients 0."""
    out_RD: Tensor = _as_it_is(x_RD, weight_RK, chosen_RK, inner, *up_EUD, *down_EDF)
    return out_RD


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def dispatch_experts(
    x_RD: Tensor, weight_RK: Tensor, chosen_RK: Tensor, expert_E: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """The same for any experts, `[S, D] -> [S, D]` each: packed ones, say. Those without a token are not called.

    A graph cannot ask for whom there are tokens: there all experts read all of them.
    """
    if is_exporting():
        shares_ER1 = [(weight_RK * (chosen_RK == e)).sum(1, keepdim=True) for e in range(len(expert_E))]
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
    """Each expert that has tokens, with the places `[S]` of its choices among all of `[R, K]`."""
    order = chosen_RK.flatten().argsort(stable=True)
    end = 0
    for expert, count in enumerate(counts(chosen_RK, experts).tolist()):
        begin, end = end, end + count
        if count:
            yield expert, order[begin:end]


@_disable_dynamo  # the shapes of its products depend on the numbers
def _as_it_is(x_RD: Tensor, weight_RK: Tensor, chosen_RK: Tensor, inner: Inner, *maps: Tensor) -> Tensor:
    x_RD, *maps = to_autocast_dtype(x_RD, *maps)  # type: ignore[assignment]
    out_RD: Tensor = _Experts.apply(x_RD, weight_RK, chosen_RK, inner, *maps)  # type: ignore[no-untyped-call]
    return out_RD


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
    def backward(ctx: Any, of_out_RD: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(of_out_RD.device.type, enabled=False):  # the forward pass was in one precision
            return _backward(ctx, of_out_RD)


def _backward(ctx: Any, of_out_RD: Tensor) -> tuple[Tensor | None, ...]:
    x_RD, weight_RK, *kept = ctx.saved_tensors
    maps, rest = kept[: len(kept) - 2 * len(ctx.used)], kept[len(kept) - 2 * len(ctx.used) :]
    places, joints, count = rest[: len(ctx.used)], rest[len(ctx.used) :], len(maps) // 2
    of_x_RD, of_weight_RK = torch.zeros_like(x_RD), torch.zeros_like(weight_RK)
    of_maps: list[Tensor | None] = [None] * len(maps)
    weight_S, of_weight_S = weight_RK.to(x_RD.dtype).flatten(), of_weight_RK.view(-1)
    for expert, place_S, joint_SU in zip(ctx.used, places, joints, strict=True):
        token_S, weight_S1 = place_S // ctx.k, weight_S[place_S, None]
        of_out_SD = of_out_RD[token_S]
        of_weighted_SF = of_out_SD @ maps[count + expert]
        with torch.enable_grad():
            own_SU = joint_SU.detach().requires_grad_()
            inner_SF = ctx.inner(own_SU)
        hidden_SF = inner_SF.detach()
        of_weight_S[place_S] = (of_weighted_SF * hidden_SF).sum(1, dtype=weight_RK.dtype)
        of_maps[count + expert] = of_out_SD.t() @ (hidden_SF * weight_S1)
        (of_joint_SU,) = torch.autograd.grad(inner_SF, own_SU, of_weighted_SF.mul_(weight_S1))
        of_maps[expert] = of_joint_SU.t() @ x_RD[token_S]
        of_x_RD.index_add_(0, token_S, of_joint_SU @ maps[expert])
    of_maps = [torch.zeros_like(m) if of_m is None else of_m for m, of_m in zip(maps, of_maps, strict=True)]
    return of_x_RD, of_weight_RK, None, None, *of_maps
