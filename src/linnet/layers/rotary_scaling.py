"""How a description says what becomes of rotary positions beyond the trained length (`ops.rotary`)."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from linnet.core.spec import Amount, Spec
from linnet.ops.rotary import Interpolation, NtkBase, Scaling, YarnRamp, yarn_gain

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
        """See `RotaryScalingSpec`."""
        return Interpolation(self.factor)


class NtkScaling(RotaryScalingSpec):
    """A larger base: the slowest pair divided by `factor`, the fastest not at all."""

    kind: Literal["ntk"] = "ntk"
    factor: Factor

    @property
    def law(self) -> NtkBase:
        """See `RotaryScalingSpec`."""
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
        """See `RotaryScalingSpec`."""
        gain = yarn_gain(self.factor) if self.attention_factor is None else self.attention_factor
        return YarnRamp(self.factor, self.trained, self.fast, self.slow, gain)


if TYPE_CHECKING:
    AnyRotaryScaling = RotaryScalingSpec
else:
    AnyRotaryScaling = Annotated[LinearScaling | NtkScaling | YarnScaling, Field(discriminator="kind")]
