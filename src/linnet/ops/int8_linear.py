"""A linear map with weights of 8 bits: symmetric, one scale for each output.

A weight is a whole number from -127 to 127 times the scale of its output, so the product of one row reads a quarter of
the bytes that float32 takes. Only the weights are rounded to 8 bits. Numbers lie as a plain matrix, so that a table can
be looked up in and multiplied with.

One row, which is what decoding a stream consists of, is rounded to bfloat16 and multiplied by PyTorch's product for
weights of 8 bits: its error is a fifth of the weights', and nothing but the product takes time. Several rows are
written in fixed point, with two digits of 7 bits each (14 bits from the lowest to the highest that the row's largest
element allows), as bytes times bytes is the fastest product there is; those of both digits are added. Sums of whole
numbers are exact: a row gives the same whatever stands beside it. Digits of 8 bits would not do: without VNNI
instructions the kernel adds two products in 16 bits, which hold 2 * 127 * 127 and no more.

Legend: `I` inputs, `J` inputs filled up to a multiple of `ALIGNED`, `O` outputs, `R` rows.
"""

import platform
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 127
"""Of a weight's whole numbers; -128 is not used."""

DIGIT_BITS = 7
BASE = 1 << DIGIT_BITS
ZERO_DIGIT = BASE // 2
"""Both digits of the number that stands for 0; digits have no sign."""
ZERO = ZERO_DIGIT * (BASE + 1)
LARGEST_INPUT = BASE * BASE - 1 - ZERO
"""The number that stands for a row's largest element, less `ZERO`."""
ALIGNED = 16
"""Inputs are filled up to a multiple: PyTorch's product of one row reads so many at a time, past the end if need be."""
SMALLEST = 1e-30
"""A row or an output without a larger element counts as zeros: the reciprocal of a step must be finite."""

_SHIFTS_211 = torch.tensor([DIGIT_BITS, 0], dtype=torch.int16, device="cpu").view(2, 1, 1)
_ROUNDED_ZERO = torch.tensor(ZERO + 0.5, device="cpu")


class Int8Weight(NamedTuple):
    """Whole numbers int8 `[O, J]`, their scales bfloat16 `[O]`, and I."""

    numbers_OJ: Tensor
    scale_O: Tensor
    inputs: int


@torch.no_grad()
def quantise(weight_OI: Tensor) -> Int8Weight:
    """Round a matrix to 8 bits, the largest element of each output to 127 or -127."""
    wide_OI = weight_OI.float()
    scale_O = (wide_OI.abs().amax(dim=1) / LARGEST).bfloat16()
    numbers_OI = (wide_OI / scale_O.float().clamp_min(SMALLEST)[:, None]).round_().to(torch.int8)
    inputs = weight_OI.shape[1]
    return Int8Weight(F.pad(numbers_OI, (0, -inputs % ALIGNED)), scale_O, inputs)


def dequantise(weight: Int8Weight) -> Tensor:
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
    return F.linear(x, dequantise(weight).to(x.dtype), bias_O)


def has_fast_form(device: torch.device) -> bool:
    """Whether there are products of bytes there: on an x86 processor, by oneDNN."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def int8_linear(x: Tensor, weight: Int8Weight, bias_O: Tensor | None = None) -> Tensor:
    """`int8_linear_reference`, fast: `[..., I] -> [..., O]` in float32, without gradients; where `has_fast_form`.

    An output of one row differs from the definition's by at most `sum |x w| / 256` and the rounding of bfloat16; one of
    several by at most `max |x| * sum |w| / LARGEST_INPUT / 2`; and float32's rounding.
    """
    x_RI = x.reshape(-1, weight.inputs)
    out_RO = int8_row(x_RI, weight).float() if len(x_RI) == 1 else _rows(x_RI, weight)
    return (out_RO if bias_O is None else out_RO.add_(bias_O)).view(*x.shape[:-1], len(weight.scale_O))


def int8_row(x_1I: Tensor, weight: Int8Weight) -> Tensor:
    """One row in bfloat16, `[1, I] -> [1, O]`: added to float32 it needs no cast of its own."""
    row_1J = _filled(x_1I.bfloat16(), weight)
    out_1O: Tensor = torch.ops.aten._weight_int8pack_mm(row_1J, weight.numbers_OJ, weight.scale_O)
    return out_1O


def _filled(x_RI: Tensor, weight: Int8Weight) -> Tensor:
    """`[R, I] -> [R, J]`, contiguous."""
    more = weight.numbers_OJ.shape[1] - weight.inputs
    return F.pad(x_RI, (0, more)) if more else x_RI.contiguous()


def _rows(x_RI: Tensor, weight: Int8Weight) -> Tensor:
    step_R1 = torch.linalg.vector_norm(x_RI, torch.inf, dim=-1, keepdim=True).clamp_min_(SMALLEST) / LARGEST_INPUT
    fixed_RJ = torch.addcdiv(_ROUNDED_ZERO, _filled(x_RI, weight), step_R1)
    high_RO, low_RO = _digit_products(fixed_RJ, weight.numbers_OJ)
    return torch.add(low_RO, high_RO, alpha=BASE).mul_(step_R1).mul_(weight.scale_O)


def _digit_products(fixed_RJ: Tensor, numbers_OJ: Tensor) -> tuple[Tensor, Tensor]:
    """The product of each digit of fixed-point numbers, less that of 0, with the weights: float32 `[R, O]`, high first.

    What the digits of 0 make is the product of one more row.
    """
    rows, inputs = fixed_RJ.shape
    digits_NJ = fixed_RJ.new_full((2 * rows + 1, inputs), ZERO_DIGIT, dtype=torch.uint8)
    digits_2RJ = (fixed_RJ.to(torch.int16) >> _SHIFTS_211).bitwise_and_(BASE - 1)
    digits_NJ[:-1].view(2, rows, inputs).copy_(digits_2RJ)
    products_NO = torch._int_mm(digits_NJ, numbers_OJ.t())
    high_RO, low_RO = products_NO[:-1].sub_(products_NO[-1]).float().view(2, rows, len(numbers_OJ)).unbind()
    return high_RO, low_RO
