"""The weight of a linear map that is not trained: rounded to few bits, or with a low-rank part that is trained.

Both are parametrizations of the map (`torch.nn.utils.parametrize`), which stays what it is: every form of every layer
that reads `weight` gets the matrix with all that belongs to it. Where a layer multiplies by its map as it is, the parts
are enough (`frozen_parts`, `ops.low_rank`), and the matrix is neither kept nor differentiated.

Legend: `I` inputs, `O` outputs, `R` rank.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from linnet.ops import int4_linear, int8_linear
from linnet.ops.int4_linear import Int4Weight
from linnet.ops.int8_linear import Int8Weight
from linnet.ops.low_rank import FrozenMatrix, LowRankParts, dense, low_rank_sum

FewBits = Literal["int8", "int4"]

PARAMETRIZED = ".parametrizations."
"""In the names of everything that the weight of such a map is made of, behind the name of the map."""


def round_to_few_bits(weight_OI: Tensor, bits: FewBits) -> Int8Weight | Int4Weight:
    """The weight as `inference.weights` has it: one scale for each output, or for each group of inputs."""
    return int8_linear.quantize(weight_OI) if bits == "int8" else int4_linear.quantize(weight_OI)


class FewBitWeight(nn.Module):
    """A weight that is stored in few bits and read in float32."""

    def __init__(self, bits: FewBits, inputs: int) -> None:
        super().__init__()
        self.bits, self.inputs = bits, inputs

    def weight(self, numbers: Tensor, scales: Tensor) -> Int8Weight | Int4Weight:
        """The stored weight as the operators read it."""
        kind = Int8Weight if self.bits == "int8" else Int4Weight
        return kind(numbers, scales, self.inputs)

    def forward(self, numbers: Tensor, scales: Tensor) -> Tensor:
        return dense(self.weight(numbers, scales))

    def right_inverse(self, weight_OI: Tensor) -> tuple[Tensor, Tensor]:
        """What is stored of a matrix."""
        return round_to_few_bits(weight_OI, self.bits)[:2]


class LowRankSum(nn.Module):
    """The weight of a linear map with its low-rank part, `[O, I] -> [O, I]`; without it while `is_on` is False."""

    def __init__(self, weight_OI: Tensor, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = weight_OI.shape
        self.scale = alpha / rank
        bound = 1 / math.sqrt(inputs)  # of the uniform distribution that LoRA's authors draw from
        drawn_RI = torch.rand((rank, inputs), generator=generator).mul_(2 * bound).sub_(bound)
        self.down_RI = nn.Parameter(drawn_RI.to(weight_OI))
        self.up_OR = nn.Parameter(weight_OI.new_zeros(outputs, rank))
        self.is_on = True

    def parts(self, weight: FrozenMatrix) -> LowRankParts:
        """What the sum is made of."""
        return LowRankParts(weight, self.up_OR, self.down_RI, self.scale)

    def forward(self, weight_OI: Tensor) -> Tensor:
        return low_rank_sum(self.parts(weight_OI)) if self.is_on else weight_OI


def store_in_few_bits(linear: nn.Linear, bits: FewBits) -> None:
    """Round the weight of a map, in place; what is stored are buffers, as integers have no gradients."""
    weight_OI = linear.weight.detach()
    del linear.weight
    linear.register_buffer("weight", weight_OI)
    parametrize.register_parametrization(linear, "weight", FewBitWeight(bits, weight_OI.shape[1]))


def frozen_parts(linear: nn.Linear) -> LowRankParts | None:
    """What the weight of a map is made of; None where it is a parameter like any other, or its low-rank part is off."""
    if "parametrizations" not in linear._modules:  # as `is_parametrized`, in a tenth of the time
        return None
    owner: Any = linear.parametrizations
    chain = owner.weight
    first, last = chain[0], chain[-1]
    rounded = first.weight(chain.original0, chain.original1) if isinstance(first, FewBitWeight) else None
    if isinstance(last, LowRankSum) and last.is_on:
        return last.parts(chain.original if rounded is None else rounded)
    return None if rounded is None else LowRankParts(rounded)
