"""A linear map with weights of 8 bits: symmetric, one scale for each output.

A weight is a whole number from -127 to 127 times the scale of its output, so the product of one row reads a quarter of
the bytes that float32 takes. Only the weights are rounded to 8 bits. The fast form multiplies bytes with bytes, so it
writes each row of the input in fixed point, with two digits of 7 bits each (14 bits from the lowest to the highest that
the row's largest element allows), and adds the products of both digits. Sums of whole numbers are exact: a row gives
the same whatever stands beside it. Digits of 8 bits would not do: without VNNI instructions the kernel adds two
products in 16 bits, which hold 2 * 127 * 127 and no more.

Legend: `I` inputs, `O` outputs, `R` rows.
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
SMALLEST = 1e-30
"""A row or an output without a larger element counts as zeros: the reciprocal of a step must be finite."""

_SHIFTS_211 = torch.tensor([DIGIT_BITS, 0], dtype=torch.int16, device="cpu").view(2, 1, 1)
_PLACES_12 = torch.tensor([[BASE, 1.0]], device="cpu")
_ZERO_POINT = torch.zeros(1, dtype=torch.int64, device="cpu")
_ROUNDED_ZERO = torch.tensor(ZERO + 0.5, device="cpu")


class Int8Weight(NamedTuple):
    """Whole numbers int8 `[O, I]` and their scales float32 `[O]`."""

    numbers_OI: Tensor
    scale_O: Tensor


class PackedInt8Weight(NamedTuple):
    """The same in oneDNN's own layout (an opaque tensor), on the CPU.

    offset_O: what the digits' own zero adds to a product, to be taken off.
    """

    numbers: Tensor
    scale_O: Tensor
    offset_O: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads: one for each weight, and two vectors."""
        return self.numbers.numel() + self.scale_O.nbytes + self.offset_O.nbytes


@torch.no_grad()
def quantise(weight_OI: Tensor) -> Int8Weight:
    """Round a matrix to 8 bits, the largest element of each output to 127 or -127."""
    wide_OI = weight_OI.float()
    scale_O = wide_OI.abs().amax(dim=1) / LARGEST
    numbers_OI = (wide_OI / scale_O.clamp_min(SMALLEST)[:, None]).round_().to(torch.int8)
    return Int8Weight(numbers_OI, scale_O)


def dequantise(weight: Int8Weight) -> Tensor:
    """The matrix that the whole numbers stand for, float32 `[O, I]`."""
    return weight.numbers_OI.to(weight.scale_O.dtype) * weight.scale_O[:, None]


def int8_linear_reference(x: Tensor, weight: Int8Weight, bias_O: Tensor | None = None) -> Tensor:
    """The definition: `[..., I] -> [..., O]` with the matrix that the numbers stand for."""
    return F.linear(x, dequantise(weight).to(x.dtype), bias_O)


def can_pack(device: torch.device) -> bool:
    """Whether the fast form exists there: oneDNN's product of bytes, on an x86 processor."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return device.type == "cpu" and x86 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def pack(weight: Int8Weight) -> PackedInt8Weight:
    """For `int8_linear`; where `can_pack`."""
    numbers_OI, scale_O = weight
    packed = torch.ops.onednn.qlinear_prepack(numbers_OI, [2, numbers_OI.shape[1]])
    offset_O = -ZERO_DIGIT * numbers_OI.sum(dim=1, dtype=torch.float32) * scale_O
    return PackedInt8Weight(packed, scale_O, offset_O)


def unpack(packed: PackedInt8Weight) -> Int8Weight:
    """The plain form again."""
    return Int8Weight(packed.numbers.to_dense().t().contiguous(), packed.scale_O)


def int8_linear(x: Tensor, packed: PackedInt8Weight, bias_O: Tensor | None = None) -> Tensor:
    """`int8_linear_reference`, fast: `[..., I] -> [..., O]` in float32, without gradients.

    An output differs from the definition's by at most `max |x| * sum |w| / LARGEST_INPUT / 2`, and float32's rounding.
    """
    inputs, outputs = packed.numbers.shape
    x_RI = x.reshape(-1, inputs)
    out_RO = _one_row(x_RI, packed, bias_O) if len(x_RI) == 1 else _rows(x_RI, packed, bias_O)
    return out_RO.view(*x.shape[:-1], outputs)


def _rows(x_RI: Tensor, packed: PackedInt8Weight, bias_O: Tensor | None) -> Tensor:
    step_R1 = torch.linalg.vector_norm(x_RI, torch.inf, dim=-1, keepdim=True).clamp_min_(SMALLEST) / LARGEST_INPUT
    products_2RO = _digit_products(torch.addcdiv(_ROUNDED_ZERO, x_RI, step_R1), packed)
    high_RO, low_RO = products_2RO.view(2, len(x_RI), len(packed.scale_O)).unbind()
    product_RO = torch.add(low_RO, high_RO, alpha=BASE)
    return product_RO.mul_(step_R1) if bias_O is None else torch.addcmul(bias_O, product_RO, step_R1)


def _one_row(x_1I: Tensor, packed: PackedInt8Weight, bias_O: Tensor | None) -> Tensor:
    """The same with fewer operations: for one row they take time of their own."""
    step = max(torch.linalg.vector_norm(x_1I, torch.inf).item(), SMALLEST) / LARGEST_INPUT
    products_2O = _digit_products(torch.add(_ROUNDED_ZERO, x_1I, alpha=1 / step), packed)
    if bias_O is None:
        return torch.mm(_PLACES_12, products_2O).mul_(step)
    return torch.addmm(bias_O, _PLACES_12, products_2O, alpha=step)


def _digit_products(fixed_RI: Tensor, packed: PackedInt8Weight) -> Tensor:
    """The product of each digit of fixed-point numbers with the weights: float32 `[2 R, O]`, the high digits first."""
    digits_2RI = (fixed_RI.to(torch.int16) >> _SHIFTS_211).bitwise_and_(BASE - 1).to(torch.uint8)
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        digits_2RI.flatten(0, 1), 1.0, 0, packed.numbers, packed.scale_O, _ZERO_POINT, packed.offset_O,
        1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return out
