"""Native attention of one new token, and of one query each of several streams, over keys and values.

Legend: `B` streams, `M` key-value heads, `P` query heads of each of them, `S` tokens so far, `C` capacity, `K` head
width.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from linnet.ops.native.program import Stride, contiguous_float32, empty, expect

BYTES_PER_THREAD = 1 << 15
"""Keys and values for which one thread is used; more bytes use more threads."""

AttentionRow = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Queries `[M, P, K]`, the token's key and value `[M, K]` and its position -> what the heads read, `[1, M P K]`."""


def attention_row(library: ctypes.CDLL, keys_MCK: Tensor, values_MCK: Tensor, scale: float) -> AttentionRow:
    """`softmax(scale q K^T) V` over the tokens up to the position, whose key and value are stored first.

    Keys and values have the same shape and dtype, float32 or bfloat16, and are contiguous. All else is float32, sums
    included.
    """
    heads, capacity, width = keys_MCK.shape
    same_layout = keys_MCK.shape == values_MCK.shape and keys_MCK.dtype == values_MCK.dtype and keys_MCK.is_cpu
    supported = keys_MCK.dtype in (torch.float32, torch.bfloat16)
    supported = supported and keys_MCK.is_contiguous() and values_MCK.is_contiguous()
    expect(same_layout and supported, "keys and values alike, float32 or bfloat16, on the CPU", keys_MCK, values_MCK)
    is_bfloat16, function = keys_MCK.dtype == torch.bfloat16, library.linnet_attention_row
    stride = Stride("position", {9: 1}, capacity)
    bytes_per_token = 2 * heads * width * keys_MCK.element_size()

    def read(q_MPK: Tensor, k_MK: Tensor, v_MK: Tensor, position: int) -> Tensor:
        q_MPK, k_MK, v_MK = contiguous_float32(q_MPK), contiguous_float32(k_MK), contiguous_float32(v_MK)
        fits = q_MPK.shape[0] == heads and q_MPK.shape[2] == width and k_MK.shape == v_MK.shape == (heads, width)
        expect(fits and 0 <= position < capacity, f"{heads} heads of {width}, room for them", q_MPK, k_MK, v_MK)
        out_1F = empty(1, q_MPK.numel())
        threads = min(torch.get_num_threads(), heads, 1 + position * bytes_per_token // BYTES_PER_THREAD)
        sizes = heads, q_MPK.shape[1], capacity, width, position
        function(q_MPK, k_MK, v_MK, keys_MCK, values_MCK, *sizes, scale, out_1F, is_bfloat16, threads, stride=stride)
        return out_1F

    return read


def attention_past(
    library: ctypes.CDLL, q_BMPK: Tensor, keys_BMSK: Tensor, values_BMSK: Tensor, scale: float, lengths_B: Tensor
) -> Tensor:
    """`softmax(scale q K^T) V` over the first `lengths_B` (int64, at least 1) tokens of each stream, `[B, M, P, K]`.

    Keys and values have the same strides and dtype, float32 or bfloat16, with contiguous rows of heads. All else is
    float32, sums included.
    """
    streams, heads, groups, width = q_BMPK.shape
    same_layout = keys_BMSK.shape == values_BMSK.shape and keys_BMSK.stride() == values_BMSK.stride()
    stream_stride, head_stride, *row_strides = keys_BMSK.stride()
    supported = keys_BMSK.dtype == values_BMSK.dtype and keys_BMSK.dtype in (torch.float32, torch.bfloat16)
    fits = keys_BMSK.shape[:2] == (streams, heads) and keys_BMSK.shape[3] == width and row_strides == [width, 1]
    expect(
        same_layout and supported and fits and keys_BMSK.is_cpu,
        f"{heads} heads of {width}, alike",
        keys_BMSK,
        values_BMSK,
    )
    counted = lengths_B.shape == (streams,) and lengths_B.dtype == torch.int64 and lengths_B.is_contiguous()
    tokens = keys_BMSK.shape[2]
    within = counted and int(lengths_B.min()) >= 1 and int(lengths_B.max()) <= tokens
    expect(within, f"1 to {tokens} tokens of {streams} streams", lengths_B)
    out_BMPK = empty(*q_BMPK.shape)
    max_bytes = 2 * streams * tokens * heads * width * keys_BMSK.element_size()
    threads = min(torch.get_num_threads(), streams * heads, 1 + max_bytes // BYTES_PER_THREAD)
    sizes = streams, heads, groups, stream_stride, head_stride, width
    is_bfloat16 = keys_BMSK.dtype == torch.bfloat16
    function, q_BMPK = library.linnet_attention_past, contiguous_float32(q_BMPK)
    function(q_BMPK, keys_BMSK, values_BMSK, *sizes, lengths_B, scale, out_BMPK, is_bfloat16, threads)
    return out_BMPK


def head_matrices_row(library: ctypes.CDLL, operator_MKK: Tensor) -> Callable[[Tensor], Tensor]:
    """`q G`: queries `[M, P, K]` times one matrix for each key-value head, in the same shape."""
    operator, function = contiguous_float32(operator_MKK.detach()), library.linnet_apply_operator
    heads, width, _ = operator.shape

    def apply(q_MPK: Tensor) -> Tensor:
        q_MPK = contiguous_float32(q_MPK)
        expect(q_MPK.shape[0] == heads and q_MPK.shape[2] == width, f"{heads} heads of {width}", q_MPK)
        out_MPK = empty(*q_MPK.shape)
        function(q_MPK, operator, heads, q_MPK.shape[1], width, out_MPK, 1)
        return out_MPK

    return apply
