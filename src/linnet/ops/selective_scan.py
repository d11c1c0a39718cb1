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

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.linear_scan import scan, scan_back
from linnet.ops.segments import places_of, segment_length

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


class _Segment:
    """Some tokens of a stream, with what a step multiplies the state by, `[B, H, C, N, E]`."""

    def __init__(self, x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, place: slice) -> None:
        self.dt_BSE, x_BSE, self.b_BSN = (part[:, place] for part in (dt_BTE, x_BTE, b_BTN))
        self.added_BSE = self.dt_BSE * x_BSE
        self.length = x_BSE.shape[1]
        alone = x_BTE.device.type == "cpu" and len(x_BTE) * a_NE.numel() >= MANY
        self.chunk = self.length if alone else min(CHUNK, self.length)
        self.kept = (chunked(self.dt_BSE, self.chunk)[..., None, :] * a_NE).exp_()

    def states(self, h_BNE: Tensor) -> tuple[Tensor, Tensor]:
        """The state after each token, `[B, S, N, E]`, and the last."""
        states = self._products(self.b_BSN, self.added_BSE)  # what each step adds, before the scan
        h_BNE = scan(self.kept, states, h_BNE, states)
        return self._of_tokens(states), h_BNE

    def gradients(self, c_BSN: Tensor, of_y_BSE: Tensor, of_h_BNE: Tensor) -> tuple[Tensor, Tensor]:
        """Of the state after each token, `[B, S, N, E]`, and of that before the first."""
        of_states = self._products(c_BSN, of_y_BSE)
        of_h_BNE = scan_back(self.kept, of_states, of_h_BNE)
        return self._of_tokens(of_states), of_h_BNE

    def passed(self, of_states_BSNE: Tensor) -> Tensor:
        """What each step passes on to the state before it, `[B, S, N, E]`, in the place of what it keeps."""
        return self._of_tokens(self.kept).mul_(of_states_BSNE)

    def _products(self, left_BSN: Tensor, right_BSE: Tensor) -> Tensor:
        return chunked(left_BSN, self.chunk)[..., None] * chunked(right_BSE, self.chunk)[..., None, :]

    def _of_tokens(self, chunks: Tensor) -> Tensor:
        return chunks.flatten(1, 2)[:, : self.length]


class _Scan(torch.autograd.Function):
    """Both passes by hand: the states would be N times as large as all else that is kept."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, dt_BTE: Tensor, a_NE: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BNE: Tensor
    ) -> tuple[Tensor, Tensor]:
        outs, starts = [], []
        for place in _places(x_BTE, a_NE):
            starts.append(h_BNE)
            states_BSNE, h_BNE = _Segment(x_BTE, dt_BTE, a_NE, b_BTN, place).states(h_BNE)
            outs.append((c_BTN[:, place, None] @ states_BSNE)[:, :, 0])
        ctx.save_for_backward(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, torch.stack(starts))
        ctx.mark_non_differentiable(h_BNE)
        return torch.cat(outs, dim=1), h_BNE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y_BTE: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        x_BTE, dt_BTE, a_NE, b_BTN, c_BTN, starts = ctx.saved_tensors
        of_x_BTE, of_dt_BTE, of_b_BTN, of_c_BTN = map(torch.empty_like, (x_BTE, dt_BTE, b_BTN, c_BTN))
        of_a_NE, of_h_BNE = torch.zeros_like(a_NE), torch.zeros_like(starts[0])
        for place, start_BNE in reversed(list(zip(_places(x_BTE, a_NE), starts, strict=True))):
            segment, of_y_BSE = _Segment(x_BTE, dt_BTE, a_NE, b_BTN, place), of_y_BTE[:, place]
            states_BSNE, _ = segment.states(start_BNE)
            of_c_BTN[:, place] = (of_y_BSE[:, :, None] @ states_BSNE.mT)[:, :, 0]
            of_states_BSNE, of_h_BNE = segment.gradients(c_BTN[:, place], of_y_BSE, of_h_BNE)
            of_b_BTN[:, place] = (segment.added_BSE[:, :, None] @ of_states_BSNE.mT)[:, :, 0]
            of_added_BSE = (segment.b_BSN[..., None, :] @ of_states_BSNE)[..., 0, :]
            of_x_BTE[:, place] = of_added_BSE * segment.dt_BSE
            passed_BSNE = segment.passed(of_states_BSNE)
            passed_BSNE[:, 0] *= start_BNE
            passed_BSNE[:, 1:] *= states_BSNE[:, :-1]  # now of the exponents
            of_dt_BTE[:, place] = (passed_BSNE * a_NE).sum(2).addcmul_(of_added_BSE, x_BTE[:, place])
            of_a_NE += passed_BSNE.mul_(segment.dt_BSE[:, :, None]).sum((0, 1))
        return of_x_BTE, of_dt_BTE, of_a_NE, of_b_BTN, of_c_BTN, of_h_BNE


def _places(x_BTE: Tensor, a_NE: Tensor) -> list[slice]:
    """Of the segments."""
    return places_of(x_BTE.shape[1], segment_tokens(len(x_BTE), a_NE.numel(), x_BTE.device.type))


def segment_tokens(batch: int, numbers: int, device: str = "cpu") -> int:
    """Tokens of a segment of rows with states of so many numbers."""
    return segment_length(batch, TENSORS * numbers, CHUNK, device)


def chunked(x_BSE: Tensor, chunk: int) -> Tensor:
    """`[B, S, E] -> [B, H, C, E]`, zeros behind: a step of 0 changes nothing."""
    batch, length, channels = x_BSE.shape
    return F.pad(x_BSE, (0, 0, 0, -length % chunk)).view(batch, -1, chunk, channels)
