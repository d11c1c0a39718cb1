"""A linear map with weights of 4 bits, in groups of inputs with a scale of their own.

A weight is `(n - 8) * scale`, `n` a whole number from 0 to 15, the scale bfloat16, of either sign, one for each output
and each `group` of inputs: 4.5 bits for a weight in groups of 32, as in llama.cpp's Q4_0, whose scale is not searched
for. Where there is a compiler `ops.native` multiplies rows, any number of them where the processor adds up products of
bytes; else PyTorch a few where it can (`_weight_int4pack_mm_for_cpu`), in bfloat16. Of many others the time is that of
the arithmetic, so the matrix is made in float32.

Legend: `I` inputs, `J` inputs with those that fill the last group up, `O` outputs, `G` groups, `R` rows, `N` blocks of
outputs.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.rows import blocks_of, outputs_of

GROUP = 32
"""Inputs that share a scale, unless said otherwise."""
GROUPS = (32, 64, 128, 256)
"""What can be said: what PyTorch's product takes."""
LEVELS = 16
MIDDLE = 8
"""The number that stands for 0; one more lies below it than above."""
SMALLEST = 1e-30
"""A group without a larger element counts as zeros."""
SHARES = (1.0, 0.95, 0.9, 1.05)
"""Of the scale that makes a group's largest element -8 times it: what lies outside is cut, and all else is finer.

Smaller ones leave a smaller error of the matrix, and models more of their loss (`experiments/LOG.md`)."""
FEW_ROWS = 16
"""From more rows on a float32 matrix is faster, though it is made anew."""
BLOCK = 64
"""Outputs that are packed together at most; those that are left over are filled up."""
LEAST_PACKED = 16
"""Outputs from which on packed numbers, filled up, take fewer bytes than float32."""


class Int4Weight(NamedTuple):
    """pairs_OH: two numbers in each byte, of inputs `2h` (low) and `2h + 1`, uint8 `[O, J / 2]`. scale_GO: bfloat16.
    inputs: I.
    """

    pairs_OH: Tensor
    scale_GO: Tensor
    inputs: int


class BlockedInt4Weight(NamedTuple):
    """The same as `ops.native` reads it, uint8 `[N, G, b]` (`native.rows.blocks_of`)."""

    blocks_NGb: Tensor
    inputs: int
    outputs: int
    group: int


class PackedInt4Weight(NamedTuple):
    """The same as PyTorch's product reads it: outputs in blocks (`_order`), filled up; zeros beside the scales."""

    packed: Tensor
    steps_GO2: Tensor
    inputs: int
    outputs: int


@torch.no_grad()
def quantize(weight_OI: Tensor, group: int = GROUP) -> Int4Weight:
    """Round a matrix to 4 bits, with the scale of each group that leaves the smallest squared error of those tried.

    Each is tried as it is, and as the least squares make it for the numbers that it gives.
    """
    outputs, inputs = weight_OI.shape
    wide_OGg = torch.unflatten(F.pad(weight_OI.float(), (0, -inputs % group)), 1, (-1, group))
    largest_OG1 = wide_OGg.gather(2, wide_OGg.abs().argmax(dim=2, keepdim=True))
    best: tuple[Tensor, ...] | None = None
    for share in SHARES:
        tried = _numbers(wide_OGg, largest_OG1 * (-share / MIDDLE))
        fitted_OG1 = (tried[0] * wide_OGg).sum(2, True) / tried[0].square().sum(2, True).clamp_min_(1)
        for new in (tried, _numbers(wide_OGg, fitted_OG1)):
            best = new if best is None else _better(new, best)
    assert best is not None
    numbers_OJ = (best[0] + MIDDLE).to(torch.uint8).view(outputs, -1)
    return Int4Weight(_paired(numbers_OJ), best[1][..., 0].bfloat16().t().contiguous(), inputs)


def _numbers(wide_OGg: Tensor, scale_OG1: Tensor) -> tuple[Tensor, ...]:
    """Numbers less `MIDDLE` `[O, G, g]`, scales as they are stored `[O, G, 1]`, and squared errors `[O, G, 1]`."""
    stored_OG1 = torch.where(scale_OG1.abs() < SMALLEST, SMALLEST, scale_OG1).bfloat16().float()
    numbers_OGg = (wide_OGg / stored_OG1).round_().clamp_(-MIDDLE, LEVELS - 1 - MIDDLE)
    error_OG1 = (numbers_OGg * stored_OG1 - wide_OGg).square_().sum(dim=2, keepdim=True)
    return numbers_OGg, stored_OG1, error_OG1


def _better(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of each group the one with the smaller error, the last of the three."""
    smaller_OG1 = one[2] < other[2]
    return tuple(torch.where(smaller_OG1, a, b) for a, b in zip(one, other, strict=True))


def _paired(numbers_OJ: Tensor) -> Tensor:
    return numbers_OJ[:, ::2] | numbers_OJ[:, 1::2] << 4


def _unpaired(pairs_OH: Tensor) -> Tensor:
    return torch.stack([pairs_OH & 15, pairs_OH >> 4], dim=-1).flatten(-2)


def _values(numbers_RJ: Tensor, scale_GR: Tensor, inputs: int) -> Tensor:
    numbers_RGg = torch.unflatten(numbers_RJ.float().sub_(MIDDLE), 1, (len(scale_GR), -1))
    return numbers_RGg.mul_(scale_GR.t().float()[:, :, None]).flatten(1)[:, :inputs]


def dequantize(weight: Int4Weight) -> Tensor:
    """The matrix that the numbers stand for, float32 `[O, I]`."""
    return _values(_unpaired(weight.pairs_OH), weight.scale_GO, weight.inputs)


def rows_of(weight: Int4Weight | BlockedInt4Weight | PackedInt4Weight, places: Tensor) -> Tensor:
    """Some rows of that matrix: int64 `[...]` -> float32 `[..., I]`."""
    numbers_RJ, scale_GR = _outputs_of(weight, places.flatten())
    return _values(numbers_RJ, scale_GR, weight.inputs).view(*places.shape, weight.inputs)


def _outputs_of(weight: Int4Weight | BlockedInt4Weight | PackedInt4Weight, places_R: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers uint8 `[R, J]`, scales `[G, R]`."""
    if isinstance(weight, BlockedInt4Weight):
        return outputs_of(weight.blocks_NGb, places_R)
    if isinstance(weight, PackedInt4Weight):
        return _numbers_of(weight, places_R), weight.steps_GO2[:, places_R, 0]
    return _unpaired(weight.pairs_OH[places_R]), weight.scale_GO[:, places_R]


def int4_nbytes(outputs: int, inputs: int, group: int = GROUP) -> int:
    """Bytes of such a weight; what fills blocks of outputs up is not counted."""
    groups = -(-inputs // group)
    return outputs * groups * (group // 2 + torch.bfloat16.itemsize)


def int4_linear_reference(x: Tensor, weight: Int4Weight, bias_O: Tensor | None = None) -> Tensor:
    """The definition: `[..., I] -> [..., O]` with the matrix that the numbers stand for."""
    return F.linear(x, dequantize(weight).to(x.dtype), bias_O)


def can_pack(device: torch.device) -> bool:
    """Whether the fast form exists there: where PyTorch was built for vectors of at least 256 bits."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def pack(weight: Int4Weight) -> PackedInt4Weight:
    """For `int4_linear`; where `can_pack`, and worth filling up from `LEAST_PACKED` outputs on."""
    outputs = len(weight.pairs_OH)
    numbers_OJ = F.pad(_unpaired(weight.pairs_OH), (0, 0, 0, -outputs % BLOCK))
    scale_GO = F.pad(weight.scale_GO, (0, -outputs % BLOCK))
    steps_GO2 = torch.stack([scale_GO, torch.zeros_like(scale_GO)], dim=2)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers_OJ.int(), 1)
    return PackedInt4Weight(packed, steps_GO2, weight.inputs, outputs)


def blocked(weight: Int4Weight) -> BlockedInt4Weight:
    """For the products of `ops.native`."""
    (outputs, half), groups = weight.pairs_OH.shape, len(weight.scale_GO)
    blocks_NGb = blocks_of(weight.pairs_OH, weight.scale_GO)
    return BlockedInt4Weight(blocks_NGb, weight.inputs, outputs, 2 * half // groups)


def unpack(weight: BlockedInt4Weight | PackedInt4Weight) -> Int4Weight:
    """The plain form again."""
    numbers_OJ, scale_GO = _outputs_of(weight, torch.arange(weight.outputs))
    return Int4Weight(_paired(numbers_OJ), scale_GO.contiguous(), weight.inputs)


@cache
def _order() -> tuple[int, Tensor]:
    """How PyTorch packs on this processor: outputs of a block, and where in it each of them lies.

    It packs blocks of outputs input by input, so a matrix that says of each number in which output it stands shows it.
    """
    outputs_OJ = torch.arange(BLOCK)[:, None].expand(BLOCK, GROUP)
    digits = [outputs_OJ % LEVELS, outputs_OJ // LEVELS]
    seen = [_unpaired(torch.ops.aten._convert_weight_to_int4pack_for_cpu(d.int().contiguous(), 1)) for d in digits]
    stands = (seen[0].long() + LEVELS * seen[1].long()).flatten()
    block = next(size for size in (64, 32, 16) if torch.equal(stands[:size], stands[size : 2 * size]) or size == 16)
    return block, torch.argsort(stands[:block])


def _numbers_of(weight: PackedInt4Weight, places_R: Tensor) -> Tensor:
    """The numbers of some outputs, uint8 `[R, J]`."""
    block, order = _order()
    bytes_NJH = weight.packed.view(-1, 2 * weight.packed.shape[1], block // 2)
    slots_R = order[places_R % block]
    bytes_RJ = bytes_NJH[places_R // block, :, slots_R // 2]
    return bytes_RJ >> (4 * (slots_R % 2)).to(torch.uint8)[:, None] & 15


def int4_linear(x: Tensor, packed: PackedInt4Weight, bias_O: Tensor | None = None) -> Tensor:
    """`int4_linear_reference`, fast: `[..., I] -> [..., O]` in float32, without gradients.

    An output of a few rows differs from the definition's by at most `sum |x w| / 256` and bfloat16's rounding.
    """
    x_RI = x.reshape(-1, packed.inputs)
    if 0 < len(x_RI) <= FEW_ROWS:
        out_RO = int4_packed_rows(x_RI, packed).float()
    else:
        out_RO = F.linear(x_RI, dequantize(unpack(packed)))
    return (out_RO if bias_O is None else out_RO + bias_O).view(*x.shape[:-1], packed.outputs)


def int4_packed_rows(x_RI: Tensor, packed: PackedInt4Weight) -> Tensor:
    """A few rows in bfloat16, `[R, I] -> [R, O]`: added to float32 they need no cast of their own."""
    numbers, steps_GO2, inputs, outputs = packed
    width = 2 * numbers.shape[1]
    x_RJ = x_RI.bfloat16() if inputs == width else F.pad(x_RI.bfloat16(), (0, width - inputs))
    out_RO: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x_RJ, numbers, width // len(steps_GO2), steps_GO2)
    return out_RO if out_RO.shape[1] == outputs else out_RO[:, :outputs]
