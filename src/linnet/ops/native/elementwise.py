"""What lies between the products of one row, in a call each: of so little work the calls are most of the time.

Legend: `D` width, `J` heads, `K` head width, `R` pairs that are turned, `C` capacity, `F` inner width. All float32.
"""

import ctypes
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from linnet.ops.native.checks import empty, expect, plain
from linnet.ops.native.program import Along

Kind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu_squared"]
KINDS: tuple[Kind, ...] = ("silu", "gelu", "gelu_tanh", "relu", "relu_squared")
"""Activations in the order in which `elementwise.cpp` knows them."""


def rms_norm_row(library: ctypes.CDLL, gain_JD: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """`[J, D] -> [J, D]`, each row by itself with its own gain: see `ops.rms_norm`."""
    gain, function = _rows(gain_JD), library.linnet_rms_norm
    rows, width = gain.shape

    def norm(x_JD: Tensor) -> Tensor:
        x_JD = plain(x_JD)
        expect(x_JD.shape == gain.shape, "a row for each gain", x_JD, gain)
        out_JD = empty(rows, width)
        function(x_JD, gain, rows, width, eps, out_JD, 1)
        return out_JD

    return norm


def layer_norm_row(library: ctypes.CDLL, gain_JD: Tensor, bias_JD: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """`[J, D] -> [J, D]`, each row centerd and scaled by itself, with its own gain and bias."""
    gain, bias = map(_rows, (gain_JD, bias_JD))
    function, (rows, width) = library.linnet_layer_norm, gain.shape
    expect(bias.shape == gain.shape, "a bias for each gain", bias, gain)

    def norm(x_JD: Tensor) -> Tensor:
        x_JD = plain(x_JD)
        expect(x_JD.shape == gain.shape, "a row for each gain", x_JD, gain)
        out_JD = empty(rows, width)
        function(x_JD, gain, bias, rows, width, eps, out_JD, 1)
        return out_JD

    return norm


def _rows(parameter_JD: Tensor) -> Tensor:
    """`[D]` or `[J, D]` to `[J, D]`."""
    return plain(parameter_JD.detach().reshape(-1, parameter_JD.shape[-1]))


def rotate_row(
    library: ctypes.CDLL, cos_CR: Tensor, sin_CR: Tensor, pairing: Literal["adjacent", "halves"]
) -> Callable[[Tensor, int], Tensor]:
    """Heads `[J, K]` of a token, and its position: the first 2 R elements of each are turned, in place."""
    cos, sin, function = plain(cos_CR), plain(sin_CR), library.linnet_turn
    (capacity, pairs), adjacent = cos.shape, pairing == "adjacent"
    along = Along("position", {4: 4 * pairs, 5: 4 * pairs}, capacity)

    def turn(x_JK: Tensor, position: int) -> Tensor:
        heads, width = x_JK.shape
        own = x_JK.is_contiguous() and x_JK.dtype == torch.float32 and x_JK.is_cpu
        expect(own and 0 <= position < capacity and 2 * pairs <= width, "heads of float32, turned in place", x_JK)
        function(x_JK, heads, width, 2 * pairs, cos[position], sin[position], adjacent, 1, along=along)
        return x_JK

    return turn


def activation_row(library: ctypes.CDLL, kind: Kind) -> Callable[[Tensor], Tensor]:
    """`[1, F] -> [1, F]`: see `nn.activation`."""
    function, number = library.linnet_activated, KINDS.index(kind)

    def activated(x_1F: Tensor) -> Tensor:
        x_1F = plain(x_1F)
        out_1F = empty(*x_1F.shape)
        function(x_1F, x_1F.numel(), number, out_1F, 1)
        return out_1F

    return activated


def glu_row(library: ctypes.CDLL, kind: Kind = "silu") -> Callable[[Tensor], Tensor]:
    """`[1, 2F] -> [1, F]`: what the activation makes of the first half, times the second; see `ops.gated`."""
    function, number = library.linnet_gated, KINDS.index(kind)

    def gated(joint_1F: Tensor) -> Tensor:
        joint_1F = plain(joint_1F)
        expect(len(joint_1F) == 1 and joint_1F.shape[1] % 2 == 0, "one row, of two halves", joint_1F)
        out_1F = empty(1, joint_1F.shape[1] // 2)
        function(joint_1F, out_1F.shape[1], number, out_1F, 1)
        return out_1F

    return gated


def scale_add_row(
    library: ctypes.CDLL, factor: float, table_CD: Tensor | None = None
) -> Callable[[Tensor, int], Tensor]:
    """`[1, D]` and a position to `[1, D]`: times a factor, and added to the table's row of that position."""
    table, function = None if table_CD is None else plain(table_CD.detach()), library.linnet_scaled
    along = None if table is None else Along("position", {2: 4 * table.shape[1]}, len(table))

    def scaled(x_1D: Tensor, position: int) -> Tensor:
        x_1D, row = plain(x_1D), None
        if table is not None:
            expect(x_1D.shape[1] == table.shape[1] and 0 <= position < len(table), "a row of the table", x_1D, table)
            row = table[position]
        out_1D = empty(*x_1D.shape)
        function(x_1D, factor, row, x_1D.numel(), out_1D, 1, along=along)
        return out_1D

    return scaled
