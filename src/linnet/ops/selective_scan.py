"""The selective scan: a state-space model whose step, input and output depend on the token.

Gu and Dao, 2023 (arXiv 2312.00752):

    h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t,   y_t = C_t . h_t      (eq. 2 with the steps of section 3.6)

A state of N numbers for each channel. `selective_scan_reference` is the definition; `selective_scan` takes segments,
cut into chunks: all chunks of a segment go on side by side, token after token, first to find what each leaves behind,
then from what those before it left. States of many numbers fill an operation by themselves: then a segment is one
chunk, and each token one operation there and one on the way back. No decay is ever divided by another, so nothing
overflows, however fast a channel forgets. Forward keeps its inputs and the state before each segment; backward makes
the states again.

Legend: `B` batch, `T` tokens, `E` channels, `N` numbers of a state, `S` tokens of a segment, `H` chunks,
`C` tokens of one.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.linear_scan import scan, scan_back
from linnet.ops.support import segment_length, segment_slices

CHUNK = 8
"""Tokens of a chunk, of which there are many side by side."""

MANY = 2**12
"""So many numbers of a token fill an operation on a processor: then a segment is one chunk."""

TENSORS = 2
"""By which a segment is shorter than others: what is made of each state's number at once has to stay in the cache."""


def selective_scan_reference(
    x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BNE: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: `[B, T, E]`, and the state `[B, N, E]` behind the last token.

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
    """The same, fast: in time and memory linear in the length. Differentiable once, but for the state behind it."""
    if h_BNE is None:
        h_BNE = x_BTE.new_zeros(len(x_BTE), *a_NE.shape)
    if x_BTE.shape[1] == 1:
        return selective_scan_reference(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, h_BNE)
    out_BTE, end_BNE = _as_it_is(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, h_BNE)
    return out_BTE, end_BNE


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Tensor) -> Any:
    """Also in a compiled model: its loop over segments would be another graph for every length."""
    return _Scan.apply(*inputs)  # type: ignore[no-untyped-call]


class _Room:
    """What is made of the tokens of a segment, in the same memory for every segment, so that it stays in the cache.

    kept: what a step multiplies the state by; states: after each token; of_states: their gradients; each
    `[B, H, C, N, E]`, and seen by token, `[B, S, N, E]`.
    """

    def __init__(self, x_BTE: Tensor, a_NE: Tensor, length: int, backward: bool) -> None:
        alone = x_BTE.device.type == "cpu" and len(x_BTE) * a_NE.numel() >= MANY
        self.length, self.chunk = length, length if alone else min(CHUNK, length)
        shape = len(x_BTE), -(-length // self.chunk), self.chunk, *a_NE.shape
        self.kept, self.states = x_BTE.new_empty(shape), x_BTE.new_empty(shape)
        self.of_states = x_BTE.new_empty(shape) if backward else self.states
        views = (part.flatten(1, 2)[:, :length] for part in (self.kept, self.states, self.of_states))
        self.kept_BSNE, self.states_BSNE, self.of_states_BSNE = views
        self._by_place = [part.unbind(2) for part in (self.kept, self.states, self.of_states)]

    def run(self, dt_BSE: Tensor, added_BSE: Tensor, a_NE: Tensor, b_BSN: Tensor, h_BNE: Tensor) -> Tensor:
        """The states; gives the last."""
        torch.mul(chunked(dt_BSE, self.chunk)[..., None, :], a_NE, out=self.kept).exp_()
        self._products(b_BSN, added_BSE, self.states)  # what each step adds, before the scan
        kept, states, _ = self._by_place
        return scan(kept, states, h_BNE, states)

    def run_back(self, c_BSN: Tensor, of_y_BSE: Tensor, of_h_BNE: Tensor) -> Tensor:
        """The gradients of the states; gives that of the state before the first token."""
        self._products(c_BSN, of_y_BSE, self.of_states)
        kept, _, of_states = self._by_place
        return scan_back(kept, of_states, of_h_BNE)

    def exponents(self, h_BNE: Tensor) -> Tensor:
        """The gradients of what steps multiply by, of its logarithm, in its place; h_BNE: the state before."""
        of_exponents_BSNE = self.kept_BSNE.mul_(self.of_states_BSNE)
        of_exponents_BSNE[:, 0] *= h_BNE
        of_exponents_BSNE[:, 1:] *= self.states_BSNE[:, :-1]
        return of_exponents_BSNE

    def _products(self, left_BSN: Tensor, right_BSE: Tensor, out: Tensor) -> None:
        torch.mul(chunked(left_BSN, self.chunk)[..., None], chunked(right_BSE, self.chunk)[..., None, :], out=out)


class _Scan(torch.autograd.Function):
    """Both passes by hand: the states would be N times as large as all else that is kept."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BNE: Tensor
    ) -> tuple[Tensor, Tensor]:
        starts, added_BTE, out_BTE = [], dt_BTE * x_BTE, x_BTE.new_empty(x_BTE.shape)
        for place, room in _rooms(x_BTE, a_NE, backward=False):
            starts.append(h_BNE)
            h_BNE = room.run(dt_BTE[:, place], added_BTE[:, place], a_NE, b_BTN[:, place], h_BNE)
            out_BTE[:, place] = (c_BTN[:, place, None] @ room.states_BSNE)[:, :, 0]
        ctx.save_for_backward(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, torch.stack(starts))
        ctx.mark_non_differentiable(h_BNE)
        return out_BTE, h_BNE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y_BTE: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, starts = ctx.saved_tensors
        added_BTE = dt_BTE * x_BTE
        of_added_BTE, of_dt_BTE, of_b_BTN, of_c_BTN = map(torch.empty_like, (x_BTE, dt_BTE, b_BTN, c_BTN))
        of_a_NE, of_h_BNE = torch.zeros_like(a_NE), torch.zeros_like(starts[0])
        segments = list(_rooms(x_BTE, a_NE, backward=True))
        for (place, room), start_BNE in reversed(list(zip(segments, starts, strict=True))):
            dt_BSE, of_y_BSE, b_BSN = dt_BTE[:, place], of_y_BTE[:, place], b_BTN[:, place]
            room.run(dt_BSE, added_BTE[:, place], a_NE, b_BSN, start_BNE)
            of_c_BTN[:, place] = (of_y_BSE[:, :, None] @ room.states_BSNE.mT)[:, :, 0]
            of_h_BNE = room.run_back(c_BTN[:, place], of_y_BSE, of_h_BNE)
            of_b_BTN[:, place] = (added_BTE[:, place, None] @ room.of_states_BSNE.mT)[:, :, 0]
            of_added_BTE[:, place] = (b_BSN[..., None, :] @ room.of_states_BSNE)[..., 0, :]
            of_exponents_BSNE = room.exponents(start_BNE)
            of_dt_BTE[:, place] = torch.mul(of_exponents_BSNE, a_NE, out=room.states_BSNE).sum(2)
            of_a_NE += of_exponents_BSNE.mul_(dt_BSE[:, :, None]).sum((0, 1))
        of_dt_BTE.addcmul_(of_added_BTE, x_BTE)
        return of_added_BTE.mul_(dt_BTE), of_dt_BTE, of_a_NE, of_b_BTN, of_c_BTN, of_h_BNE


def _rooms(x_BTE: Tensor, a_NE: Tensor, backward: bool) -> Iterator[tuple[slice, _Room]]:
    """The segments; all but a shorter last one have one room."""
    rooms: dict[int, _Room] = {}
    for place in _places(x_BTE, a_NE):
        length = place.stop - place.start
        if length not in rooms:
            rooms[length] = _Room(x_BTE, a_NE, length, backward)
        yield place, rooms[length]


def _places(x_BTE: Tensor, a_NE: Tensor) -> list[slice]:
    """Of the segments."""
    return segment_slices(x_BTE.shape[1], selective_scan_segment_length(len(x_BTE), a_NE.numel(), x_BTE.device.type))


def selective_scan_segment_length(batch: int, numbers: int, device: str = "cpu") -> int:
    """Tokens of a segment of rows with states of so many numbers."""
    return segment_length(batch, TENSORS * numbers, CHUNK, device)


def chunked(x_BSE: Tensor, chunk: int) -> Tensor:
    """`[B, S, E] -> [B, H, C, E]`, zeros behind: a step of 0 changes nothing."""
    batch, length, channels = x_BSE.shape
    if length % chunk:
        x_BSE = F.pad(x_BSE, (0, 0, 0, -length % chunk))
    return x_BSE.reshape(batch, -1, chunk, channels)
