"""Positions by distance, alternatives to rotary ones: their specs, and the tables that attention reads.

Shapes: `N` query heads, `M` key-value heads, `P` query heads per key-value head, `T` tokens of the chunk, `S` tokens so
far, `K` head width, `R` distances, `U` buckets, `C` capacity.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from linnet.core.spec import Extent, Spec
from linnet.nn.cost import Cost
from linnet.ops.relative_positions import Relative, bucket_bias, check_buckets, position_buckets


class Positions(nn.Module, ABC):
    """The contribution of the distance between query and key to scores and values."""

    @abstractmethod
    def relative(self, keys: int, device: torch.device) -> Relative:
        """The tables for the distances below `keys`; distances that are not in them contribute nothing."""

    def added(self, out_BNTK: Tensor) -> Tensor:
        """The output of attention with the part that does not depend on the distance."""
        return out_BNTK

    def pairs(self, offsets: Tensor) -> Tensor:
        """The bias of scores from the key's position minus the query's, `[..., T, S] -> [..., N, T, S]`.

        Only for specs with `sees_ahead`.
        """
        raise NotImplementedError("these positions have no distances to later tokens")


class PositionsSpec(Spec, ABC):
    """Positions by distance, chosen by `kind`."""

    kind: str
    allows_sinks: ClassVar[bool] = True
    """Whether a score without a key and a value (`sinks`) may stand beside those with them."""

    @property
    def sees_ahead(self) -> bool:
        """True if it has distances to keys after the query."""
        return False

    @abstractmethod
    def build(self, heads: int, head_dim: int) -> Positions:
        """The module of a layer."""

    @abstractmethod
    def cost(self, heads: int, head_dim: int, window: int | None) -> Cost:
        """Parameters, products with the tables, and the tables, which training keeps."""


class AlibiSpec(PositionsSpec):
    """Scores decrease with the distance, at a fixed rate for each head (Press et al., arXiv 2108.12409)."""

    kind: Literal["alibi"] = "alibi"

    def build(self, heads: int, head_dim: int) -> "Alibi":
        return Alibi(heads)

    def cost(self, heads: int, head_dim: int, window: int | None) -> Cost:
        return Cost(activation_memory=(lambda sequences, tokens: heads * tokens,))


class Alibi(Positions):
    """The bias `-slope_n r` for head n and distance r."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def relative(self, keys: int, device: torch.device) -> Relative:
        distances_R = torch.arange(keys, dtype=torch.float32, device=device)
        return Relative(torch.outer(alibi_slopes(self.heads, device), -distances_R))


@lru_cache(maxsize=32)
def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """`2^(-8 i / n)` for the heads i = 1..n, n a power of two; the other heads have every second slope of 2 n heads."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    slopes += [2 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)]
    with torch.inference_mode(False):
        return torch.tensor(slopes, device=device)


class T5Spec(PositionsSpec):
    """A learned bias for each head and bucket of distances (`ops.relative_positions`; Raffel et al., arXiv 1910.10683).

    buckets: half of them hold one distance each. furthest: all distances from this one on share the last bucket.
    both_ways: half of all buckets are for keys after the query, which encoders and prefixes see.
    """

    kind: Literal["t5"] = "t5"
    buckets: Extent = 32
    furthest: Extent = 128
    both_ways: bool = False

    @model_validator(mode="after")
    def _check_buckets(self) -> "T5Spec":
        check_buckets(self.buckets, self.furthest, self.both_ways)
        return self

    @property
    def sees_ahead(self) -> bool:
        return self.both_ways

    def build(self, heads: int, head_dim: int) -> "T5Bias":
        return T5Bias(self, heads)

    def cost(self, heads: int, head_dim: int, window: int | None) -> Cost:
        return Cost(parameters=heads * self.buckets, activation_memory=(lambda *_: heads * self.furthest,))


class T5Bias(Positions):
    """The biases of buckets minus that of the last bucket: a constant in all scores does not change the weights."""

    def __init__(self, spec: T5Spec, heads: int) -> None:
        super().__init__()
        self.furthest, self.both_ways = spec.furthest, spec.both_ways
        self.bias_UN = nn.Parameter(torch.zeros(spec.buckets, heads))

    def relative(self, keys: int, device: torch.device) -> Relative:
        offsets_R = -torch.arange(self.furthest + 1, device=device)
        buckets_R = position_buckets(offsets_R, len(self.bias_UN), self.furthest, self.both_ways)
        bias_RN = self.bias_UN[buckets_R]  # an index of no dimension would be read, which a CUDA graph may not hold
        return Relative((bias_RN[:-1] - bias_RN[-1]).t())

    def pairs(self, offsets: Tensor) -> Tensor:
        return bucket_bias(self.bias_UN, offsets, self.furthest, self.both_ways)


class ShawSpec(PositionsSpec):
    """A learned key and a learned value for each distance (Shaw et al., arXiv 1803.02155, eq. 3 and 4).

    clip: all distances from this one on share theirs. Heads share them, layers do not.
    """

    kind: Literal["shaw"] = "shaw"
    allows_sinks: ClassVar[bool] = False  # the vectors are stored as differences to the last one, which a sink lacks
    clip: Extent = 16

    def build(self, heads: int, head_dim: int) -> "Shaw":
        return Shaw(self, head_dim)

    def cost(self, heads: int, head_dim: int, window: int | None) -> Cost:
        clip, table = self.clip, self.clip * head_dim
        return Cost(
            parameters=2 * (clip + 1) * head_dim,
            flops_by_length=(lambda tokens: 4 * heads * head_dim * tokens * min(clip, window or tokens, tokens),),
            activation_memory=(lambda *_: 2 * table,),
        )


class Shaw(Positions):
    """Keys and values of distances minus those of the last distance, which `added` adds for all tokens."""

    def __init__(self, spec: ShawSpec, head_dim: int) -> None:
        super().__init__()
        self.keys_RK = nn.Parameter(torch.empty(spec.clip + 1, head_dim))
        self.values_RK = nn.Parameter(torch.empty(spec.clip + 1, head_dim))
        for table_RK in (self.keys_RK, self.values_RK):
            nn.init.normal_(table_RK, std=0.02)

    def relative(self, keys: int, device: torch.device) -> Relative:
        return Relative(None, self.keys_RK[:-1] - self.keys_RK[-1], self.values_RK[:-1] - self.values_RK[-1])

    def added(self, out_BNTK: Tensor) -> Tensor:
        return out_BNTK + self.values_RK[-1].to(out_BNTK.dtype)


if TYPE_CHECKING:
    AnyPositions = PositionsSpec
else:
    AnyPositions = Annotated[AlibiSpec | T5Spec | ShawSpec, Field(discriminator="kind")]
