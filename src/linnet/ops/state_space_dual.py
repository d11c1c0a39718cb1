"""State-space duality: a selective state-space model with one rate for each head (Dao and Gu, 2024, arXiv 2405.21060).

    h_t = exp(dt_t a) h_(t-1) + dt_t x_t B_t^T,   y_t = h_t C_t + d x_t      (eq. 2, with a scalar for A)

B and C are shared by a group of heads. As a head has one rate, a chunk is a product with a matrix of decays (section
6):

    y = x dt (B^T C * exp(sum of dt a between)) + contribution of the state before the chunk + d x

`state_space_dual_reference` is the definition; `state_space_dual` takes segments, cut into chunks: within a chunk all
pairs of tokens, from chunk to chunk the states. Decays are sums of logarithms, never divided by each other, so nothing
overflows, however fast a head forgets. The forward pass saves its inputs and the state before each segment; the
backward pass recomputes the rest, segment by segment from the end. `state_space_step` is one more token.

Legend: `B` batch, `T` tokens, `N` heads, `P` width of a head, `G` groups of `M` heads, `S` numbers of a state for each
of its channels, `H` chunks, `C` tokens of one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.support import apply_eagerly, segment_length, segment_slices, states_before, widen

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
    """The definition, step by step: `[B, T, N, P]`, and the state `[B, N, P, S]` after the last token.

    dt_BTN: steps, at least 0. a_N: rates, below 0. d_N: the direct factor of a head's input. h_BNPS: the state before
    the first token, if not 0. The heads of a group are adjacent.
    """
    if h_BNPS is None:
        h_BNPS = x_BTNP.new_zeros(x_BTNP.shape[0], *x_BTNP.shape[2:], b_BTGS.shape[3])
    outs = []
    for x_BNP, dt_BN, b_BGS, c_BGS in zip(*(part.unbind(1) for part in (x_BTNP, dt_BTN, b_BTGS, c_BTGS)), strict=True):
        out_BNP, h_BNPS = state_space_step(x_BNP, dt_BN, a_N, b_BGS, c_BGS, d_N, h_BNPS)
        outs.append(out_BNP)
    return torch.stack(outs, dim=1), h_BNPS


def state_space_step(
    x_BNP: Tensor, dt_BN: Tensor, a_N: Tensor, b_BGS: Tensor, c_BGS: Tensor, d_N: Tensor, h_BNPS: Tensor
) -> tuple[Tensor, Tensor]:
    """One more token: its output `[B, N, P]`, and the next state."""
    heads = x_BNP.shape[1] // b_BGS.shape[1]
    b_BNS, c_BNS = (part.repeat_interleave(heads, dim=1) for part in (b_BGS, c_BGS))
    decayed_BNPS = (dt_BN * a_N).exp()[..., None, None] * h_BNPS
    next_BNPS = torch.addcmul(decayed_BNPS, (dt_BN[..., None] * x_BNP)[..., None], b_BNS[:, :, None])
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
    """`state_space_dual_reference`, fast: time and memory linear in the length. Differentiable once.

    It works along the tokens of a channel: inputs with that layout in memory, as a convolution leaves them, are
    fastest.
    """
    if h_BNPS is None:
        h_BNPS = x_BTNP.new_zeros(x_BTNP.shape[0], *x_BTNP.shape[2:], b_BTGS.shape[3])
    if x_BTNP.shape[1] == 1:
        return state_space_dual_reference(x_BTNP, dt_BTN, a_N, b_BTGS, c_BTGS, d_N, h_BNPS)
    out_BTNP, end_BNPS = apply_eagerly(_Dual, x_BTNP, dt_BTN, b_BTGS, c_BTGS, a_N, d_N, h_BNPS)
    return out_BTNP, end_BNPS


class _Dual(torch.autograd.Function):
    """Saves no pairs of tokens: a token has `N C` numbers of them, several times as many as channels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *of_tokens, a_N, d_N, h_BNPS = inputs
        out_BTNP, starts = torch.empty_like(of_tokens[0], memory_format=torch.contiguous_format), []
        chunk = min(CHUNK, out_BTNP.shape[1])
        for place in _segments(out_BTNP):
            starts.append(h_BNPS)
            out_BTNP[:, place], h_BNPS = _segment(chunk, *(part[:, place] for part in of_tokens), a_N, d_N, h_BNPS)
        ctx.save_for_backward(*of_tokens, a_N, d_N, torch.stack(starts))
        return out_BTNP, h_BNPS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y_BTNP: Tensor, grad_h_BNPS: Tensor) -> tuple[Tensor, ...]:
        *of_tokens, a_N, d_N, starts = ctx.saved_tensors
        grad_a_N, grad_d_N = torch.zeros_like(a_N), torch.zeros_like(d_N)
        gradients = [*map(torch.empty_like, of_tokens)]
        chunk = min(CHUNK, grad_y_BTNP.shape[1])
        for place, start_BNPS in reversed(list(zip(_segments(grad_y_BTNP), starts, strict=True))):
            inputs = [*(part[:, place] for part in of_tokens), a_N, d_N, start_BNPS]
            with torch.enable_grad(), torch.autocast(grad_y_BTNP.device.type, enabled=False):
                leaves = [part.detach().requires_grad_() for part in inputs]
                upstream = grad_y_BTNP[:, place], grad_h_BNPS
                grads = torch.autograd.grad(_segment(chunk, *leaves), leaves, upstream)
            *segment_gradients, grad_a, grad_d, grad_h_BNPS = grads
            for gradient, segment_gradient in zip(gradients, segment_gradients, strict=True):
                gradient[:, place] = segment_gradient
            grad_a_N += grad_a
            grad_d_N += grad_d
        return *gradients, grad_a_N, grad_d_N, grad_h_BNPS


def elements_per_token(heads: int, width: int) -> int:
    """Elements of a token in a segment: its channels, and the pairs of its chunk."""
    return heads * (width + CHUNK)


def _segments(x_BTNP: Tensor) -> list[slice]:
    batch, length, heads, width = x_BTNP.shape
    return segment_slices(length, segment_length(batch, elements_per_token(heads, width), CHUNK, x_BTNP.device.type))


def _segment(chunk: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """All chunks of a segment side by side, except for the states that go from one to the next."""
    *of_tokens, a_N, d_N, h_BNPS = inputs
    x_BHNPC, dt_BHNC, b_BHGSC, c_BHGSC = (_chunked(part, chunk) for part in of_tokens)
    groups, length = b_BHGSC.shape[2], of_tokens[0].shape[1]
    decays_BHNCC, to_end_BHNC, from_start_BHNC = _decays(dt_BHNC * a_N[:, None])
    fed_BHNPC = x_BHNPC * dt_BHNC[..., None, :]
    by_group = (*x_BHNPC.shape[:2], groups, -1)  # all channels of a group together
    added_BHGES = (fed_BHNPC * to_end_BHNC[..., None, :]).view(*by_group, chunk) @ b_BHGSC.mT
    added_BHNPS = added_BHGES.view(*x_BHNPC.shape[:4], -1)
    before, end_BNPS = states_before(added_BHNPS.unbind(1), from_start_BHNC[..., -1, None, None].unbind(1), h_BNPS)
    read_BHNPC = (torch.stack(before, dim=1).view(*by_group, h_BNPS.shape[3]) @ c_BHGSC).view_as(x_BHNPC)
    # The weight of a source for a reader: the score that all heads of a group share, decayed; `[B, H, N, C, C]`.
    scores_BHGCC = b_BHGSC.mT @ c_BHGSC
    decays_BHGMCC = decays_BHNCC.view(*scores_BHGCC.shape[:3], -1, *scores_BHGCC.shape[3:])
    near_BHNPC = fed_BHNPC @ (scores_BHGCC[:, :, :, None] * decays_BHGMCC).flatten(2, 3)
    out_BHNPC = torch.addcmul(near_BHNPC, read_BHNPC, from_start_BHNC[..., None, :])
    out_BHNPC = torch.addcmul(out_BHNPC, x_BHNPC, d_N[:, None, None])
    return out_BHNPC.permute(0, 1, 4, 2, 3).flatten(1, 2)[:, :length], end_BNPS


def _chunked(x_BT: Tensor, chunk: int) -> Tensor:
    """`[B, T, ...] -> [B, H, ..., C]`, contiguous and padded with zeros: a step of 0 changes nothing."""
    short = -x_BT.shape[1] % chunk
    x_BT = x_BT.movedim(1, -1)
    if short:
        x_BT = F.pad(x_BT, (0, short))
    return x_BT.reshape(*x_BT.shape[:-1], -1, chunk).movedim(-2, 1).contiguous()


def _decays(log_BHNC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decays of each token to each later one (source, reader), `[B, H, N, C, C]`, 0 to earlier ones; of each to the
    last, and from the start of the chunk to each, both `[B, H, N, C]`.

    A difference of two sums in float32 would have an error of the last digit of the sums, which earlier tokens may have
    made large; so the rounding errors of the sums are added.
    """
    sums_BHNC = widen(log_BHNC).cumsum(-1)
    high_BHNC = sums_BHNC.to(log_BHNC.dtype)
    low_BHNC = (sums_BHNC.detach() - high_BHNC.detach()).to(log_BHNC.dtype)
    chunk = log_BHNC.shape[-1]
    unseen_CC = torch.full((chunk, chunk), -torch.inf, dtype=log_BHNC.dtype, device=log_BHNC.device).tril(-1)
    low_BHNCC = (low_BHNC[..., None, :] - low_BHNC[..., None]).add_(unseen_CC)
    decays_BHNCC = (high_BHNC[..., None, :] - high_BHNC[..., None]).add(low_BHNCC).exp()
    to_end_BHNC = (high_BHNC[..., -1:] - high_BHNC + (low_BHNC[..., -1:] - low_BHNC)).exp()
    return decays_BHNCC, to_end_BHNC, high_BHNC.exp()


def state_space_dual_flops(tokens: int, groups: int, heads: int, width: int, state: int) -> int:
    """FLOPs of `state_space_dual` for one sequence: 2 per multiply-add of its matrix products."""
    channels, chunk = heads * width, min(CHUNK, tokens)
    if tokens == 1:
        return 2 * channels * state
    token_flops = 2 * chunk * (groups * state + channels) + 4 * channels * state
    return -(-tokens // chunk) * chunk * token_flops
