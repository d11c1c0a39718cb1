"""Power-law graph attention: attention through an operator that a deep net deduces from the text.

Gokden, "PLDR-LLMs learn a generalizable tensor operator that can replace its own deep neural net at inference"
(arXiv 2502.13502). Scores are `q G k^T / sqrt(K)`, so a fused attention kernel serves once `q` is replaced by `q G`.

Legend: `B` batch, `T` tokens of the chunk, `H` heads, `K` head width, `D` model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor

from linnet.layers.contract import Mixer, MixerSpec, Span, State, Traits
from linnet.layers.key_value import KeyValueState, key_value_tensors
from linnet.layers.mixers.attention import RotarySpec, check_heads, queries_keys_values
from linnet.layers.mixers.plga.density import DensitySpec, density_cost
from linnet.layers.mixers.plga.operator import FixedOperator, PowerLawOperator, Start, fixed_cost, operator_cost
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import attention, attention_reference
from linnet.ops.power_law import density


class PlgaSpec(MixerSpec):
    """Power-law graph attention; `metric_hidden` is the paper's `A_dff`.

    operator: `learned`, deduced from the text by a net; or `fixed`, one matrix per head that is given and not trained
    (the paper's v51G), without a net. The fields below `rotary` describe the net and go with `learned`.

    density: the text that the operator is deduced from.

    start: the operator's starting values, the paper's or near the identity (which short runs need).
    """

    kind: Literal["plga"] = "plga"
    heads: PositiveInt
    operator: Literal["learned", "fixed"] = "learned"
    rotary: RotarySpec | None = RotarySpec(pairing="adjacent")
    metric_hidden: PositiveInt = 170
    residual_units: PositiveInt = 8
    gated_units: PositiveInt = 2
    density: DensitySpec = DensitySpec()
    start: Start = "paper"

    @model_validator(mode="after")
    def _no_net_behind_a_fixed_operator(self) -> Self:
        for name in NET_FIELDS if self.operator == "fixed" else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(f"{name}: {value}: goes with operator: learned; a fixed operator has no net")
        return self

    @classmethod
    def examples(cls) -> list[Self]:
        """One head and several; different depths of the net behind the operator; no positions; causal, nearly so."""
        return [
            cls(heads=2, metric_hidden=12, residual_units=2),
            cls(heads=1, metric_hidden=5, residual_units=1, gated_units=1, rotary=None, start="identity"),
            cls(heads=2, metric_hidden=6, residual_units=1, density=DensitySpec(scope="prefix")),
            cls(
                heads=2,
                metric_hidden=6,
                residual_units=1,
                start="identity",
                density=DensitySpec(scope="prefix", tokens=3),
            ),
            cls(heads=2, operator="fixed"),
        ]

    def check(self, d_model: int) -> None:
        """Heads must divide the width."""
        check_heads(self.heads, None, d_model, self.rotary)

    def build(self, d_model: int, context_length: int) -> "Plga":
        """Build the module."""
        return Plga(self, d_model)

    def cost(self, d_model: int, context_length: int) -> Cost:
        """Attention's cost, `q G` for each token, and the net behind a learned operator once per sequence."""
        head_dim = d_model // self.heads
        projections = linear_cost(d_model, d_model, bias=True).repeated(4)
        turned = 2 * d_model if self.rotary is not None else 0
        pairs = Cost(
            flops_per_token=2 * d_model * head_dim,
            flops_per_pair=4 * d_model,
            state_elements_per_token=2 * d_model,
            kept_per_token=6 * d_model + turned + self.heads,
        )
        if self.operator == "fixed":
            return projections + pairs + fixed_cost(self.heads, head_dim)
        net = operator_cost(self.heads, head_dim, self.metric_hidden, self.residual_units, self.gated_units)
        return projections + pairs + net + density_cost(self.heads, head_dim, self.density.prefix)


NET_FIELDS = ("metric_hidden", "residual_units", "gated_units", "density", "start")
"""The fields that describe the net behind a learned operator."""


def with_fixed_operator(description: Mapping[str, Any]) -> dict[str, Any]:
    """The plain description of a plga mixer, its operator fixed, what describes the net left out."""
    kept = {name: value for name, value in description.items() if name not in NET_FIELDS}
    return {**kept, "operator": "fixed"}


@dataclass
class PlgaState(KeyValueState):
    """Keys, values, and the operator `[B, H, K, K]`, which the first chunk (the prompt) fixes for the whole stream.

    keep_operator: False keeps `A` in place of the operator, and each chunk works the operator out of it anew: what the
    paper does with its KV-cache on and its G-cache off.
    """

    operator: Tensor | None = None
    a: Tensor | None = None
    keep_operator: bool = True

    def forget(self) -> Self:
        """Forget the tokens, keep the operator: this is how a frozen operator is reused."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Forget later tokens; without any token left the operator goes too, and the next chunk deduces its own."""
        super().crop(length)
        if length == 0:
            self.operator = self.a = None


class Plga(Mixer):
    """Power-law graph attention.

    Without a state a learned operator comes from the whole sequence, later tokens included: NOT causal, but where the
    density is that of a prefix. With a state the first chunk deduces the operator, the state keeps it, and from then on
    the net behind it is not run. A fixed operator is part of the weights, and the mixer is causal.
    """

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"attend": attention_reference}

    def __init__(self, spec: PlgaSpec, d_model: int) -> None:
        super().__init__()
        self.heads, self.head_dim = spec.heads, d_model // spec.heads
        self.rotary, self.density = spec.rotary, spec.density
        self.query_key_value = FusedLinear(d_model, [d_model] * 3, bias=True)
        self.attend = attention
        self.out = Linear(d_model, d_model, bias=True)
        self.operator: PowerLawOperator | FixedOperator
        if spec.operator == "fixed":
            self.traits = Traits()
            self.operator = FixedOperator(spec.heads, self.head_dim)
        else:
            self.traits = spec.density.traits
            self.operator = PowerLawOperator(
                spec.heads, self.head_dim, spec.metric_hidden, spec.residual_units, spec.gated_units, spec.start
            )

    def initial_state(self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> PlgaState:
        """Room for the keys and values of `capacity` tokens, and no operator yet."""
        return PlgaState(*key_value_tensors(batch, self.heads, capacity, self.head_dim, device, dtype))

    def forward(self, x_BTD: Tensor, state: State | None = None, span: Span = Span()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        assert state is None or isinstance(state, PlgaState)
        heads = (self.heads, self.heads, self.heads)
        q_BHTK, k_BHSK, v_BHSK = queries_keys_values(self.query_key_value(x_BTD), heads, self.rotary, span)
        g_BHKK = self._operator(q_BHTK, state, span)
        if state is not None:
            k_BHSK, v_BHSK = state.append(k_BHSK, v_BHSK, span.start)
        out_BHTK = self.attend(q_BHTK @ g_BHKK, k_BHSK, v_BHSK, span.padding_B)
        out_BTD: Tensor = self.out(out_BHTK.transpose(1, 2).flatten(2))
        return out_BTD

    def _operator(self, q_BHTK: Tensor, state: PlgaState | None, span: Span) -> Tensor:
        """The state's operator, or the one that this chunk deduces (and leaves in the state), or the fixed one."""
        if isinstance(self.operator, FixedOperator):
            return self.operator.g.to(q_BHTK.dtype)
        if state is not None and state.operator is not None:
            return state.operator
        if state is not None and state.a is not None:
            return self.operator.from_a(state.a).g.to(q_BHTK.dtype)
        counted = self.density.part(q_BHTK, span.real(q_BHTK.shape[2], q_BHTK.device))
        with torch.autocast(device_type=q_BHTK.device.type, enabled=False):
            density_BHKK = density(*counted)
        outputs = self.operator(density_BHKK)
        g_BHKK: Tensor = outputs.g.to(q_BHTK.dtype)
        if state is not None:
            state.operator, state.a = (g_BHKK, None) if state.keep_operator else (None, outputs.a)
        return g_BHKK
