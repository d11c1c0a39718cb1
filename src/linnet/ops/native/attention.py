"""Attention of one token of a stream, over keys and values that it joins, and of one of each of several streams.

Legend: `B` streams, `M` key-value heads, `P` query heads of each of them, `S` tokens so far, `C` capacity, `K` head
width.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from linnet.ops.native.checks import empty, expect, plain
from linnet.ops.native.program import Along

BYTES_OF_A_THREAD = 1 << 15
"""Keys and values that one thread reads before another is woken."""

AttentionRow = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Queries `[M, P, K]`, the token's key and value `[M, K]`, and its position to what the heads read, `[1, M P K]`."""


def attention_row(library: ctypes.CDLL, keys_MCK: Tensor, values_MCK: Tensor, factor: float) -> AttentionRow:
    """`softmax(factor q K^T) V` over the tokens up to the position, whose key and value are stored there first.

    Keys and values are alike, contiguous, in float32 or bfloat16; all else is float32, sums too.
    """
    heads, capacity, width = keys_MCK.shape
    alike = keys_MCK.shape == values_MCK.shape and keys_MCK.dtype == values_MCK.dtype and keys_MCK.is_cpu
    known = (
        keys_MCK.dtype in (torch.float32, torch.bfloat16) and keys_MCK.is_contiguous() and values_MCK.is_contiguous()
    )
    expect(alike and known, "keys and values alike, float32 or bfloat16, on the CPU", keys_MCK, values_MCK)
    narrow, function = keys_MCK.dtype == torch.bfloat16, library.linnet_attention_row
    along = Along("position", {9: 1}, capacity)
    bytes_of_a_token = 2 * heads * width * keys_MCK.element_size()

    def read(q_MPK: Tensor, k_MK: Tensor, v_MK: Tensor, position: int) -> Tensor:
        q_MPK, k_MK, v_MK = plain(q_MPK), plain(k_MK), plain(v_MK)
        fits = q_MPK.shape[0] == heads and q_MPK.shape[2] == width and k_MK.shape == v_MK.shape == (heads, width)
        expect(fits and 0 <= position < capacity, f"{heads} heads of {width}, room for them", q_MPK, k_MK, v_MK)
        out_1F = empty(1, q_MPK.numel())
        threads = min(torch.get_num_threads(), heads, 1 + position * bytes_of_a_token // BYTES_OF_A_THREAD)
        sizes = heads, q_MPK.shape[1], capacity, width, position
        function(q_MPK, k_MK, v_MK, keys_MCK, values_MCK, *sizes, factor, out_1F, narrow, threads, along=along)
        return out_1F

    return read


def attention_past(
    library: ctypes.CDLL, q_BMPK: Tensor, keys_BMSK: Tensor, values_BMSK: Tensor, factor: float, seen_B: Tensor
) -> Tensor:
    """`softmax(factor q K^T) V` over the first `seen_B` (int64, at least 1) tokens of each stream, `[B, M, P, K]`.

    Keys and values are alike, bfloat16, rows of heads contiguous; all else is float32, sums too.
    """
    streams, heads, shared, width = q_BMPK.shape
    alike = keys_BMSK.shape == values_BMSK.shape and keys_BMSK.stride() == values_BMSK.stride()
    of_stream, of_head, *rows = keys_BMSK.stride()
    known = keys_BMSK.dtype == values_BMSK.dtype == torch.bfloat16
    fits = keys_BMSK.shape[:2] == (streams, heads) and keys_BMSK.shape[3] == width and rows == [width, 1]
    expect(alike and known and fits and keys_BMSK.is_cpu, f"{heads} heads of {width}, alike", keys_BMSK, values_BMSK)
    counted = seen_B.shape == (streams,) and seen_B.dtype == torch.int64 and seen_B.is_contiguous()
    tokens = keys_BMSK.shape[2]
    within = counted and int(seen_B.min()) >= 1 and int(seen_B.max()) <= tokens
    expect(within, f"1 to {tokens} tokens of {streams} streams", seen_B)
    out_BMPK = empty(*q_BMPK.shape)
    bytes_at_most = 2 * streams * tokens * heads * width * keys_BMSK.element_size()
    threads = min(torch.get_num_threads(), streams * heads, 1 + bytes_at_most // BYTES_OF_A_THREAD)
    sizes = streams, heads, shared, of_stream, of_head, width
    library.linnet_attention_past(plain(q_BMPK), keys_BMSK, values_BMSK, *sizes, seen_B, factor, out_BMPK, threads)
    return out_BMPK


def operator_row(library: ctypes.CDLL, operator_MKK: Tensor) -> Callable[[Tensor], Tensor]:
    """`q G`: queries `[M, P, K]` to as many, by a matrix for each M."""
    operator, function = plain(operator_MKK.detach()), library.linnet_through_operator
    heads, width, _ = operator.shape

    def through(q_MPK: Tensor) -> Tensor:
        q_MPK = plain(q_MPK)
        expect(q_MPK.shape[0] == heads and q_MPK.shape[2] == width, f"{heads} heads of {width}", q_MPK)
        out_MPK = empty(*q_MPK.shape)
        sizes = heads, q_MPK.shape[1], width
        function(q_MPK, operator, *sizes, out_MPK, 1)
        return out_MPK

    return through
