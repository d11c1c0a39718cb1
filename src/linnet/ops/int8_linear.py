"""A linear map with weights of 8 bits: symmetric, one scale for each output.

A weight is a whole number from -127 to 127 times the scale of its output, so the product of one row reads a quarter of
the bytes that float32 takes. Only the weights are rounded to 8 bits. Numbers lie as a plain matrix, so that a table can
be looked up in and multiplied with; large matrices that nothing is looked up in are packed as oneDNN reads them.

One row of a plain matrix, as decoding a stream has it, is rounded to bfloat16 and multiplied by PyTorch's product for
weights of 8 bits: its error is a fifth of the weights', and nothing but the product takes time. Several rows, and one
of a packed matrix, are written in fixed point, with two digits of 7 bits each (14 bits from the lowest to the highest
that the row's largest element allows), as bytes times bytes is the fastest product there is; those of both digits are
added. Sums of whole numbers are exact: a row gives the same whatever stands beside it. Digits of 8 bits would not do:
without VNNI instructions the kernel adds two products in 16 bits, which hold 2 * 127 * 127 and no more.

Legend: `I` inputs, `J` inputs filled up to a multiple of `ALIGNED`, `O` outputs, `R` rows.
"""

import platform
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.rows import BYTES

LARGEST = 127
"""Of a weight's whole numbers; -128 is not used."""

DIGIT_BITS = 7
BASE = 1 << DIGIT_BITS
ZERO_DIGIT = BASE // 2
"""Both digits of the number that stands for 0; digits have no sign."""
ZERO = ZERO_DIGIT * (BASE + 1)
LARGEST_INPUT = BASE * BASE - 1 - ZERO
"""The number that stands for a row's largest element, less `ZERO`."""
ALIGNED = BYTES
"""Inputs are filled up to a multiple: products of one row read so many at a time, past the end if need be."""
LARGE = 1_000_000
"""Weights of a matrix from which on it is packed: what fixed point costs besides is then less than what it saves."""
SMALLEST = 1e-30
"""A row or an output without a larger element counts as zeros: the reciprocal of a step must be finite."""

_SHIFTS_211 = torch.tensor([DIGIT_BITS, 0], dtype=torch.int16, device="cpu").view(2, 1, 1)
_PLACES_13 = torch.tensor([[BASE, 1.0, -BASE - 1.0]], device="cpu")
"""What the products of the digits, and of those of 0, count."""
_ZERO_POINT = torch.zeros(1, dtype=torch.int64, device="cpu")
_ROUNDED_ZERO = torch.tensor(ZERO + 0.5, device="cpu")


class Int8Weight(NamedTuple):
    """Whole numbers int8 `[O, J]`, their scales bfloat16 `[O]`, and I."""

    numbers_OJ: Tensor
    scale_O: Tensor
    inputs: int


class PackedInt8Weight(NamedTuple):
    """The same in oneDNN's own layout (an opaque tensor `[J, O]`), for large matrices that nothing is looked up in."""

    numbers: Tensor
    scale_O: Tensor
    inputs: int


@torch.no_grad()
def quantize(weight_OI: Tensor) -> Int8Weight:
    """Round a matrix to 8 bits, the largest element of each output to 127 or -127."""
    wide_OI = weight_OI.float()
    scale_O = (wide_OI.abs().amax(dim=1) / LARGEST).bfloat16()
    numbers_OI = (wide_OI / scale_O.float().clamp_min(SMALLEST)[:, None]).round_().to(torch.int8)
    inputs = weight_OI.shape[1]
    return Int8Weight(F.pad(numbers_OI, (0, -inputs % ALIGNED)), scale_O, inputs)


def dequantize(weight: Int8Weight) -> Tensor:
    """The matrix that the whole numbers stand for, float32 `[O, I]` (float64 where scales are)."""
    scale_O = weight.scale_O.to(torch.promote_types(weight.scale_O.dtype, torch.float32))
    return weight.numbers_OJ[:, : weight.inputs].to(scale_O.dtype) * scale_O[:, None]


def rows_of(weight: Int8Weight, places: Tensor) -> Tensor:
    """Some rows of that matrix: int64 `[...]` -> float32 `[..., I]`."""
    return weight.numbers_OJ[places][..., : weight.inputs] * weight.scale_O[places, None].float()


def int8_nbytes(outputs: int, inputs: int) -> int:
    """Bytes of such a weight."""
    return outputs * (inputs + -inputs % ALIGNED + torch.bfloat16.itemsize)


def int8_linear_reference(x: Tensor, weight: Int8Weight, bias_O: Tensor | None = None) -> Tensor:
    """The definition: `[..., I] -> [..., O]` with the matrix that the numbers stand for."""
    return F.linear(x, dequantize(weight).to(x.dtype), bias_O)


def has_fast_form(device: torch.device) -> bool:
    """Whether there are products of bytes there: on an x86 processor, by oneDNN."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def pack(weight: Int8Weight) -> PackedInt8Weight:
    """For `int8_linear`; where `has_fast_form`."""
    packed = torch.ops.onednn.qlinear_prepack(weight.numbers_OJ, [2, weight.numbers_OJ.shape[1]])
    return PackedInt8Weight(packed, weight.scale_O, weight.inputs)


def unpack(packed: PackedInt8Weight) -> Int8Weight:
    """The plain form again."""
    return Int8Weight(packed.numbers.to_dense().t().contiguous(), packed.scale_O, packed.inputs)


def int8_linear(x: Tensor, weight: Int8Weight | PackedInt8Weight, bias_O: Tensor | None = None) -> Tensor:
    """`int8_linear_reference`, fast: `[..., I] -> [..., O]` in float32, without gradients; where `has_fast_form`.

    An output of one row, the matrix not packed, differs from the definition's by at most `sum |x w| / 256` and the
    rounding of bfloat16; others by at most `max |x| * sum |w| / LARGEST_INPUT / 2`; and float32's rounding.
    """
    x_RI = x.reshape(-1, weight.inputs)
    out_RO = int8_row(x_RI, weight).float() if len(x_RI) == 1 else _rows(x_RI, weight)
    return (out_RO if bias_O is None else out_RO.add_(bias_O)).view(*x.shape[:-1], len(weight.scale_O))


def int8_row(x_1I: Tensor, weight: Int8Weight | PackedInt8Weight) -> Tensor:
    """One row, `[1, I] -> [1, O]`, in bfloat16 unless packed: added to float32 it needs no cast of its own."""
    if isinstance(weight, PackedInt8Weight):
        return _packed_row(x_1I, weight)
    row_1J = _filled(x_1I.bfloat16(), weight.numbers_OJ.shape[1])
    out_1O: Tensor = torch.ops.aten._weight_int8pack_mm(row_1J, weight.numbers_OJ, weight.scale_O)
    return out_1O


def _packed_row(x_1I: Tensor, weight: PackedInt8Weight) -> Tensor:
    """As `_rows`, with fewer operations: for one row they take time of their own."""
    step = max(torch.linalg.vector_norm(x_1I, torch.inf).item(), SMALLEST) / LARGEST_INPUT
    fixed_1J = torch.add(_ROUNDED_ZERO, _filled(x_1I, weight.numbers.shape[0]), alpha=1 / step)
    return torch.mm(_PLACES_13, _products(_digits(fixed_1J), weight)).mul_(step)


def _filled(x_RI: Tensor, width: int) -> Tensor:
    """`[R, I] -> [R, J]`, contiguous."""
    more = width - x_RI.shape[1]
    return F.pad(x_RI, (0, more)) if more else x_RI.contiguous()


def _rows(x_RI: Tensor, weight: Int8Weight | PackedInt8Weight) -> Tensor:
    width = weight.numbers.shape[0] if isinstance(weight, PackedInt8Weight) else weight.numbers_OJ.shape[1]
    step_R1 = torch.linalg.vector_norm(x_RI, torch.inf, dim=-1, keepdim=True).clamp_min_(SMALLEST) / LARGEST_INPUT
    digits_NJ = _digits(torch.addcdiv(_ROUNDED_ZERO, _filled(x_RI, width), step_R1))
    products_NO = _products(digits_NJ, weight)
    high_RO, low_RO = products_NO[:-1].sub_(products_NO[-1]).view(2, len(x_RI), len(weight.scale_O)).unbind()
    return torch.add(low_RO, high_RO, alpha=BASE).mul_(step_R1)


def _digits(fixed_RJ: Tensor) -> Tensor:
    """The digits of fixed-point numbers, uint8 `[2 R + 1, J]`: the high ones, the low ones, and a row of those of 0.

    What the digits of 0 make is taken off the products.
    """
    rows, width = fixed_RJ.shape
    digits_NJ = fixed_RJ.new_full((2 * rows + 1, width), ZERO_DIGIT, dtype=torch.uint8)
    digits_2RJ = (fixed_RJ.to(torch.int16) >> _SHIFTS_211).bitwise_and_(BASE - 1)
    digits_NJ[:-1].view(2, rows, width).copy_(digits_2RJ)
    return digits_NJ


def _products(digits_NJ: Tensor, weight: Int8Weight | PackedInt8Weight) -> Tensor:
    """Float32 `[N, O]`."""
    scale_O = weight.scale_O.float()
    if isinstance(weight, Int8Weight):
        return torch._int_mm(digits_NJ, weight.numbers_OJ.t()).float().mul_(scale_O)
    out_NO: Tensor = torch.ops.onednn.qlinear_pointwise(
        digits_NJ, 1.0, 0, weight.numbers, scale_O, _ZERO_POINT, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out_NO
