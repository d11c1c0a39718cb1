"""TED, trainable exponential decays: every past token fades at a rate that it chose itself (github.com/biuq/ted).

`rate_j = -log(sigmoid(x_j w))`, `v_j = x_j W_q`, `o_t = sum_{j <= t} exp(-rate_j (t - j)) v_j`,
`y_t = (silu(o_t) W_o) * (x_t W_gate)`. The rate holds for the rest of the token's life.

Legend: `B` batch, `T` tokens of the chunk, `S` tokens so far, `D` model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.mixers.base import Mixer, MixerSpec, Span, State, Traits
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.decay.reference import decay_definition, decay_rates, decay_reference

RATE_BYTES = 4
"""Rates are kept in float32 whatever the model's precision: over a long life a rounded rate is another life."""


class TedSpec(MixerSpec):
    """Trainable exponential decays; there is nothing to choose."""

    kind: Literal["ted"] = "ted"

    @classmethod
    def examples(cls) -> list[Self]:
        """There is one."""
        return [cls()]

    def build(self, d_model: int, context_length: int) -> "Ted":
        """Build the module."""
        return Ted(d_model)

    def cost(self, d_model: int, context_length: int) -> Cost:
        """Three projections, a rate, and a weighted sum over the past; quantities and rates as state."""
        projections = linear_cost(d_model, d_model, bias=False).repeated(3)
        rate = linear_cost(d_model, 1, bias=False)
        sums = Cost(flops_per_pair=2 * d_model, state_elements_per_token=d_model, state_bytes_per_token=RATE_BYTES)
        return projections + rate + sums


@dataclass
class TedState(State):
    """Every token so far: its quantity `[B, capacity, D]` and its rate `[B, capacity]` (float32 or wider)."""

    values: Tensor
    rates: Tensor

    def forget(self) -> Self:
        """An empty copy."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Nothing to do: a token's age is the decoder's position less its own, and later tokens are overwritten."""


class Ted(Mixer):
    """Trainable exponential decays with one rate per token."""

    traits: ClassVar[Traits] = Traits()
    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"decay": decay_definition}

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.quantity_gate = FusedLinear(d_model, [d_model, d_model], bias=False)
        self.rate_weight = nn.Parameter(torch.empty(d_model))
        self.decay = decay_reference
        self.out = Linear(d_model, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Spread the first lifetimes: `x w` has a standard deviation of 3 for a normalised x, rates from 0.05 to 3.

        A token that fades at once gets no gradient from what comes later, so some have to live long from the start.
        """
        nn.init.normal_(self.rate_weight, std=3 * len(self.rate_weight) ** -0.5)

    def initial_state(self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> TedState:
        """Room for the quantities and rates of `capacity` tokens."""
        wide = torch.promote_types(dtype, torch.float32)
        return TedState(
            values=torch.zeros(batch, capacity, self.out.in_features, device=device, dtype=dtype),
            rates=torch.zeros(batch, capacity, device=device, dtype=wide),
        )

    def forward(self, x_BTD: Tensor, state: State | None = None, span: Span = Span()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        v_BSD, gate_BTD = self.quantity_gate.split(self.quantity_gate(x_BTD))
        rates_BS = self.rates(x_BTD)
        length = x_BTD.shape[1]
        real_BT = span.real(length, x_BTD.device)
        if real_BT is not None:
            v_BSD = v_BSD.masked_fill(~real_BT[..., None], 0.0)
        if state is not None:
            assert isinstance(state, TedState)
            end = span.start + length
            state.values[:, span.start : end], state.rates[:, span.start : end] = v_BSD, rates_BS
            v_BSD, rates_BS = state.values[:, :end], state.rates[:, :end]
        o_BTD = self.decay(rates_BS[..., None], v_BSD[:, :, None], length)[:, :, 0]
        out_BTD: Tensor = self.out(F.silu(o_BTD)) * gate_BTD
        return out_BTD

    def rates(self, x_BTD: Tensor) -> Tensor:
        """The decay rate of each token, `[B, T]`, per step; float32 or wider."""
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        with torch.autocast(device_type=x_BTD.device.type, enabled=False):
            return decay_rates(x_BTD.to(wide) @ self.rate_weight.to(wide))
