"""State-space duality: a selective state-space model with one rate for each head (Dao and Gu, 2024, arXiv 2405.21060).

    h_t = exp(dt_t a) h_(t-1) + dt_t x_t B_t^T,   y_t = h_t C_t + d x_t      (eq. 2, with a scalar for A)

B and C are those of a group of heads. As a head has one rate, a chunk is a product with a matrix of decays (section 6):

    y = x dt (B^T C * exp(sum of dt a between)) + what the state before the chunk gives + d x

`state_space_dual_reference` is the definition; `state_space_dual` takes segments, cut into chunks: within a chunk all
pairs of tokens, from chunk to chunk the states. Decays are sums of logarithms, never divided by each other, so nothing
overflows, however fast a head forgets. Forward keeps its inputs and the state before each segment; backward makes the
rest again, segment by segment from the end. `state_space_step` is one more token.

Legend: `B` batch, `T` tokens, `N` heads, `P` width of a head, `G` groups of `M` heads, `S` numbers of a state for each
of its channels, `H` chunks, `C` tokens of one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.support import segment_length, segment_slices

CHUNK = 64
"""Tokens of a chunk."""


def state_space_dual_reference(
    x_BTNP: Tensor,
    dt_BTN: Tensor,
    a_N: Tensor,
    b_BTGS: Tensor,
    c_BTGS: Tensor,
    d_N: Tensor,
    h_BNPS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: `[B, T, N, P]`, and the state `[B, N, P, S]` behind the last token.

    dt_BTN: steps, not below 0. a_N: rates, below 0. d_N: what a head passes on of its input. h_BNPS: the state before
    the first token, if not 0. The heads of a group are next to each other.
    """
    h_BNPS = _begun(h_BNPS, x_BTNP, b_BTGS)
    outs = []
    for x_BNP, dt_BN, b_BGS, c_BGS in zip(*(part.unbind(1) for part in (x_BTNP, dt_BTN, b_BTGS, c_BTGS)), strict=True):
        out_BNP, h_BNPS = state_space_step(x_BNP, dt_BN, a_N, b_BGS, c_BGS, d_N, h_BNPS)
        outs.append(out_BNP)
    return torch.stack(outs, dim=1), h_BNPS


def state_space_step(
    x_BNP: Tensor, dt_BN: Tensor, a_N: Tensor, b_BGS: Tensor, c_BGS: Tensor, d_N: Tensor, h_BNPS: Tensor
) -> tuple[Tensor, Tensor]:
    """One more token: what it reads, `[B, N, P]`, and the next state."""
    heads = x_BNP.shape[1] // b_BGS.shape[1]
    b_BNS, c_BNS = (part.repeat_interleave(heads, dim=1) for part in (b_BGS, c_BGS))
    kept_BNPS = (dt_BN * a_N).exp()[..., None, None] * h_BNPS
    next_BNPS = torch.addcmul(kept_BNPS, (dt_BN[..., None] * x_BNP)[..., None], b_BNS[:, :, None])
    read_BNP = (next_BNPS @ c_BNS[..., None])[..., 0]
    return torch.addcmul(read_BNP, x_BNP, d_N[:, None]), next_BNPS


def state_space_dual(
    x_BTNP: Tensor,
    dt_BTN: Tensor,
    a_N: Tensor,
    b_BTGS: Tensor,
    c_BTGS: Tensor,
    d_N: Tensor,
    h_BNPS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same, fast: in time and memory linear in the length. Differentiable once, the state behind it too.

    It works along the tokens of a channel: inputs that lie so in memory, as a convolution leaves them, are fastest.
    """
    h_BNPS = _begun(h_BNPS, x_BTNP, b_BTGS)
    if x_BTNP.shape[1] == 1:
        return state_space_dual_reference(x_BTNP, dt_BTN, a_N, b_BTGS, c_BTGS, d_N, h_BNPS)
    out_BTNP, end_BNPS = _as_it_is(x_BTNP, dt_BTN, b_BTGS, c_BTGS, a_N, d_N, h_BNPS)
    return out_BTNP, end_BNPS


def _begun(h_BNPS: Tensor | None, x_BTNP: Tensor, b_BTGS: Tensor) -> Tensor:
    """The state before the first token."""
    if h_BNPS is not None:
        return h_BNPS
    return x_BTNP.new_zeros(x_BTNP.shape[0], *x_BTNP.shape[2:], b_BTGS.shape[3])


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Tensor) -> Any:
    """Also in a compiled model: its loop over segments would be another graph for every length."""
    return _Dual.apply(*inputs)  # type: ignore[no-untyped-call]


class _Dual(torch.autograd.Function):
    """Keeps no pairs of tokens: there are `N C` numbers of them for each, as many as channels, several times."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *of_tokens, a_N, d_N, h_BNPS = inputs
        out_BTNP, starts = torch.empty_like(of_tokens[0], memory_format=torch.contiguous_format), []
        chunk = chunk_length(out_BTNP.shape[1])
        for place in _places(out_BTNP):
            starts.append(h_BNPS)
            out_BTNP[:, place], h_BNPS = _segment(chunk, *(part[:, place] for part in of_tokens), a_N, d_N, h_BNPS)
        ctx.save_for_backward(*of_tokens, a_N, d_N, torch.stack(starts))
        return out_BTNP, h_BNPS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y_BTNP: Tensor, of_h_BNPS: Tensor) -> tuple[Tensor, ...]:
        *of_tokens, a_N, d_N, starts = ctx.saved_tensors
        gradients, of_a_N, of_d_N = [*map(torch.empty_like, of_tokens)], torch.zeros_like(a_N), torch.zeros_like(d_N)
        chunk = chunk_length(of_y_BTNP.shape[1])
        for place, start_BNPS in reversed(list(zip(_places(of_y_BTNP), starts, strict=True))):
            inputs = [*(part[:, place] for part in of_tokens), a_N, d_N, start_BNPS]
            *found, of_a, of_d, of_h_BNPS = _segment_gradients(chunk, inputs, of_y_BTNP[:, place], of_h_BNPS)
            for gradient, of_place in zip(gradients, found, strict=True):
                gradient[:, place] = of_place
            of_a_N += of_a
            of_d_N += of_d
        return *gradients, of_a_N, of_d_N, of_h_BNPS


def _segment_gradients(chunk: int, inputs: list[Tensor], of_y_BTNP: Tensor, of_h_BNPS: Tensor) -> tuple[Tensor, ...]:
    """Of a segment's inputs, from those of its outputs and of the state behind it."""
    with torch.enable_grad(), torch.autocast(of_y_BTNP.device.type, enabled=False):
        leaves = [part.detach().requires_grad_() for part in inputs]
        return torch.autograd.grad(_segment(chunk, *leaves), leaves, (of_y_BTNP, of_h_BNPS))


def chunk_length(tokens: int) -> int:
    """Tokens of a chunk of a sequence; the last one is filled up."""
    return min(CHUNK, tokens)


def elements_per_token(heads: int, width: int) -> int:
    """What a token has in a segment: its channels, and the pairs of its chunk."""
    return heads * (width + CHUNK)


def _places(x_BTNP: Tensor) -> list[slice]:
    """Of the segments."""
    batch, length, heads, width = x_BTNP.shape
    return segment_slices(length, segment_length(batch, elements_per_token(heads, width), CHUNK, x_BTNP.device.type))


def _segment(chunk: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """All chunks of a segment side by side, but for the states that go from one to the next."""
    *of_tokens, a_N, d_N, h_BNPS = inputs
    x_BHNPC, dt_BHNC, b_BHGSC, c_BHGSC = (_chunked(part, chunk) for part in of_tokens)
    groups, length = b_BHGSC.shape[2], of_tokens[0].shape[1]
    decays_BHNCC, left_BHNC, begun_BHNC = _decays(dt_BHNC * a_N[:, None])
    fed_BHNPC = x_BHNPC * dt_BHNC[..., None, :]
    added_BHGES = _by_group(fed_BHNPC * left_BHNC[..., None, :], groups) @ b_BHGSC.mT
    before_BHNPS, end_BNPS = _carried(added_BHGES.view(*x_BHNPC.shape[:4], -1), begun_BHNC[..., -1], h_BNPS)
    read_BHNPC = (_by_group(before_BHNPS, groups) @ c_BHGSC).view_as(x_BHNPC)
    near_BHNPC = fed_BHNPC @ _weights(b_BHGSC.mT @ c_BHGSC, decays_BHNCC)
    out_BHNPC = torch.addcmul(near_BHNPC, read_BHNPC, begun_BHNC[..., None, :])
    out_BHNPC = torch.addcmul(out_BHNPC, x_BHNPC, d_N[:, None, None])
    return out_BHNPC.permute(0, 1, 4, 2, 3).flatten(1, 2)[:, :length], end_BNPS


def _chunked(x_BT: Tensor, chunk: int) -> Tensor:
    """`[B, T, ...] -> [B, H, ..., C]` without gaps, zeros behind: a step of 0 changes nothing."""
    short = -x_BT.shape[1] % chunk
    x_BT = x_BT.movedim(1, -1)
    if short:
        x_BT = F.pad(x_BT, (0, short))
    return x_BT.reshape(*x_BT.shape[:-1], -1, chunk).movedim(-2, 1).contiguous()


def _by_group(x_BHNP: Tensor, groups: int) -> Tensor:
    """`[B, H, N, P, ...] -> [B, H, G, M P, ...]`."""
    return x_BHNP.view(*x_BHNP.shape[:2], groups, -1, x_BHNP.shape[-1])


def _weights(scores_BHGCC: Tensor, decays_BHNCC: Tensor) -> Tensor:
    """What a reader takes of a source: the score that all heads of a group share, decayed; `[B, H, N, C, C]`."""
    decays_BHGMCC = decays_BHNCC.view(*scores_BHGCC.shape[:3], -1, *scores_BHGCC.shape[3:])
    return (scores_BHGCC[:, :, :, None] * decays_BHGMCC).flatten(2, 3)


def _decays(log_BHNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is left of each token at each later one (source, reader), `[B, H, N, C, C]`, 0 at earlier ones; of each at
    the last, and of what was before the chunk at each, `[B, H, N, C]` both.

    A difference of two sums in float32 would be off by the last digit of the sums, where a token before both made them
    large; so what the sums are rounded by comes with them.
    """
    sums_BHNC = log_BHNC.double().cumsum(-1)
    high_BHNC = sums_BHNC.to(log_BHNC.dtype)
    low_BHNC = (sums_BHNC.detach() - high_BHNC.detach()).to(log_BHNC.dtype)
    chunk = log_BHNC.shape[-1]
    unseen_CC = torch.full((chunk, chunk), -torch.inf, dtype=log_BHNC.dtype, device=log_BHNC.device).tril(-1)
    low_BHNCC = (low_BHNC[..., None, :] - low_BHNC[..., None]).add_(unseen_CC)
    decays_BHNCC = (high_BHNC[..., None, :] - high_BHNC[..., None]).add(low_BHNCC).exp()
    left_BHNC = (high_BHNC[..., -1:] - high_BHNC + (low_BHNC[..., -1:] - low_BHNC)).exp()
    return decays_BHNCC, left_BHNC, high_BHNC.exp()


def _carried(added_BHNPS: Tensor, share_BHN: Tensor, h_BNPS: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each chunk, `[B, H, N, P, S]`, and behind the last."""
    before = []
    for added_BNPS, share_BN in zip(added_BHNPS.unbind(1), share_BHN.unbind(1), strict=True):
        before.append(h_BNPS)
        h_BNPS = torch.addcmul(added_BNPS, h_BNPS, share_BN[..., None, None])
    return torch.stack(before, dim=1), h_BNPS


def state_space_dual_flops(tokens: int, groups: int, heads: int, width: int, state: int) -> int:
    """FLOPs of `state_space_dual` for one sequence: 2 per multiply-add of its matrix products."""
    channels, chunk = heads * width, chunk_length(tokens)
    if tokens == 1:
        return 2 * channels * state
    of_token = 2 * chunk * (groups * state + channels) + 4 * channels * state
    return -(-tokens // chunk) * chunk * of_token
