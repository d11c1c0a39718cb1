"""Values of the first layer, mixed into those of later ones (Zhou et al., "Value residual learning", arXiv 2410.17897).

The first layer of a pass that has them leaves its values (`BatchLayout.leave`); every layer reads with
`V' = own V + first V_1`. The paper's first layer reads with `V_1` itself: here with `(own + first) V_1`, so that all
layers are alike, whatever stands before them, and shared weights need no exception. With the shares that the paper's
learnable form starts with, a half each, that is the same.

Legend: `B` batch, `T` tokens of the chunk, `M` heads, `K` head width.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.nn.cost import Cost
from linnet.nn.scalar_mix import WeightedSum

VALUE_RESIDUAL = "value_residual"
"""The field of a description, and the name under which values are left."""


ValuesRead = Literal["own", "fixed", "learned"]
"""What a layer reads: a token's own values, or own and first ones in shares that are fixed or learned."""


class ValueResidualSpec(Spec):
    """The shares of a layer's own values and of the first layer's: where they start, or `learned: false` stay."""

    own: float = 0.5
    first: float = 0.5
    learned: bool = True

    @property
    def read(self) -> ValuesRead:
        """What layers read."""
        return "learned" if self.learned else "fixed"

    def cost(self) -> Cost:
        """Two numbers."""
        return Cost(parameters=2 * self.learned)


class ValueResidual(nn.Module):
    """What makes a layer's values into those that it reads with."""

    def __init__(self, spec: ValueResidualSpec) -> None:
        super().__init__()
        self.mix = WeightedSum(spec.own, spec.first, spec.learned)

    def forward(self, v_BTMK: Tensor, layout: BatchLayout) -> Tensor:
        """The same shape; leaves them where nobody has."""
        first_BTMK = layout.cross_layer_value(VALUE_RESIDUAL)
        if first_BTMK is None:
            layout.save_cross_layer_value(VALUE_RESIDUAL, v_BTMK)
            first_BTMK = v_BTMK
        mixed_BTMK: Tensor = self.mix(v_BTMK, first_BTMK)
        return mixed_BTMK

    def row(self, record: AuxiliaryOutputs | None) -> Callable[[Tensor], Tensor]:
        """Of one token of one stream, `[M, K]`; `record`: of its step, None where nobody leaves anything."""
        mix, layout = self.mix.row(), BatchLayout(record=record)

        def mixed(v_MK: Tensor) -> Tensor:
            first_11MK = layout.cross_layer_value(VALUE_RESIDUAL)
            if first_11MK is None:
                first_11MK = v_MK[None, None]
                layout.save_cross_layer_value(VALUE_RESIDUAL, first_11MK)
            return mix(v_MK, first_11MK[0, 0])

        return mixed
