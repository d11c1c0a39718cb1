"""Power-law graph attention: attention through an operator that a deep net deduces from the text.

Gokden, "PLDR-LLMs learn a generalizable tensor operator that can replace its own deep neural net at inference"
(arXiv 2502.13502). Scores are `q G k^T / sqrt(K)`, so a fused attention kernel serves once `q` is replaced by `q G`.

Legend: `B` batch, `T` tokens of the chunk, `H` heads, `K` head width, `D` model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor

from linnet.mixers.attention import RotarySpec, check_heads, queries_keys_values
from linnet.mixers.base import Mixer, MixerSpec, Span, State, Traits
from linnet.mixers.key_value import KeyValueState, key_value_tensors
from linnet.mixers.plga_operator import PowerLawOperator, Start, density_cost, operator_cost
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import attention, attention_reference
from linnet.ops.power_law import density
from linnet.spec import Spec


class DensitySpec(Spec):
    """Which tokens the density matrix is summed over.

    sequence: all of the first chunk, in training the whole sequence (the paper), later tokens included.
    prefix: the first `tokens` of a stream alone, 1 if not given (ours). Nothing that comes later moves the operator; it
    is the same in training and in inference, and with 1, the token that begins a document, the mixer is causal.
    """

    scope: Literal["sequence", "prefix"] = "sequence"
    tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _tokens_of_a_prefix(self) -> Self:
        if self.scope == "sequence" and self.tokens is not None:
            raise ValueError(f"tokens: {self.tokens}: goes with scope: prefix; a sequence is taken whole")
        return self

    @property
    def prefix(self) -> int | None:
        """How many tokens count; None for all."""
        return None if self.scope == "sequence" else self.tokens or 1

    def part(self, q_BHTK: Tensor, real_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The queries that count, and which of them are no padding."""
        if self.prefix is None:
            return q_BHTK, real_BT
        if real_BT is None:
            return q_BHTK[:, :, : self.prefix], None
        return q_BHTK, real_BT & (real_BT.cumsum(dim=1) <= self.prefix)

    @property
    def traits(self) -> Traits:
        """What holds for a mixer whose operator comes from these tokens."""
        one = self.prefix == 1
        return Traits(causal=one, exact_when_split=one, settled_after=self.prefix)


class PlgaSpec(MixerSpec):
    """Power-law graph attention; `metric_hidden` is the paper's `A_dff`.

    density: the text that the operator is deduced from.

    start: the operator's starting values, the paper's or near the identity (which short runs need).
    """

    kind: Literal["plga"] = "plga"
    heads: PositiveInt
    metric_hidden: PositiveInt = 170
    residual_units: PositiveInt = 8
    gated_units: PositiveInt = 2
    rotary: RotarySpec | None = RotarySpec(pairing="adjacent")
    density: DensitySpec = DensitySpec()
    start: Start = "paper"

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
        ]

    def check(self, d_model: int) -> None:
        """Heads must divide the width."""
        check_heads(self.heads, None, d_model, self.rotary)

    def build(self, d_model: int, context_length: int) -> "Plga":
        """Build the module."""
        return Plga(self, d_model)

    def cost(self, d_model: int, context_length: int) -> Cost:
        """Attention's cost, `q G` for each token, and the net behind the operator once per sequence."""
        head_dim = d_model // self.heads
        projections = linear_cost(d_model, 3 * d_model, bias=True) + linear_cost(d_model, d_model, bias=True)
        pairs = Cost(
            flops_per_token=2 * d_model * head_dim,
            flops_per_pair=4 * d_model,
            state_elements_per_token=2 * d_model,
        )
        net = operator_cost(self.heads, head_dim, self.metric_hidden, self.residual_units, self.gated_units)
        return projections + pairs + net + density_cost(self.heads, head_dim, self.density.prefix)


@dataclass
class PlgaState(KeyValueState):
    """Keys, values, and the operator `[B, H, K, K]`, which the first chunk (the prompt) fixes for the whole stream."""

    operator: Tensor | None = None

    def forget(self) -> Self:
        """Forget the tokens, keep the operator: this is how a frozen operator is reused."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Forget later tokens; without any token left the operator goes too, and the next chunk deduces its own."""
        super().crop(length)
        if length == 0:
            self.operator = None


class Plga(Mixer):
    """Power-law graph attention.

    Without a state the operator comes from the whole sequence, later tokens included: NOT causal, but where the density
    is that of a prefix. With a state the first chunk deduces the operator, the state keeps it, and from then on the net
    behind it is not run.
    """

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"attend": attention_reference}

    def __init__(self, spec: PlgaSpec, d_model: int) -> None:
        super().__init__()
        self.heads, self.head_dim = spec.heads, d_model // spec.heads
        self.rotary, self.density, self.traits = spec.rotary, spec.density, spec.density.traits
        self.query_key_value = FusedLinear(d_model, [d_model] * 3, bias=True)
        self.attend = attention
        self.out = Linear(d_model, d_model, bias=True)
        self.operator = PowerLawOperator(
            spec.heads, self.head_dim, spec.metric_hidden, spec.residual_units, spec.gated_units, spec.start
        )

    def initial_state(self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> PlgaState:
        """Room for the keys and values of `capacity` tokens, and no operator yet."""
        return PlgaState(**key_value_tensors(batch, self.heads, capacity, self.head_dim, device, dtype))

    def forward(self, x_BTD: Tensor, state: State | None = None, span: Span = Span()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        heads = (self.heads, self.heads, self.heads)
        q_BHTK, k_BHSK, v_BHSK = queries_keys_values(self.query_key_value(x_BTD), heads, self.rotary, span)
        g_BHKK = self._operator(q_BHTK, state, span)
        if state is not None:
            assert isinstance(state, PlgaState)
            k_BHSK, v_BHSK = state.append(k_BHSK, v_BHSK, span.start)
        out_BHTK = self.attend(q_BHTK @ g_BHKK, k_BHSK, v_BHSK, span.padding_B)
        out_BTD: Tensor = self.out(out_BHTK.transpose(1, 2).flatten(2))
        return out_BTD

    def _operator(self, q_BHTK: Tensor, state: State | None, span: Span) -> Tensor:
        """The state's operator, or the one that this chunk deduces (and leaves in the state)."""
        assert state is None or isinstance(state, PlgaState)
        if state is not None and state.operator is not None:
            return state.operator
        counted = self.density.part(q_BHTK, span.real(q_BHTK.shape[2], q_BHTK.device))
        with torch.autocast(device_type=q_BHTK.device.type, enabled=False):
            density_BHKK = density(*counted)
        g_BHKK: Tensor = self.operator(density_BHKK).g.to(q_BHTK.dtype)
        if state is not None:
            state.operator = g_BHKK
        return g_BHKK
