"""The selective scan: a state-space model whose step, input and output depend on the token.

Gu and Dao, 2023 (arXiv 2312.00752):

    h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t,   y_t = C_t . h_t      (eq. 2 with the steps of section 3.6)

Each channel has a state of N numbers. `selective_scan_reference` is the definition; `selective_scan` takes segments,
cut into chunks: all chunks of a segment advance side by side, token after token (`ops.linear_scan.scan`). A large state
fills an operation by itself: then a segment is one chunk, and each token is one operation in each direction. Decays are
never divided by each other, so nothing overflows, however fast a channel forgets. The forward pass saves its inputs and
the state before each segment; the backward pass recomputes the states.

Legend: `B` batch, `T` tokens, `E` channels, `N` numbers of a state, `S` tokens of a segment, `H` chunks,
`C` tokens of one.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from linnet.ops.linear_scan import scan, scan_back
from linnet.ops.support import apply_eagerly, segment_length, segment_slices

CHUNK = 8
"""Tokens of a chunk; many chunks are computed side by side."""

MIN_FULL_OPERATION = 2**12
"""Elements of a token that fill an operation on a processor: with more, a segment is one chunk."""

STATE_TENSORS = 2
"""Segments are shorter by this factor: all intermediate tensors of the states have to stay in the cache."""


def selective_scan_reference(
    x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BNE: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: `[B, T, E]`, and the state `[B, N, E]` after the last token.

    dt_BTE: steps, above 0. a_NE: rates, below 0. h_BNE: the state before the first token, if not 0.
    """
    if h_BNE is None:
        h_BNE = x_BTE.new_zeros(len(x_BTE), *a_NE.shape)
    outs = []
    for x_BE, dt_BE, b_BN, c_BN in zip(*(part.unbind(1) for part in (x_BTE, dt_BTE, b_BTN, c_BTN)), strict=True):
        h_BNE = (dt_BE[:, None] * a_NE).exp() * h_BNE + (dt_BE * x_BE)[:, None] * b_BN[..., None]
        outs.append((c_BN[:, None] @ h_BNE)[:, 0])
    return torch.stack(outs, dim=1), h_BNE


def selective_scan(
    x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BNE: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`selective_scan_reference`, fast: time and memory linear in the length; differentiable once, except the last
    state.
    """
    if h_BNE is None:
        h_BNE = x_BTE.new_zeros(len(x_BTE), *a_NE.shape)
    if x_BTE.shape[1] == 1:
        return selective_scan_reference(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, h_BNE)
    out_BTE, end_BNE = apply_eagerly(_Scan, x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, h_BNE)
    return out_BTE, end_BNE


class _Buffers:
    """Buffers for the tokens of a segment. All segments use the same memory, so that it stays in the cache.

    decays: the decays of the steps; states: after each token; grad_states: their gradients; each `[B, H, C, N, E]`, and
    as a view by token `[B, S, N, E]`.
    """

    def __init__(self, x_BTE: Tensor, a_NE: Tensor, length: int, backward: bool) -> None:
        alone = x_BTE.device.type == "cpu" and len(x_BTE) * a_NE.numel() >= MIN_FULL_OPERATION
        self.length, self.chunk = length, length if alone else min(CHUNK, length)
        shape = len(x_BTE), -(-length // self.chunk), self.chunk, *a_NE.shape
        self.decays, self.states = x_BTE.new_empty(shape), x_BTE.new_empty(shape)
        self.grad_states = x_BTE.new_empty(shape) if backward else self.states
        views = (part.flatten(1, 2)[:, :length] for part in (self.decays, self.states, self.grad_states))
        self.decays_BSNE, self.states_BSNE, self.grad_states_BSNE = views
        self.by_token = [part.unbind(2) for part in (self.decays, self.states, self.grad_states)]

    def run(self, dt_BSE: Tensor, added_BSE: Tensor, a_NE: Tensor, b_BSN: Tensor, h_BNE: Tensor) -> Tensor:
        """Compute the states; returns the last one."""
        torch.mul(chunked(dt_BSE, self.chunk)[..., None, :], a_NE, out=self.decays).exp_()
        b_BHCN1, added_BHC1E = chunked(b_BSN, self.chunk)[..., None], chunked(added_BSE, self.chunk)[..., None, :]
        torch.mul(b_BHCN1, added_BHC1E, out=self.states)  # what each step adds, before the scan
        decays, states, _ = self.by_token
        return scan(decays, states, h_BNE, states)

    def run_back(
        self, c_BSN: Tensor, grad_y_BSE: Tensor, start_BNE: Tensor, grad_h_BNE: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradients of the states from `run` with the state before the segment, `start_BNE`.

        Returns the gradients of the logarithms of the decays, in place of the decays, `[B, S, N, E]`, and the gradient
        of the state before the first token.
        """
        c_BHCN1, grad_y_BHC1E = chunked(c_BSN, self.chunk)[..., None], chunked(grad_y_BSE, self.chunk)[..., None, :]
        torch.mul(c_BHCN1, grad_y_BHC1E, out=self.grad_states)
        decays, _, grad_states = self.by_token
        grad_start_BNE = scan_back(decays, grad_states, grad_h_BNE)
        grad_exponents_BSNE = self.decays_BSNE.mul_(self.grad_states_BSNE)
        grad_exponents_BSNE[:, 0] *= start_BNE
        grad_exponents_BSNE[:, 1:] *= self.states_BSNE[:, :-1]
        return grad_exponents_BSNE, grad_start_BNE


class _Scan(torch.autograd.Function):
    """Both passes are explicit: saved states would be N times as large as everything else that is saved."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BNE: Tensor
    ) -> tuple[Tensor, Tensor]:
        starts, added_BTE, out_BTE = [], dt_BTE * x_BTE, x_BTE.new_empty(x_BTE.shape)
        for place, buffer in _segments(x_BTE, a_NE, backward=False):
            starts.append(h_BNE)
            h_BNE = buffer.run(dt_BTE[:, place], added_BTE[:, place], a_NE, b_BTN[:, place], h_BNE)
            out_BTE[:, place] = (c_BTN[:, place, None] @ buffer.states_BSNE)[:, :, 0]
        ctx.save_for_backward(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, torch.stack(starts))
        ctx.mark_non_differentiable(h_BNE)
        return out_BTE, h_BNE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_y_BTE: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, starts = ctx.saved_tensors
        added_BTE = dt_BTE * x_BTE
        grad_added_BTE, grad_dt_BTE, grad_b_BTN, grad_c_BTN = map(torch.empty_like, (x_BTE, dt_BTE, b_BTN, c_BTN))
        grad_a_NE, grad_h_BNE = torch.zeros_like(a_NE), torch.zeros_like(starts[0])
        segments = list(_segments(x_BTE, a_NE, backward=True))
        for (place, buffer), start_BNE in reversed(list(zip(segments, starts, strict=True))):
            dt_BSE, grad_y_BSE, b_BSN = dt_BTE[:, place], grad_y_BTE[:, place], b_BTN[:, place]
            buffer.run(dt_BSE, added_BTE[:, place], a_NE, b_BSN, start_BNE)
            grad_c_BTN[:, place] = (grad_y_BSE[:, :, None] @ buffer.states_BSNE.mT)[:, :, 0]
            grad_exponents_BSNE, grad_h_BNE = buffer.run_back(c_BTN[:, place], grad_y_BSE, start_BNE, grad_h_BNE)
            grad_b_BTN[:, place] = (added_BTE[:, place, None] @ buffer.grad_states_BSNE.mT)[:, :, 0]
            grad_added_BTE[:, place] = (b_BSN[..., None, :] @ buffer.grad_states_BSNE)[..., 0, :]
            grad_dt_BTE[:, place] = torch.mul(grad_exponents_BSNE, a_NE, out=buffer.states_BSNE).sum(2)
            grad_a_NE += grad_exponents_BSNE.mul_(dt_BSE[:, :, None]).sum((0, 1))
        grad_dt_BTE.addcmul_(grad_added_BTE, x_BTE)
        return grad_added_BTE.mul_(dt_BTE), grad_dt_BTE, grad_a_NE, grad_b_BTN, grad_c_BTN, grad_h_BNE


def _segments(x_BTE: Tensor, a_NE: Tensor, backward: bool) -> Iterator[tuple[slice, _Buffers]]:
    """The segments with their buffers, which all but a shorter last one share."""
    buffers: dict[int, _Buffers] = {}
    segment = selective_scan_segment_length(len(x_BTE), a_NE.numel(), x_BTE.device.type)
    for place in segment_slices(x_BTE.shape[1], segment):
        length = place.stop - place.start
        if length not in buffers:
            buffers[length] = _Buffers(x_BTE, a_NE, length, backward)
        yield place, buffers[length]


def selective_scan_segment_length(batch: int, numbers: int, device: str = "cpu") -> int:
    """Tokens of a segment for `batch` rows, whose states have `numbers` elements each."""
    return segment_length(batch, STATE_TENSORS * numbers, CHUNK, device)


def chunked(x_BSE: Tensor, chunk: int) -> Tensor:
    """`[B, S, E] -> [B, H, C, E]`, padded with zeros: a step of 0 changes nothing."""
    batch, length, channels = x_BSE.shape
    if length % chunk:
        x_BSE = F.pad(x_BSE, (0, 0, 0, -length % chunk))
    return x_BSE.reshape(batch, -1, chunk, channels)
