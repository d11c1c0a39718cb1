"""Linear maps with weights of 4 bits, in groups of inputs that share a scale.

A weight is `(n - 8) * scale`, with an integer `n` from 0 to 15 and one bfloat16 scale of either sign for each output
and each group of inputs: 4.5 bits per weight in groups of 32, as in llama.cpp's Q4_0 (which does not search for the
scale). Where there is a compiler, `ops.native` multiplies any number of rows if the processor adds up products of
bytes; otherwise PyTorch multiplies a few rows where it can (`_weight_int4pack_mm_for_cpu`), in bfloat16. With many rows
arithmetic is the limit, so a float32 matrix is made first.

Legend: `I` inputs, `J` inputs padded to whole groups, `O` outputs, `G` groups, `R` rows, `N` blocks of outputs.
"""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.gemv import gather_from_blocks, to_int4_blocks

GROUP = 32
"""Default number of inputs that share a scale."""
GROUPS = (32, 64, 128, 256)
"""Group sizes that PyTorch's product supports."""
LEVELS = 16
MIDDLE = 8
"""The integer that represents 0: one more level lies below it than above."""
SMALLEST = 1e-30
"""A group whose largest element is smaller counts as zeros."""
SCALE_FACTORS = (1.0, 0.95, 0.9, 1.05)
"""Scales that are tried, relative to the one that maps a group's largest element to -8: a smaller scale clips the
largest elements and resolves the others better. Still smaller ones reduce the error of the matrix but increase the
loss of models (`experiments/LOG.md`)."""
MAX_PACKED_ROWS = 16
"""With more rows a float32 matrix is faster, although it is computed at each call."""
BLOCK = 64
"""Outputs that are packed together at most; a remainder is padded."""
MIN_PACKED_OUTPUTS = 16
"""With fewer outputs the packed and padded form takes more bytes than float32."""


class Int4Weight(NamedTuple):
    """Pairs of integers, two per byte: inputs `2h` (low half) and `2h + 1`, uint8 `[O, J / 2]`; bfloat16 scales; I."""

    pairs_OH: Tensor
    scale_GO: Tensor
    inputs: int


class BlockedInt4Weight(NamedTuple):
    """The same as `ops.native` reads it, uint8 `[N, G, b]` (`native.gemv.to_int4_blocks`)."""

    blocks_NGb: Tensor
    inputs: int
    outputs: int
    group: int


class PackedInt4Weight(NamedTuple):
    """The same as PyTorch's product reads it: padded blocks of outputs (`_packing_order`), each scale with a zero."""

    packed: Tensor
    steps_GO2: Tensor
    inputs: int
    outputs: int


@torch.no_grad()
def quantize(weight_OI: Tensor, group: int = GROUP) -> Int4Weight:
    """Round a matrix to 4 bits; each group gets the scale with the smallest squared error among those tried.

    Each scale is tried as it is, and as refitted by least squares to the integers that it gives.
    """
    outputs, inputs = weight_OI.shape
    wide_OGg = torch.unflatten(F.pad(weight_OI.float(), (0, -inputs % group)), 1, (-1, group))
    largest_OG1 = wide_OGg.gather(2, wide_OGg.abs().argmax(dim=2, keepdim=True))
    best: tuple[Tensor, ...] | None = None
    for factor in SCALE_FACTORS:
        tried = _round_to(wide_OGg, largest_OG1 * (-factor / MIDDLE))
        fitted_OG1 = (tried[0] * wide_OGg).sum(2, True) / tried[0].square().sum(2, True).clamp_min_(1)
        for new in (tried, _round_to(wide_OGg, fitted_OG1)):
            if best is None:
                best = new
            else:
                smaller_OG1 = new[2] < best[2]
                best = tuple(torch.where(smaller_OG1, a, b) for a, b in zip(new, best, strict=True))
    assert best is not None
    numbers_OJ = (best[0] + MIDDLE).to(torch.uint8).view(outputs, -1)
    pairs_OH = numbers_OJ[:, ::2] | numbers_OJ[:, 1::2] << 4
    return Int4Weight(pairs_OH, best[1][..., 0].bfloat16().t().contiguous(), inputs)


def _round_to(wide_OGg: Tensor, scale_OG1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers minus `MIDDLE` `[O, G, g]`, scales as they are stored `[O, G, 1]`, squared errors `[O, G, 1]`."""
    stored_OG1 = torch.where(scale_OG1.abs() < SMALLEST, SMALLEST, scale_OG1).bfloat16().float()
    numbers_OGg = (wide_OGg / stored_OG1).round_().clamp_(-MIDDLE, LEVELS - 1 - MIDDLE)
    error_OG1 = (numbers_OGg * stored_OG1 - wide_OGg).square_().sum(dim=2, keepdim=True)
    return numbers_OGg, stored_OG1, error_OG1


def _unpair(pairs_OH: Tensor) -> Tensor:
    return torch.stack([pairs_OH & 15, pairs_OH >> 4], dim=-1).flatten(-2)


def _scale(numbers_RJ: Tensor, scale_GR: Tensor, inputs: int) -> Tensor:
    """Integers times their scales, float32 `[R, I]`."""
    numbers_RGg = torch.unflatten(numbers_RJ.float().sub_(MIDDLE), 1, (len(scale_GR), -1))
    return numbers_RGg.mul_(scale_GR.t().float()[:, :, None]).flatten(1)[:, :inputs]


def dequantize(weight: Int4Weight) -> Tensor:
    """The matrix that the integers represent, float32 `[O, I]`."""
    return _scale(_unpair(weight.pairs_OH), weight.scale_GO, weight.inputs)


def gather_rows(weight: Int4Weight | BlockedInt4Weight | PackedInt4Weight, indices: Tensor) -> Tensor:
    """Rows of that matrix: int64 `[...]` -> float32 `[..., I]`."""
    numbers_RJ, scale_GR = _gather_outputs(weight, indices.flatten())
    return _scale(numbers_RJ, scale_GR, weight.inputs).view(*indices.shape, weight.inputs)


def _gather_outputs(
    weight: Int4Weight | BlockedInt4Weight | PackedInt4Weight, indices_R: Tensor
) -> tuple[Tensor, Tensor]:
    """Integers uint8 `[R, J]` and scales `[G, R]` of some outputs."""
    if isinstance(weight, BlockedInt4Weight):
        return gather_from_blocks(weight.blocks_NGb, indices_R)
    if isinstance(weight, Int4Weight):
        return _unpair(weight.pairs_OH[indices_R]), weight.scale_GO[:, indices_R]
    block, order = _packing_order()
    bytes_NJH = weight.packed.view(-1, 2 * weight.packed.shape[1], block // 2)
    slots_R = order[indices_R % block]
    bytes_RJ = bytes_NJH[indices_R // block, :, slots_R // 2]
    numbers_RJ = bytes_RJ >> (4 * (slots_R % 2)).to(torch.uint8)[:, None] & 15
    return numbers_RJ, weight.steps_GO2[:, indices_R, 0]


def int4_nbytes(outputs: int, inputs: int, group: int = GROUP) -> int:
    """Bytes of such a weight, without the padding of blocks of outputs."""
    groups = -(-inputs // group)
    return outputs * groups * (group // 2 + torch.bfloat16.itemsize)


def int4_linear_reference(x: Tensor, weight: Int4Weight, bias_O: Tensor | None = None) -> Tensor:
    """The definition: `[..., I] -> [..., O]` with the dequantized matrix."""
    return F.linear(x, dequantize(weight).to(x.dtype), bias_O)


def can_pack(device: torch.device) -> bool:
    """True where PyTorch was built with vectors of at least 256 bits, which its product needs."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def pack(weight: Int4Weight) -> PackedInt4Weight:
    """Pack for `int4_linear`; only where `can_pack`, and worth the padding from `MIN_PACKED_OUTPUTS` outputs on."""
    outputs = len(weight.pairs_OH)
    numbers_OJ = F.pad(_unpair(weight.pairs_OH), (0, 0, 0, -outputs % BLOCK))
    scale_GO = F.pad(weight.scale_GO, (0, -outputs % BLOCK))
    steps_GO2 = torch.stack([scale_GO, torch.zeros_like(scale_GO)], dim=2)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers_OJ.int(), 1)
    return PackedInt4Weight(packed, steps_GO2, weight.inputs, outputs)


def to_blocks(weight: Int4Weight) -> BlockedInt4Weight:
    """Arrange for the products of `ops.native`."""
    (outputs, half), groups = weight.pairs_OH.shape, len(weight.scale_GO)
    blocks_NGb = to_int4_blocks(weight.pairs_OH, weight.scale_GO)
    return BlockedInt4Weight(blocks_NGb, weight.inputs, outputs, 2 * half // groups)


def unpack(weight: BlockedInt4Weight | PackedInt4Weight) -> Int4Weight:
    """The inverse of `pack` and of `to_blocks`."""
    numbers_OJ, scale_GO = _gather_outputs(weight, torch.arange(weight.outputs))
    return Int4Weight(numbers_OJ[:, ::2] | numbers_OJ[:, 1::2] << 4, scale_GO.contiguous(), weight.inputs)


@cache
def _packing_order() -> tuple[int, Tensor]:
    """How PyTorch packs on this processor: outputs per block, and the position of each output in a block.

    PyTorch packs blocks of outputs input by input, so packing a matrix whose numbers are the indices of their outputs
    shows the order; an index has two digits of 4 bits.
    """
    outputs_OJ = torch.arange(BLOCK)[:, None].expand(BLOCK, GROUP)
    digits = [outputs_OJ % LEVELS, outputs_OJ // LEVELS]
    unpacked = [_unpair(torch.ops.aten._convert_weight_to_int4pack_for_cpu(d.int().contiguous(), 1)) for d in digits]
    positions = (unpacked[0].long() + LEVELS * unpacked[1].long()).flatten()
    # The packed inputs of a block follow each other: its size is the shortest period (a longer one holds it twice).
    block = next(size for size in (16, 32, 64) if torch.equal(positions[:size], positions[size : 2 * size]))
    return block, torch.argsort(positions[:block])


def int4_linear(x: Tensor, packed: PackedInt4Weight, bias_O: Tensor | None = None) -> Tensor:
    """`int4_linear_reference`, fast: `[..., I] -> [..., O]` in float32, without gradients.

    An output of a few rows differs from the definition by at most `sum |x w| / 256` and the rounding of bfloat16.
    """
    x_RI = x.reshape(-1, packed.inputs)
    if 0 < len(x_RI) <= MAX_PACKED_ROWS:
        out_RO = int4_packed_rows(x_RI, packed).float()
    else:
        out_RO = F.linear(x_RI, dequantize(unpack(packed)))
    return (out_RO if bias_O is None else out_RO + bias_O).view(*x.shape[:-1], packed.outputs)


def int4_packed_rows(x_RI: Tensor, packed: PackedInt4Weight) -> Tensor:
    """The product of a few rows in bfloat16, `[R, I] -> [R, O]`; it can be added to float32 without a cast."""
    numbers, steps_GO2, inputs, outputs = packed
    width = 2 * numbers.shape[1]
    x_RJ = x_RI.bfloat16() if inputs == width else F.pad(x_RI.bfloat16(), (0, width - inputs))
    out_RO: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x_RJ, numbers, width // len(steps_GO2), steps_GO2)
    return out_RO if out_RO.shape[1] == outputs else out_RO[:, :outputs]
