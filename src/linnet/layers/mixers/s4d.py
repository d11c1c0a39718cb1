"""S4D: a diagonal state-space model for each channel (Gu et al., 2022, arXiv 2206.11893).

`y_t = glu(W gelu(ssm(x)_t) + b)`: the block of the published `s4d.py`, with the names of its kernel's parameters. Its
output map is split into one for values and one for gates, so that the output is linear in the map to values.

Shapes: `B` batch, `T` tokens of the chunk, `D` width, `N` complex numbers of a channel's state.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place, RecurrentMixer
from linnet.layers.diagonal_ssm import SUM_BYTES, DiagonalKernel, DiagonalSpec, DiagonalState
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import Linear
from linnet.ops.diagonal_ssm import (
    diagonal_ssm,
    diagonal_ssm_flops,
    diagonal_ssm_reference,
    diagonal_ssm_saved_elements,
)


class S4dSpec(DiagonalSpec):
    """The fields are those of `DiagonalSpec`."""

    kind: Literal["s4d"] = "s4d"

    @classmethod
    def examples(cls) -> list[Self]:
        """As published, with a smaller state; S4D-Inv by the bilinear rule, with long steps and one pair a channel."""
        other = cls(state=2, frequencies="inv", discretization="bilinear", shortest_step=0.1, longest_step=0.5)
        return [cls(state=6), other]

    def build(self, place: Place) -> "S4d":
        return S4d(self, place.width)

    def cost(self, place: Place) -> Cost:
        """The state-space model and the maps to values and gates; the state is `state` numbers for each channel."""
        width = place.width

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the inputs and outputs of the model, its gelu, values and gates; states between segments.
            per_sequence = width * (5 * tokens + diagonal_ssm_saved_elements(tokens, self.state))
            return sequences * per_sequence + width * self.kernel_kept

        ssm = Cost(
            parameters=width * self.kernel_parameters,
            flops_by_length=(partial(diagonal_ssm_flops, channels=width, state=self.state // 2),),
            state_fixed_bytes=SUM_BYTES * width * self.state,
            activation_memory=(activation_memory,),
        )
        return ssm + linear_cost(width, width, True).repeated(2)


class S4d(RecurrentMixer):
    """A diagonal state-space model for each channel, a GeLU, and a gated linear map between channels."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"ssm": diagonal_ssm_reference}

    def __init__(self, spec: S4dSpec, d_model: int) -> None:
        super().__init__()
        self.kernel = DiagonalKernel(spec, d_model)
        self.D = nn.Parameter(torch.randn(d_model))
        self.ssm = diagonal_ssm
        self.gate_linear = Linear(d_model, d_model, bias=True)
        self.value_linear = Linear(d_model, d_model, bias=True)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> DiagonalState:
        wide = torch.promote_types(dtype, torch.float32)
        return DiagonalState(torch.zeros(batch, *self.kernel.C.shape, device=device, dtype=wide))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, DiagonalState)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(x_BTD.dtype, torch.float32)
            x_BDT, hidden_BDN2 = x_BTD.to(wide).transpose(1, 2), None if state is None else state.hidden
            y_BDT, hidden_BDN2 = self.kernel.advancing(self.ssm, x_BDT, self.D.to(wide), hidden_BDN2)
            if state is not None:
                state.hidden = hidden_BDN2
        hidden_BTD = F.gelu(y_BDT.transpose(1, 2).to(x_BTD.dtype))
        out_BTD: Tensor = self.value_linear(hidden_BTD) * self.gate_linear(hidden_BTD).sigmoid()
        return out_BTD
