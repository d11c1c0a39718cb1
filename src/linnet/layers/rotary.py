"""Rotary positions: their specification, and the heads of attention that they rotate.

Shapes: `B` batch, `T` tokens of the chunk, `N` query heads, `M` key-value heads, `J` heads of a row, `K` head width,
`C` capacity.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from linnet.core.spec import Amount, Spec
from linnet.layers.batch_layout import BatchLayout
from linnet.nn.norms import HeadNorm
from linnet.ops.native.elementwise import rotate_row
from linnet.ops.rotary import (
    Interpolation,
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
"""How many times longer texts are than those of the training."""


class RotaryScalingSpec(Spec, ABC):
    """A scaling, chosen by `kind`."""

    kind: str

    @property
    @abstractmethod
    def law(self) -> Scaling:
        """As the operations know it."""


class LinearScaling(RotaryScalingSpec):
    """Position interpolation: positions divided by `factor`."""

    kind: Literal["linear"] = "linear"
    factor: Factor

    @property
    def law(self) -> Scaling:
        return Interpolation(self.factor)


class NtkScaling(RotaryScalingSpec):
    """A larger base: the slowest pair divided by `factor`, the fastest not at all."""

    kind: Literal["ntk"] = "ntk"
    factor: Factor

    @property
    def law(self) -> NtkBase:
        return NtkBase(self.factor)


class YarnScaling(RotaryScalingSpec):
    """Slow pairs divided by `factor`, fast ones not, and scores made larger.

    trained: tokens of a training sequence. fast, slow: pairs that turn more often within these than `fast` stay, those
    that turn less often than `slow` are divided. attention_factor: what turned queries and keys are multiplied by
    (null: `0.1 ln(factor) + 1`).
    """

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    trained: Amount
    fast: PositiveFloat = 32.0
    slow: PositiveFloat = 1.0
    attention_factor: PositiveFloat | None = None

    @model_validator(mode="after")
    def _fast_is_faster(self) -> "YarnScaling":
        if self.fast <= self.slow:
            raise ValueError(f"fast: {self.fast}: must be above slow, which is {self.slow}")
        return self

    @property
    def law(self) -> Scaling:
        gain = yarn_gain(self.factor) if self.attention_factor is None else self.attention_factor
        return YarnRamp(self.factor, self.trained, self.fast, self.slow, gain)


if TYPE_CHECKING:
    AnyRotaryScaling = RotaryScalingSpec
else:
    AnyRotaryScaling = Annotated[LinearScaling | NtkScaling | YarnScaling, Field(discriminator="kind")]


Turn = Callable[[Tensor, int], Tensor]
"""Turns the heads of a row, `[J, K]`, by the angles of a position; maybe in place."""


class RotarySpec(Spec):
    """Rotary positions: `base` of the angles, which elements of a head form a pair, how much of a head is turned.

    `fraction` of a head's elements, from the first, are turned (1 all of them; GPT-NeoX a quarter).
    `scaling`: for texts longer than those of the training (`layers.rotary_scaling`).
    """

    base: PositiveFloat = 10000.0
    pairing: Pairing = "halves"
    fraction: float = Field(default=1.0, gt=0, le=1)
    scaling: AnyRotaryScaling | None = None

    @model_validator(mode="after")
    def _a_base_that_can_be_scaled(self) -> "RotarySpec":
        if self.scaling is not None and self.base <= 1:
            raise ValueError(f"base: {self.base}: must be above 1 with scaling")
        return self

    def width(self, head_dim: int) -> int:
        """How many elements of a head are turned."""
        return int(head_dim * self.fraction)

    @property
    def law(self) -> Scaling | None:
        """How angles are scaled."""
        return None if self.scaling is None else self.scaling.law

    def turned(self, joint_BTNK: Tensor, heads: tuple[int, int, int], layout: BatchLayout) -> tuple[Tensor, ...]:
        """Queries and keys, rotated by the positions of their tokens, and values, from one joint projection."""
        return rotate_heads(joint_BTNK, heads, self._table(joint_BTNK, layout), self.pairing)

    def turned_alone(self, x_BTNK: Tensor, layout: BatchLayout, width: int | None = None) -> Tensor:
        """Heads `[B, T, N, K]`, all of them queries or keys, rotated by the positions of their tokens.

        width: of what is turned of each head, from the first element on; None: as `fraction` says.
        """
        return rotate(x_BTNK, self._table(x_BTNK, layout, width), self.pairing)

    def _table(self, x_BTNK: Tensor, layout: BatchLayout, width: int | None = None) -> tuple[Tensor, Tensor]:
        length, width, device = x_BTNK.shape[1], width or self.width(x_BTNK.shape[-1]), x_BTNK.device
        end, scaling = layout.end(length), self.law
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

    Queries and keys are normalized and then rotated, where asked for.
    """
    joint_BTNK = joint_BTD.view(*joint_BTD.shape[:2], sum(heads), -1)
    if norm is None and rotary is not None:
        parts = rotary.turned(joint_BTNK, heads, layout)
    else:
        parts = torch.split(joint_BTNK, list(heads), dim=2)
    if norm is not None:
        q_BTNK, k_BTMK, v_BTMK = parts
        pair = norm(q_BTNK, k_BTMK)
        turned = pair if rotary is None else tuple(rotary.turned_alone(x_BTNK, layout) for x_BTNK in pair)
        parts = (*turned, v_BTMK)
    return tuple(part.transpose(1, 2) for part in parts)


def check_heads(heads: int, head_dim: int | None, d_model: int, rotary: RotarySpec | None) -> None:
    """Raise a `ValueError` that names the field where heads and width do not fit."""
    if head_dim is None and d_model % heads:
        raise ValueError(f"heads: {heads}: must divide the width {d_model}, or head_dim must be given")
    width = head_dim or d_model // heads
    if rotary is None:
        return
    if rotary.fraction == 1 and width % 2:
        raise ValueError(f"heads: {heads}: gives heads of width {width}; rotary positions need an even width")
    if rotary.width(width) % 2 or rotary.width(width) == 0:
        raise ValueError(
            f"rotary.fraction: {rotary.fraction}: of heads of width {width} it turns {rotary.width(width)} elements;"
            " expected an even number above 0"
        )


def turn_of(rotary: RotarySpec, head_dim: int, capacity: int, compiled: ctypes.CDLL | None = None) -> Turn:
    """With tables for `capacity` positions, made once for all layers alike. Heads may be turned in place.

    compiled: the functions of `ops.native`, where they serve.
    """
    width = rotary.width(head_dim)
    if compiled is not None:
        cos_CR, sin_CR = _tables(width, rotary.base, capacity, rotary.law)
        return rotate_row(compiled, cos_CR, sin_CR, rotary.pairing)
    turn = _whole(rotary.pairing, width, rotary.base, capacity, rotary.law)
    if width == head_dim:
        return turn
    return lambda x_JK, position: torch.cat([turn(x_JK[:, :width].contiguous(), position), x_JK[:, width:]], dim=1)


@lru_cache(maxsize=8)
def _tables(width: int, base: float, capacity: int, scaling: Scaling | None) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the pairs at each position, `[C, R]`."""
    with torch.inference_mode(False):
        tables = rotary_range(0, capacity, width, base, torch.device("cpu"), scaling)
        cos_CR, sin_CR = (part[:, 0].contiguous() for part in tables)
        return cos_CR, sin_CR


@lru_cache(maxsize=8)
def _whole(pairing: Pairing, width: int, base: float, capacity: int, scaling: Scaling | None) -> Turn:
    """Of all elements: adjacent ones as complex numbers, in place; or each half turned against the other."""
    cos, sin = _tables(width, base, capacity, scaling)
    with torch.inference_mode(False):
        if pairing == "adjacent":
            return partial(_turn_adjacent, torch.complex(cos, sin))
        return partial(_turn_halves, torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1))


def _turn_adjacent(table: Tensor, x_JK: Tensor, position: int) -> Tensor:
    torch.view_as_complex(x_JK.view(len(x_JK), -1, 2)).mul_(table[position])
    return x_JK


def _turn_halves(cos_CK: Tensor, sin_CK: Tensor, x_JK: Tensor, position: int) -> Tensor:
    swapped_JK = x_JK.view(len(x_JK), 2, -1).flip(1).flatten(1)
    return torch.addcmul(x_JK * cos_CK[position], swapped_JK, sin_CK[position])
