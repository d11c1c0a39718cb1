"""H3: two state-space models with gates between them (Fu et al., 2023, "Hungry Hungry Hippos", arXiv 2212.14052).

`o_t = W (q_t * diag(shift(k) * v)_t) + b` (algorithm 1). The shift model remembers the keys of the last tokens; its
outputs gate the values that the diagonal model reads; queries gate the outputs of that. In a head with more than one
channel, every channel of the key is multiplied with every channel of the value.

Shapes: `B` batch, `T` tokens of the chunk, `D` width, `H` heads, `I` channels of a key and a query, `J` channels of a
value (`J = I`), `R` rows of the diagonal model (`R = B I J`), `N` complex numbers of a state, `W` tokens that the shift
model reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place, RecurrentMixer
from linnet.layers.diagonal_ssm import SUM_BYTES, DiagonalKernel, DiagonalSpec, DiagonalState
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.ops.diagonal_ssm import (
    diagonal_ssm,
    diagonal_ssm_flops,
    diagonal_ssm_reference,
    diagonal_ssm_saved_elements,
)


class H3Spec(DiagonalSpec):
    """head_dim: channels of a head. shift: tokens that the shift model reads. The other fields: `DiagonalSpec`."""

    kind: Literal["h3"] = "h3"
    head_dim: Extent = 1
    shift: Extent = 64
    discretization: Literal["zoh", "bilinear"] = "bilinear"

    @classmethod
    def examples(cls) -> list[Self]:
        """As published, with a smaller state; heads of four channels, S4D-Inv by zero-order hold, no shift."""
        inv: dict[str, Any] = {"frequencies": "inv", "discretization": "zoh", "shortest_step": 0.1, "longest_step": 0.5}
        return [cls(state=6, shift=5), cls(head_dim=4, shift=1, state=2, **inv)]

    def check(self, width: int) -> None:
        if width % self.head_dim:
            raise ValueError(f"head_dim: {self.head_dim}: must divide the width {width}")

    def build(self, place: Place) -> "H3":
        return H3(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps and both models; the state is the inputs of the shift and `state` numbers per product of a head."""
        width, products, heads = place.width, place.width * self.head_dim, place.width // self.head_dim

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the input, queries, keys and values, keys before and after the shift, and the output; for
            # each product the inputs and outputs of the diagonal model, and states between segments.
            per_product = 2 * tokens + diagonal_ssm_saved_elements(tokens, self.state)
            per_sequence = width * (7 * tokens + self.shift - 1) + products * per_product
            return sequences * per_sequence + heads * self.kernel_kept

        maps = linear_cost(width, 3 * width, True) + linear_cost(width, width, True)
        ssm = Cost(
            parameters=heads * self.kernel_parameters,
            flops_by_length=(partial(diagonal_ssm_flops, channels=products, state=self.state // 2),),
            state_fixed_bytes=SUM_BYTES * products * self.state,
            activation_memory=(activation_memory,),
        )
        return maps + convolution_cost(width, self.shift, False) + ssm


@dataclass
class H3State(DiagonalState):
    """States `[B, I, J, H, N, 2]`; the last keys before the shift `[B, D, W - 1]`, in the model's precision."""

    inputs: Tensor


class H3(RecurrentMixer):
    """Keys through the shift model, times values, through the diagonal model, times queries.

    The input and output vectors of a state-space model act only as a product, so there is one vector: C of the diagonal
    model, and for the shift model, whose input vector is the first unit vector (section 3.1), a convolution's weights.
    """

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"ssm": diagonal_ssm_reference}

    def __init__(self, spec: H3Spec, d_model: int) -> None:
        super().__init__()
        self.head_dim, heads = spec.head_dim, d_model // spec.head_dim
        self.query_key_value = FusedLinear(d_model, [d_model] * 3, bias=True)
        self.shift = CausalConvolution(d_model, spec.shift, bias=False)
        self.kernel = DiagonalKernel(spec, heads)
        self.D = nn.Parameter(torch.randn(heads))
        self.ssm = diagonal_ssm
        self.output_linear = Linear(d_model, d_model, bias=True)
        with torch.no_grad():
            self.shift.weight[:, 0, -1] += torch.randn(d_model)  # the direct term D of the published shift model

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> H3State:
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, self.head_dim, self.head_dim, *self.kernel.C.shape)
        inputs = torch.zeros(batch, self.shift.in_channels, self.shift.before, device=device, dtype=dtype)
        return H3State(torch.zeros(shape, device=device, dtype=wide), inputs)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, H3State)
        q_BDT, k_BDT, v_BDT = (part.mT for part in self.query_key_value.split(self.query_key_value(x_BTD)))
        k_BDT = self.shift.advancing(k_BDT, state)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(x_BTD.dtype, torch.float32)
            q_HBIT, k_HBIT, v_HBJT = (
                torch.unflatten(part.to(wide), 1, (-1, self.head_dim)).transpose(0, 1) for part in (q_BDT, k_BDT, v_BDT)
            )
            x_HBIJT = k_HBIT[:, :, :, None] * v_HBJT[:, :, None]
            # The diagonal model has the same coefficients for all products of a head, so they are rows to it.
            x_RHT = x_HBIJT.flatten(1, 3).transpose(0, 1)
            hidden_RHN2 = None if state is None else state.hidden.flatten(0, 2)
            y_RHT, hidden_RHN2 = self.kernel.advancing(self.ssm, x_RHT, self.D.to(wide), hidden_RHN2)
            if state is not None:
                state.hidden = hidden_RHN2.view_as(state.hidden)
            y_HBIJT = torch.unflatten(y_RHT.transpose(0, 1), 1, x_HBIJT.shape[1:4])
            out_HBJT = (y_HBIJT * q_HBIT[:, :, :, None]).sum(2)
        out_BTD: Tensor = self.output_linear(out_HBJT.permute(1, 3, 0, 2).flatten(2).to(q_BDT.dtype))
        return out_BTD
