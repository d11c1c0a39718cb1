"""Linear maps with weights of 8 bits: symmetric, with one scale for each output.

A weight is an integer from -127 to 127 times the scale of its output, so the product of one row reads a quarter of the
bytes of float32. Only the weights are rounded to 8 bits. The integers are stored as a plain matrix, in which rows can
be looked up; large matrices without look-ups are packed in oneDNN's layout.

One row and a plain matrix (decoding one stream): the row is rounded to bfloat16 and multiplied by PyTorch's product for
8-bit weights. Its error is a fifth of that of the weights, and only the product takes time.

Several rows, or a packed matrix: rows are converted to fixed point with two digits of 7 bits each (14 bits over the
range of the row's largest element), because byte times byte is the fastest product there is. Sums of integers are
exact, so the result of a row does not depend on the other rows. Digits of 8 bits would overflow: without VNNI
instructions the kernel adds two products in 16 bits, which hold 2 * 127 * 127 and no more.

Legend: `I` inputs, `J` inputs padded to a multiple of `ALIGNED`, `O` outputs, `R` rows.
"""

import platform
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.gemv import BYTES

MAX_LEVEL = 127
"""Largest integer of a weight; -128 is not used."""

DIGIT_BITS = 7
BASE = 1 << DIGIT_BITS
ZERO_DIGIT = BASE // 2
"""Both digits of the fixed-point number that represents 0; digits are unsigned."""
ZERO = ZERO_DIGIT * (BASE + 1)
MAX_INPUT = BASE * BASE - 1 - ZERO
"""The fixed-point number of the row's largest element, minus `ZERO`."""
ALIGNED = BYTES
"""Inputs are padded to a multiple: products of one row read that many at a time, if need be past the end."""
MIN_PACKED_WEIGHTS = 1_000_000
"""Matrices of at least this size are packed: fixed point then costs less than the packed layout saves."""
SMALLEST = 1e-30
"""A row or an output whose largest element is smaller counts as zeros, so that reciprocals of steps are finite."""

_SHIFTS_211 = torch.tensor([DIGIT_BITS, 0], dtype=torch.int16, device="cpu").view(2, 1, 1)
_DIGIT_WEIGHTS_13 = torch.tensor([[BASE, 1.0, -BASE - 1.0]], device="cpu")
"""Weights of the products of the high digits, the low digits and the digits of 0."""
_ZERO_POINT = torch.zeros(1, dtype=torch.int64, device="cpu")
_ROUNDED_ZERO = torch.tensor(ZERO + 0.5, device="cpu")


class Int8Weight(NamedTuple):
    """Integers int8 `[O, J]`, their scales bfloat16 `[O]`, and I."""

    numbers_OJ: Tensor
    scale_O: Tensor
    inputs: int


class PackedInt8Weight(NamedTuple):
    """The same in oneDNN's layout (an opaque tensor `[J, O]`), for large matrices without look-ups."""

    numbers: Tensor
    scale_O: Tensor
    inputs: int


@torch.no_grad()
def quantize(weight_OI: Tensor) -> Int8Weight:
    """Round a matrix to 8 bits, the largest element of each output to 127 or -127."""
    wide_OI = weight_OI.float()
    scale_O = (wide_OI.abs().amax(dim=1) / MAX_LEVEL).bfloat16()
    numbers_OI = (wide_OI / scale_O.float().clamp_min(SMALLEST)[:, None]).round_().to(torch.int8)
    inputs = weight_OI.shape[1]
    return Int8Weight(F.pad(numbers_OI, (0, -inputs % ALIGNED)), scale_O, inputs)


def dequantize(weight: Int8Weight) -> Tensor:
    """The matrix that the integers represent, float32 `[O, I]` (float64 if the scales are)."""
    scale_O = weight.scale_O.to(torch.promote_types(weight.scale_O.dtype, torch.float32))
    return weight.numbers_OJ[:, : weight.inputs].to(scale_O.dtype) * scale_O[:, None]


def gather_rows(weight: Int8Weight, indices: Tensor) -> Tensor:
    """Rows of that matrix: int64 `[...]` -> float32 `[..., I]`."""
    return weight.numbers_OJ[indices][..., : weight.inputs] * weight.scale_O[indices, None].float()


def int8_nbytes(outputs: int, inputs: int) -> int:
    """Bytes of such a weight."""
    return outputs * (inputs + -inputs % ALIGNED + torch.bfloat16.itemsize)


def int8_linear_reference(x: Tensor, weight: Int8Weight, bias_O: Tensor | None = None) -> Tensor:
    """The definition: `[..., I] -> [..., O]` with the dequantized matrix."""
    return F.linear(x, dequantize(weight).to(x.dtype), bias_O)


def has_fast_form(device: torch.device) -> bool:
    """True on x86 processors, where oneDNN multiplies bytes."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def pack(weight: Int8Weight) -> PackedInt8Weight:
    """Pack for `int8_linear`; only where `has_fast_form`."""
    packed = torch.ops.onednn.qlinear_prepack(weight.numbers_OJ, [2, weight.numbers_OJ.shape[1]])
    return PackedInt8Weight(packed, weight.scale_O, weight.inputs)


def unpack(packed: PackedInt8Weight) -> Int8Weight:
    """The inverse of `pack`."""
    return Int8Weight(packed.numbers.to_dense().t().contiguous(), packed.scale_O, packed.inputs)


def int8_linear(x: Tensor, weight: Int8Weight | PackedInt8Weight, bias_O: Tensor | None = None) -> Tensor:
    """`int8_linear_reference`, fast: `[..., I] -> [..., O]` in float32, without gradients; only where `has_fast_form`.

    An output of one row and a plain matrix differs from the definition by at most `sum |x w| / 256` and the rounding of
    bfloat16, other outputs by at most `max |x| * sum |w| / MAX_INPUT / 2`; to both the rounding of float32 is added.
    """
    x_RI = x.reshape(-1, weight.inputs)
    if len(x_RI) == 1:
        out_RO = int8_row(x_RI, weight).float()
    else:
        width = weight.numbers.shape[0] if isinstance(weight, PackedInt8Weight) else weight.numbers_OJ.shape[1]
        step_R1 = torch.linalg.vector_norm(x_RI, torch.inf, dim=-1, keepdim=True).clamp_min_(SMALLEST) / MAX_INPUT
        products_NO = _integer_products(torch.addcdiv(_ROUNDED_ZERO, _pad(x_RI, width), step_R1), weight)
        # Digits are unsigned, so the products of the digits of 0 (the last row) are subtracted.
        high_RO, low_RO = products_NO[:-1].sub_(products_NO[-1]).view(2, len(x_RI), len(weight.scale_O)).unbind()
        out_RO = torch.add(low_RO, high_RO, alpha=BASE).mul_(step_R1)
    return (out_RO if bias_O is None else out_RO.add_(bias_O)).view(*x.shape[:-1], len(weight.scale_O))


def int8_row(x_1I: Tensor, weight: Int8Weight | PackedInt8Weight) -> Tensor:
    """The product of one row, `[1, I] -> [1, O]`: in bfloat16, or in float32 if the matrix is packed."""
    if isinstance(weight, Int8Weight):
        row_1J = _pad(x_1I.bfloat16(), weight.numbers_OJ.shape[1])
        out_1O: Tensor = torch.ops.aten._weight_int8pack_mm(row_1J, weight.numbers_OJ, weight.scale_O)
        return out_1O
    # Fixed point as in `int8_linear`, with fewer operations: for one row their overhead dominates.
    step = max(torch.linalg.vector_norm(x_1I, torch.inf).item(), SMALLEST) / MAX_INPUT
    fixed_1J = torch.add(_ROUNDED_ZERO, _pad(x_1I, weight.numbers.shape[0]), alpha=1 / step)
    return torch.mm(_DIGIT_WEIGHTS_13, _integer_products(fixed_1J, weight)).mul_(step)


def _pad(x_RI: Tensor, width: int) -> Tensor:
    """`[R, I] -> [R, J]`, contiguous."""
    missing = width - x_RI.shape[1]
    return F.pad(x_RI, (0, missing)) if missing else x_RI.contiguous()


def _integer_products(fixed_RJ: Tensor, weight: Int8Weight | PackedInt8Weight) -> Tensor:
    """Products of the digits of fixed-point numbers, float32 `[2 R + 1, O]`: high digits, low digits, digits of 0."""
    rows, width = fixed_RJ.shape
    digits_NJ = fixed_RJ.new_full((2 * rows + 1, width), ZERO_DIGIT, dtype=torch.uint8)
    digits_2RJ = (fixed_RJ.to(torch.int16) >> _SHIFTS_211).bitwise_and_(BASE - 1)
    digits_NJ[:-1].view(2, rows, width).copy_(digits_2RJ)
    scale_O = weight.scale_O.float()
    if isinstance(weight, Int8Weight):
        return torch._int_mm(digits_NJ, weight.numbers_OJ.t()).float().mul_(scale_O)
    out_NO: Tensor = torch.ops.onednn.qlinear_pointwise(
        digits_NJ, 1.0, 0, weight.numbers, scale_O, _ZERO_POINT, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out_NO
