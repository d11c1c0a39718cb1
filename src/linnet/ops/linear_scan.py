"""The linear recurrence of a channel, `h_t = a_t h_(t-1) + b_t`, for all tokens in few operations.

`linear_scan_reference` is the definition. `linear_scan` cuts the stream into chunks (Blelloch, 1990, "Prefix sums and
their applications": the pairs (a, b) form a semigroup): all chunks go on side by side, token after token, first to find
what each leaves behind, then from what those before it left. Rows and channels that are many are side by side already,
and have one chunk. No factor is ever divided by another and no logarithm is taken, so factors may be 0, and nothing
overflows that the definition does not. Forward keeps the factors and the states; backward is the same scan from the
end, `g_t = dh_t + a_(t+1) g_(t+1)`, with `db_t = g_t` and `da_t = g_t h_(t-1)`.

Legend: `B` batch, `T` tokens, `E` channels, `S` tokens of a segment, `H` chunks, `C` tokens of one; what follows them
in `scan` and `scan_back` is any shape of a state.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from linnet.ops.support import SEGMENT_NUMBERS

FEW = 16
"""So many tokens are one chunk: more of them would take as many operations."""


def linear_scan_reference(a_BTE: Tensor, b_BTE: Tensor, h_BE: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The definition, step by step: all states `[B, T, E]`, and the last, `[B, E]`.

    h_BE: the state before the first token, if not 0.
    """
    h_BE = torch.zeros_like(b_BTE[:, 0]) if h_BE is None else h_BE
    states = []
    for a_BE, b_BE in zip(a_BTE.unbind(1), b_BTE.unbind(1), strict=True):
        h_BE = a_BE * h_BE + b_BE
        states.append(h_BE)
    return torch.stack(states, dim=1), h_BE


def linear_scan(a_BTE: Tensor, b_BTE: Tensor, h_BE: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same, fast: in time and memory linear in the length. Differentiable once."""
    if b_BTE.shape[1] == 1:
        return linear_scan_reference(a_BTE, b_BTE, h_BE)
    states_BTE = _as_it_is(a_BTE, b_BTE, torch.zeros_like(b_BTE[:, 0]) if h_BE is None else h_BE)
    return states_BTE, states_BTE[:, -1]


@_disable_dynamo  # `torch.compiler.disable` imports the whole compiler, a second, wherever this file is read
def _as_it_is(*inputs: Tensor) -> Any:
    """Also in a compiled model: its loops would be another graph for every length."""
    return _LinearScan.apply(*inputs)  # type: ignore[no-untyped-call]


class _LinearScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_BTE: Tensor, b_BTE: Tensor, h_BE: Tensor) -> Tensor:
        states_BTE, left_BE = torch.empty_like(b_BTE, memory_format=torch.contiguous_format), h_BE
        for place, chunk in segments(b_BTE.shape, b_BTE.device.type):
            a_BHCE, b_BHCE, states_BHCE = (in_chunks(part, place, chunk) for part in (a_BTE, b_BTE, states_BTE))
            left_BE = scan(a_BHCE.unbind(2), b_BHCE.unbind(2), left_BE, states_BHCE.unbind(2))
        ctx.save_for_backward(a_BTE, states_BTE, h_BE)
        return states_BTE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_BTE: Tensor) -> tuple[Tensor, ...]:
        a_BTE, states_BTE, h_BE = ctx.saved_tensors
        of_b_BTE = upstream_BTE.clone(memory_format=torch.contiguous_format)
        passed_BE = torch.zeros_like(h_BE)
        for place, chunk in reversed(list(segments(a_BTE.shape, a_BTE.device.type))):
            a_BHCE, of_b_BHCE = (in_chunks(part, place, chunk) for part in (a_BTE, of_b_BTE))
            passed_BE = scan_back(a_BHCE.unbind(2), of_b_BHCE.unbind(2), passed_BE)
        of_a_BTE = torch.empty_like(of_b_BTE)
        torch.mul(of_b_BTE[:, 0], h_BE, out=of_a_BTE[:, 0])
        torch.mul(of_b_BTE[:, 1:], states_BTE[:, :-1], out=of_a_BTE[:, 1:])
        return of_a_BTE, of_b_BTE, passed_BE


def segments(shape: Sequence[int], device: str = "cpu") -> Iterator[tuple[slice, int]]:
    """Places of the segments, and how many tokens their chunks have: whole chunks, and at last what is less than one.

    shape: `[B, T, E]`. On a GPU, where the number of steps counts, there is one.
    """
    batch, length, channels = shape
    segment = length
    if device == "cpu":
        segment = min(length, max(FEW, SEGMENT_NUMBERS // max(1, batch * channels)))
    chunk = segment if segment <= FEW else round((segment / 3) ** 0.5)  # three steps for a chunk's token, one for each
    begin, segment = 0, segment // chunk * chunk
    while begin < length:
        size = min(segment, (length - begin) // chunk * chunk or length - begin)
        yield slice(begin, begin + size), min(chunk, size)
        begin += size


def in_chunks(x_BTE: Tensor, place: slice, chunk: int) -> Tensor:
    """A segment's tokens in chunks, a view `[B, H, C, E]`."""
    return x_BTE[:, place].view(len(x_BTE), -1, chunk, x_BTE.shape[2])


def scan(kept: Sequence[Tensor], added: Sequence[Tensor], h_B: Tensor, states: Sequence[Tensor]) -> Tensor:
    """`h_t = kept_t h_(t-1) + added_t` for all tokens of all chunks, into `states`; gives the last.

    Of each token of a chunk, `[B, H, ...]`, those of all chunks.

    h_B: the state before the first token, `[B, ...]`. `states` may be `added`.
    """
    h_BH = h_B[:, None]
    if kept[0].shape[1] > 1:
        left_BH = added[0]
        for kept_BH, added_BH in zip(kept[1:], added[1:], strict=True):
            left_BH = torch.addcmul(added_BH, kept_BH, left_BH)
        h_BH = torch.stack(_before_each(left_BH.unbind(1), _shares(kept).unbind(1), h_B), dim=1)
    for kept_BH, added_BH, state_BH in zip(kept, added, states, strict=True):
        h_BH = torch.addcmul(added_BH, kept_BH, h_BH, out=state_BH)
    return h_BH[:, -1].clone()  # a view would hold all of them


def scan_back(kept: Sequence[Tensor], added: Sequence[Tensor], passed_B: Tensor) -> Tensor:
    """The same from the end: `g_t = added_t + kept_(t+1) g_(t+1)`, in place of `added`.

    passed_B: the last term of the last token, `[B, ...]`; gives that of the token before the first.
    """
    passed_BH = passed_B[:, None]
    if kept[0].shape[1] > 1:
        left_BH = added[-1]
        for kept_BH, added_BH in zip(kept[:0:-1], added[-2::-1], strict=True):
            left_BH = torch.addcmul(added_BH, kept_BH, left_BH)
        left_BH = kept[0] * left_BH
        behind = _before_each(left_BH.unbind(1)[::-1], _shares(kept).unbind(1)[::-1], passed_B)
        passed_BH = torch.stack(behind[::-1], dim=1)
    g_BH = added[-1].add_(passed_BH)
    for kept_BH, added_BH in zip(kept[:0:-1], added[-2::-1], strict=True):
        g_BH = added_BH.addcmul_(kept_BH, g_BH)
    return kept[0][:, 0] * g_BH[:, 0]


def _shares(kept: Sequence[Tensor]) -> Tensor:
    """What a whole chunk keeps of the state before it, `[B, H, ...]`."""
    share_BH = kept[0]
    for kept_BH in kept[1:]:
        share_BH = share_BH * kept_BH
    return share_BH


def _before_each(left: Sequence[Tensor], shares: Sequence[Tensor], first_B: Tensor) -> list[Tensor]:
    """What stands before each chunk, from what each leaves of itself and of what was before it."""
    before = [first_B]
    for left_B, share_B in zip(left[:-1], shares[:-1], strict=True):
        before.append(torch.addcmul(left_B, share_B, before[-1]))
    return before
