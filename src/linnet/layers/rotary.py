"""Rotary positions: their spec, and the rotation of attention heads, for a chunk and for one token.

Shapes: `B` batch, `T` tokens of the chunk, `N` query heads, `M` key-value heads, `J` heads of a row, `K` head width,
`C` capacity.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal, Self

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from linnet.core.spec import Amount, Spec
from linnet.layers.batch_layout import BatchLayout
from linnet.nn.norms import HeadNorm
from linnet.ops.rotary import (
    Interpolation,
    Llama3Ramp,
    NtkBase,
    Pairing,
    Scaling,
    YarnRamp,
    rotary_range,
    rotary_table,
    rotate,
    rotate_heads,
    yarn_gain,
)

Factor = Annotated[float, Field(ge=1)]
"""The length of texts as a multiple of the training length."""


class RotaryScalingSpec(Spec, ABC):
    """A scaling of rotary positions, chosen by `kind`."""

    kind: str

    @property
    @abstractmethod
    def law(self) -> Scaling:
        """The scaling as `ops.rotary` defines it."""


class LinearScaling(RotaryScalingSpec):
    """Position interpolation: positions divided by `factor`."""

    kind: Literal["linear"] = "linear"
    factor: Factor

    @property
    def law(self) -> Scaling:
        return Interpolation(self.factor)


class NtkScaling(RotaryScalingSpec):
    """A larger base: the slowest pair is divided by `factor`, the fastest one is unchanged."""

    kind: Literal["ntk"] = "ntk"
    factor: Factor

    @property
    def law(self) -> NtkBase:
        return NtkBase(self.factor)


class RampScaling(RotaryScalingSpec, ABC):
    """Slow pairs are divided by `factor`, fast ones are unchanged, with a ramp between.

    trained: the number of tokens of a training sequence. fast, slow: pairs with more than `fast` rotations in a
    training sequence are unchanged, those with fewer than `slow` are divided.
    """

    factor: Factor
    trained: Amount
    fast: PositiveFloat
    slow: PositiveFloat

    @model_validator(mode="after")
    def _check_fast_above_slow(self) -> Self:
        if self.fast <= self.slow:
            raise ValueError(f"fast: {self.fast}: must be above slow, which is {self.slow}")
        return self


class YarnScaling(RampScaling):
    """YaRN: a ramp over the pairs (`RampScaling`), and scores are increased.

    attention_factor: the factor of rotated queries and keys (null: `0.1 ln(factor) + 1`). truncate: whether the ramp
    begins and ends at whole pairs (the paper; false for gpt-oss).
    """

    kind: Literal["yarn"] = "yarn"
    fast: PositiveFloat = 32.0
    slow: PositiveFloat = 1.0
    attention_factor: PositiveFloat | None = None
    truncate: bool = True

    @property
    def law(self) -> Scaling:
        gain = yarn_gain(self.factor) if self.attention_factor is None else self.attention_factor
        return YarnRamp(self.factor, self.trained, self.fast, self.slow, gain, self.truncate)


class Llama3Scaling(RampScaling):
    """Llama 3.1 and 3.2: a ramp over the number of rotations in a training sequence (`RampScaling`)."""

    kind: Literal["llama3"] = "llama3"
    fast: PositiveFloat = 4.0
    slow: PositiveFloat = 1.0

    @property
    def law(self) -> Scaling:
        return Llama3Ramp(self.factor, self.trained, self.fast, self.slow)


if TYPE_CHECKING:
    AnyRotaryScaling = RotaryScalingSpec
else:
    AnyRotaryScaling = Annotated[LinearScaling | NtkScaling | YarnScaling | Llama3Scaling, Field(discriminator="kind")]


class RotarySpec(Spec):
    """Rotary positions: the `base` of the angles, the pairing of a head's elements, the fraction that is rotated.

    `fraction`: the part of a head's elements, from the first on, that is rotated (1: all; GPT-NeoX: a quarter).
    `scaling`: for texts longer than those of the training.
    """

    base: PositiveFloat = 10000.0
    pairing: Pairing = "halves"
    fraction: float = Field(default=1.0, gt=0, le=1)
    scaling: AnyRotaryScaling | None = None

    @model_validator(mode="after")
    def _check_base(self) -> "RotarySpec":
        if self.scaling is not None and self.base <= 1:
            raise ValueError(f"base: {self.base}: must be above 1 with scaling")
        return self

    def width(self, head_dim: int) -> int:
        """The number of elements of a head that are rotated."""
        return int(head_dim * self.fraction)

    def rotated(self, x_BTNK: Tensor, layout: BatchLayout, width: int | None = None) -> Tensor:
        """Heads `[B, T, N, K]`, all queries or all keys, rotated to the positions of their tokens.

        width: the number of elements of each head, from the first on, that are rotated; by default from `fraction`.
        """
        return rotate(x_BTNK, self.table(x_BTNK, layout, width), self.pairing)

    def table(self, x_BTNK: Tensor, layout: BatchLayout, width: int | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions of a chunk's tokens (`ops.rotary`); the arguments are as for `rotated`."""
        length, width, device = x_BTNK.shape[1], width or self.width(x_BTNK.shape[-1]), x_BTNK.device
        end, scaling = layout.end(length), None if self.scaling is None else self.scaling.law
        if layout.uniform:
            return rotary_range(layout.start, end, width, self.base, device, scaling)
        key = ("rotary", width, self.base, length, device, scaling)
        return layout.remember(
            key, lambda: rotary_table(layout.positions(length, device), width, self.base, end, scaling)
        )


def queries_keys_values(
    joint_BTD: Tensor,
    heads: tuple[int, int, int],
    rotary: RotarySpec | None,
    layout: BatchLayout,
    norm: HeadNorm | None = None,
) -> tuple[Tensor, ...]:
    """`[B, T, (N + 2M) K]` -> queries `[B, N, T, K]`, keys and values `[B, M, T, K]`.

    Queries and keys are normalized, if there is a `norm`, and then rotated, if there are rotary positions.
    """
    joint_BTNK = joint_BTD.view(*joint_BTD.shape[:2], sum(heads), -1)
    if norm is None and rotary is not None:
        parts = rotate_heads(joint_BTNK, heads, rotary.table(joint_BTNK, layout), rotary.pairing)
    else:
        parts = torch.split(joint_BTNK, list(heads), dim=2)
    if norm is not None:
        q_BTNK, k_BTMK, v_BTMK = parts
        q_BTNK, k_BTMK = norm(q_BTNK, k_BTMK)
        if rotary is not None:
            q_BTNK, k_BTMK = rotary.rotated(q_BTNK, layout), rotary.rotated(k_BTMK, layout)
        parts = (q_BTNK, k_BTMK, v_BTMK)
    return tuple(part.transpose(1, 2) for part in parts)


def check_heads(heads: int, head_dim: int | None, d_model: int, rotary: RotarySpec | None) -> None:
    """`ValueError`, naming the field, if the heads do not fit the width or the rotary positions."""
    if head_dim is None and d_model % heads:
        raise ValueError(f"heads: {heads}: must divide the width {d_model}, or head_dim must be given")
    width = head_dim or d_model // heads
    if rotary is None:
        return
    if rotary.fraction == 1 and width % 2:
        raise ValueError(f"heads: {heads}: gives heads of width {width}; rotary positions need an even width")
    if rotary.width(width) % 2 or rotary.width(width) == 0:
        raise ValueError(
            f"rotary.fraction: {rotary.fraction}: rotates {rotary.width(width)} elements of heads of width {width};"
            " expected an even number above 0"
        )
