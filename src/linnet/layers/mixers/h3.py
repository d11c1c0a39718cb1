"""H3: two state-space models with gates between them (Fu et al., 2023, "Hungry Hungry Hippos", arXiv 2212.14052).

`o_t = W (q_t * diag(shift(k) * v)_t) + b` (algorithm 1): the shift model remembers keys of the last tokens, what it
gives opens the diagonal model for values, queries read it. In a head of more than one channel every key channel meets
every value channel.

Shapes: `B` batch, `T` tokens of the chunk, `D` width, `H` heads, `I` channels of a key and a query, `J` those of a
value, as many; `R` rows of the diagonal model, `B I J`; `N` complex numbers of a state; `W` tokens that shift sees.
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
    """Heads of `head_dim` channels, a shift model over `shift` tokens; the rest in `DiagonalSpec`."""

    kind: Literal["h3"] = "h3"
    head_dim: Extent = 1
    shift: Extent = 64
    discretization: Literal["zoh", "bilinear"] = "bilinear"

    @classmethod
    def examples(cls) -> list[Self]:
        """As published, with fewer numbers; heads of four channels, S4D-Inv by zero-order hold, no shift."""
        inv: dict[str, Any] = {"frequencies": "inv", "discretization": "zoh", "shortest_step": 0.1, "longest_step": 0.5}
        return [cls(state=6, shift=5), cls(head_dim=4, shift=1, state=2, **inv)]

    def check(self, width: int) -> None:
        if width % self.head_dim:
            raise ValueError(f"head_dim: {self.head_dim}: must divide the width {width}")

    def build(self, place: Place) -> "H3":
        return H3(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps and both models; inputs of the shift and `state` numbers for each product of a head as state."""
        width, products = place.width, place.width * self.head_dim
        maps = linear_cost(width, 3 * width, True) + linear_cost(width, width, True)
        ssm = Cost(
            parameters=width // self.head_dim * self.kernel_parameters,
            flops_by_length=(partial(diagonal_ssm_flops, channels=products, state=self.state // 2),),
            state_fixed_bytes=SUM_BYTES * products * self.state,
            activation_memory=(partial(self._kept, width),),
        )
        return maps + convolution_cost(width, self.shift, False) + ssm

    def _kept(self, width: int, sequences: int, tokens: int) -> int:
        """Of a token what is read, queries, keys and values, keys before and behind the shift, products and what the
        model makes of them, and what is read of it; of a sequence what is before it; states between; coefficients.
        """
        to_autocast_dtype = self.head_dim * (2 * tokens + diagonal_ssm_saved_elements(tokens, self.state))
        of_rows = sequences * width * (7 * tokens + self.shift - 1 + to_autocast_dtype)
        return of_rows + width // self.head_dim * self.kernel_kept


@dataclass
class H3State(DiagonalState):
    """States `[B, I, J, H, N, 2]`; the last keys before the shift `[B, D, W - 1]`, in the model's precision."""

    inputs: Tensor


class H3(RecurrentMixer):
    """Keys through the shift model, times values, through the diagonal model, times queries.

    A model's input and output vectors act only as a product, so there is one vector: C of the diagonal model; for the
    shift model, where the input vector is the first unit vector (section 3.1), the weights of a convolution.
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
            self.shift.weight[:, 0, -1] += torch.randn(d_model)  # what the published shift model passes on, its D

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
            q_HBIT, k_HBIT, v_HBJT = (self._heads(part.to(wide)) for part in (q_BDT, k_BDT, v_BDT))
            y_HBIJT = self._remembered(k_HBIT[:, :, :, None] * v_HBJT[:, :, None], state)
            read_HBJT = (y_HBIJT * q_HBIT[:, :, :, None]).sum(2)
        out_BTD: Tensor = self.output_linear(read_HBJT.permute(1, 3, 0, 2).flatten(2).to(q_BDT.dtype))
        return out_BTD

    def _heads(self, x_BDT: Tensor) -> Tensor:
        """`[B, D, T] -> [H, B, I, T]`."""
        return torch.unflatten(x_BDT, 1, (-1, self.head_dim)).transpose(0, 1)

    def _remembered(self, x_HBIJT: Tensor, state: H3State | None) -> Tensor:
        """What the diagonal model makes of the products, `[H, B, I, J, T]`; advances the state."""
        before_RHN2 = None if state is None else state.hidden.flatten(0, 2)
        x_RHT = x_HBIJT.flatten(1, 3).transpose(0, 1)
        y_RHT, behind_RHN2 = self.kernel.advancing(self.ssm, x_RHT, self.D.to(x_HBIJT.dtype), before_RHN2)
        if state is not None:
            state.hidden = behind_RHN2.view_as(state.hidden)
        return torch.unflatten(y_RHT.transpose(0, 1), 1, x_HBIJT.shape[1:4])
