"""Native operations between the products of one row, one call each; at this size the calls take most of the time.

Legend: `D` width, `J` heads, `K` head width, `R` pairs that are rotated, `C` capacity, `F` inner width. All float32.
"""

import ctypes
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from linnet.ops.native.program import Stride, contiguous_float32, empty, expect

Kind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu_squared"]
KINDS: tuple[Kind, ...] = ("silu", "gelu", "gelu_tanh", "relu", "relu_squared")
"""Activations in the order of their numbers in `elementwise.cpp`."""


def norm_row(library: ctypes.CDLL, gain_JD: Tensor, bias_JD: Tensor | None, eps: float) -> Callable[[Tensor], Tensor]:
    """A norm `[J, D] -> [J, D]`, each row with its own gain and bias; a gain `[D]` is that of one row.

    RMS norm (`ops.rms_norm`) without a bias, layer norm with one.
    """
    gain, bias = contiguous_float32(gain_JD.detach().reshape(-1, gain_JD.shape[-1])), None
    function, (rows, width) = library.linnet_rms_norm, gain.shape
    if bias_JD is not None:
        function, bias = library.linnet_layer_norm, contiguous_float32(bias_JD.detach().reshape(-1, bias_JD.shape[-1]))
        expect(bias.shape == gain.shape, "a bias for each gain", bias, gain)
    weights = (gain,) if bias is None else (gain, bias)

    def norm(x_JD: Tensor) -> Tensor:
        x_JD = contiguous_float32(x_JD)
        expect(x_JD.shape == gain.shape, "a row for each gain", x_JD, gain)
        out_JD = empty(rows, width)
        function(x_JD, *weights, rows, width, eps, out_JD, 1)
        return out_JD

    return norm


def rotate_row(
    library: ctypes.CDLL, cos_CR: Tensor, sin_CR: Tensor, pairing: Literal["adjacent", "halves"]
) -> Callable[[Tensor, int], Tensor]:
    """Rotary embedding of the heads `[J, K]` of a token at a position: the first 2 R elements of each, in place."""
    cos, sin, function = contiguous_float32(cos_CR), contiguous_float32(sin_CR), library.linnet_rotate
    (capacity, pairs), adjacent = cos.shape, pairing == "adjacent"
    stride = Stride("position", {4: 4 * pairs, 5: 4 * pairs}, capacity)

    def rotate(x_JK: Tensor, position: int) -> Tensor:
        heads, width = x_JK.shape
        in_place = x_JK.is_contiguous() and x_JK.dtype == torch.float32 and x_JK.is_cpu
        fits = in_place and 0 <= position < capacity and 2 * pairs <= width
        expect(fits, "contiguous heads of float32, rotated in place", x_JK)
        function(x_JK, heads, width, 2 * pairs, cos[position], sin[position], adjacent, 1, stride=stride)
        return x_JK

    return rotate


def activation_row(library: ctypes.CDLL, kind: Kind, gated: bool = False) -> Callable[[Tensor], Tensor]:
    """An activation (`nn.gates`), `[1, F] -> [1, F]`.

    With `gated`: `activation(first half) * second half`, `[1, 2F] -> [1, F]` (`ops.gated_feed_forward`).
    """
    function, number = library.linnet_glu if gated else library.linnet_activation, KINDS.index(kind)

    def activation(x_1F: Tensor) -> Tensor:
        x_1F = contiguous_float32(x_1F)
        if gated:
            expect(len(x_1F) == 1 and x_1F.shape[1] % 2 == 0, "one row, of two halves", x_1F)
        out_1F = empty(1, x_1F.shape[1] // 2) if gated else empty(*x_1F.shape)
        function(x_1F, out_1F.numel(), number, out_1F, 1)
        return out_1F

    return activation


def scale_add_row(
    library: ctypes.CDLL, factor: float, table_CD: Tensor | None = None
) -> Callable[[Tensor, int], Tensor]:
    """`[1, D]` and a position -> `[1, D]`: the row times a factor, plus the table's row of the position."""
    table, function = None if table_CD is None else contiguous_float32(table_CD.detach()), library.linnet_scale_add
    stride = None if table is None else Stride("position", {2: 4 * table.shape[1]}, len(table))

    def scale_add(x_1D: Tensor, position: int) -> Tensor:
        x_1D, row = contiguous_float32(x_1D), None
        if table is not None:
            expect(x_1D.shape[1] == table.shape[1] and 0 <= position < len(table), "a row of the table", x_1D, table)
            row = table[position]
        out_1D = empty(*x_1D.shape)
        function(x_1D, factor, row, x_1D.numel(), out_1D, 1, stride=stride)
        return out_1D

    return scale_add
