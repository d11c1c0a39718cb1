"""What lies between the products of one row, in a call each: of so little work the calls are most of the time.

Legend: `D` width, `J` heads, `K` head width, `R` pairs that are turned, `C` capacity, `F` inner width. All float32.
"""

import ctypes
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from linnet.ops.native.checks import empty, expect, plain


def rms_norm_row(library: ctypes.CDLL, gain_D: Tensor, eps: float) -> Callable[[Tensor], Tensor]:
    """`[1, D] -> [1, D]`: see `ops.rms_norm`."""
    gain, function, width = plain(gain_D.detach()), library.linnet_rms_norm, len(gain_D)

    def norm(x_1D: Tensor) -> Tensor:
        x_1D = plain(x_1D)
        expect(x_1D.shape == (1, width), f"one row of {width}", x_1D)
        out_1D = empty(1, width)
        function(x_1D.data_ptr(), gain.data_ptr(), width, eps, out_1D.data_ptr())
        return out_1D

    return norm


def turn_row(
    library: ctypes.CDLL, cos_CR: Tensor, sin_CR: Tensor, pairing: Literal["adjacent", "halves"]
) -> Callable[[Tensor, int], Tensor]:
    """Heads `[J, K]` of a token, and its position: the first 2 R elements of each are turned, in place."""
    cos, sin, function = plain(cos_CR), plain(sin_CR), library.linnet_turn
    (capacity, pairs), adjacent = cos.shape, pairing == "adjacent"

    def turn(x_JK: Tensor, position: int) -> Tensor:
        heads, width = x_JK.shape
        own = x_JK.is_contiguous() and x_JK.dtype == torch.float32 and x_JK.is_cpu
        expect(own and 0 <= position < capacity and 2 * pairs <= width, "heads of float32, turned in place", x_JK)
        place = 4 * pairs * position
        function(x_JK.data_ptr(), heads, width, 2 * pairs, cos.data_ptr() + place, sin.data_ptr() + place, adjacent)
        return x_JK

    return turn


def gated_silu_row(library: ctypes.CDLL) -> Callable[[Tensor], Tensor]:
    """`[1, 2F] -> [1, F]`: see `ops.gated`."""
    function = library.linnet_gated_silu

    def gated(joint_1F: Tensor) -> Tensor:
        joint_1F = plain(joint_1F)
        expect(len(joint_1F) == 1 and joint_1F.shape[1] % 2 == 0, "one row, of two halves", joint_1F)
        out_1F = empty(1, joint_1F.shape[1] // 2)
        function(joint_1F.data_ptr(), out_1F.shape[1], out_1F.data_ptr())
        return out_1F

    return gated
