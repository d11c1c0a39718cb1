"""Softmax attention: multi-head, grouped-query and multi-query, over the whole past or a window.

Vaswani et al., 2017; Ainslie et al., 2023 (arXiv 2305.13245); Shazeer, 2019 (arXiv 1911.02150); Beltagy et al., 2020
(arXiv 2004.05150).

Shapes: `B` batch, `T` tokens of the chunk, `S` tokens so far, `N` query heads, `M` key-value heads, `K` head width,
`D` model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import PositiveFloat, model_validator
from torch import Tensor, nn

from linnet.core.spec import Amount, Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Mixer, MixerSpec, Place, Traits
from linnet.layers.key_value import (
    VALUE_RESIDUAL,
    AttentionShape,
    KeyValueState,
    ValueResidual,
    ValueResidualSpec,
    WindowState,
    cache_dtype,
    key_value_tensors,
    visible_keys,
)
from linnet.layers.positions import AlibiSpec, AnyPositions, ShawSpec, T5Spec
from linnet.layers.rotary import Llama3Scaling, RotarySpec, YarnScaling, check_heads, queries_keys_values
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.gates import GateKind, OutputGate, output_gate_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.norms import HeadNorm, HeadNormSpec
from linnet.ops.attention import (
    KeyRange,
    attention,
    attention_mask,
    attention_reference,
    full_attention,
    full_attention_reference,
)


class AttentionSpec(MixerSpec):
    """heads: query heads. kv_heads: key-value heads (null: one for each query head; 1 is multi-query attention).

    head_dim: width of a head (null: the model's width over `heads`).
    bias: of the maps to queries, keys and values. out_bias: of the output projection (null: as `bias`).
    scale: a factor of the scores (null: one over the root of the head width).
    window: the number of tokens that a token sees, itself included (null: all); it bounds the state, too.
    sink_tokens: with a window, the number of first tokens of a stream that all later tokens see (null: none).
    query_key_norm: a norm of queries and keys over the head's width, or over all heads, before rotary positions
        (`nn.norms`).
    value_residual: mixes values with those of the first layer that has them (`layers.key_value`).
    positions: relative positions (`layers.positions`), instead of rotary ones.
    gate: a gate of the output, for each head or for each of its channels (`nn.gates`); null: none.
    sinks: a learned score in each head without a key, which takes part in the softmax.
    soft_cap: the bound of the scores, `soft_cap tanh(scores / soft_cap)` (Gemma 2: 50); null: none.
    """

    kind: Literal["attention"] = "attention"
    heads: Extent
    kv_heads: Extent | None = None
    head_dim: Extent | None = None
    bias: bool = False
    out_bias: bool | None = None
    rotary: RotarySpec | None = RotarySpec()
    scale: PositiveFloat | None = None
    window: Amount | None = None
    sink_tokens: Amount | None = None
    query_key_norm: HeadNormSpec | None = None
    value_residual: ValueResidualSpec | None = None
    positions: AnyPositions | None = None
    gate: GateKind | None = None
    sinks: bool = False
    soft_cap: PositiveFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_rotary_with_positions(cls, data: Any) -> Any:
        """Set the default of `rotary` to null if there are relative positions."""
        if isinstance(data, dict) and data.get("positions") is not None:
            return {"rotary": None, **data}
        return data

    @classmethod
    def examples(cls) -> list[Self]:
        """Every field, and the combinations that have code of their own."""
        residual, fixed = ValueResidualSpec(), ValueResidualSpec(own=1.0, first=0.7, learned=False)
        return [
            cls(heads=4),
            cls(heads=4, kv_heads=2, bias=True, rotary=RotarySpec(pairing="adjacent")),
            cls(heads=2, kv_heads=1, head_dim=12, rotary=None),
            cls(heads=2, out_bias=True, scale=1.0, window=4, rotary=RotarySpec(fraction=0.5)),
            cls(heads=4, kv_heads=2, query_key_norm=HeadNormSpec()),
            cls(heads=2, head_dim=6, window=4, query_key_norm=HeadNormSpec(kind="layer")),
            cls(heads=2, kv_heads=1, head_dim=12, value_residual=residual),
            cls(heads=3, kv_heads=1, head_dim=12, window=4, value_residual=fixed),
            cls(heads=2, rotary=RotarySpec(scaling=YarnScaling(factor=4, trained=64))),
            cls(heads=3, head_dim=6, positions=AlibiSpec()),
            cls(heads=4, kv_heads=2, positions=T5Spec(buckets=5, furthest=9)),
            cls(heads=2, kv_heads=1, head_dim=12, positions=ShawSpec(clip=5)),
            cls(heads=4, kv_heads=2, window=4, positions=ShawSpec(clip=6)),
            cls(heads=2, scale=1.0, positions=T5Spec(buckets=8, furthest=9, both_ways=True)),
            cls(heads=4, kv_heads=2, query_key_norm=HeadNormSpec(), gate="channel", bias=True),
            cls(heads=2, window=4, gate="head"),
            cls(heads=4, kv_heads=2, sinks=True),
            cls(heads=4, window=4, positions=AlibiSpec(), sinks=True),
            cls(heads=4, kv_heads=2, window=4, sink_tokens=2, sinks=True),
            cls(heads=2, rotary=RotarySpec(scaling=Llama3Scaling(factor=4, trained=64))),
            cls(heads=4, kv_heads=2, query_key_norm=HeadNormSpec(joint=True, unit_offset=True)),
            cls(heads=4, kv_heads=2, window=4, query_key_norm=HeadNormSpec(kind="layer", joint=True)),
            cls(heads=4, kv_heads=2, soft_cap=1.5),
            cls(heads=4, window=4, sinks=True, soft_cap=1.5),
        ]

    def check(self, width: int) -> None:
        if self.positions is not None and self.rotary is not None:
            raise ValueError(f"rotary: must be null with positions, which are {self.positions.kind}")
        if self.soft_cap is not None and self.positions is not None:
            raise ValueError(f"soft_cap: {self.soft_cap}: must be null with positions by distance")
        if self.sinks and self.positions is not None and not self.positions.allows_sinks:
            kind = self.positions.kind
            raise ValueError(f"sinks: true: must be false with positions of kind {kind}, whose vectors a sink lacks")
        if self.sink_tokens is not None and (self.window is None or self.positions is not None):
            raise ValueError(
                f"sink_tokens: {self.sink_tokens}: must be null without a window, and with positions by distance"
            )
        check_heads(self.heads, self.head_dim, width, self.rotary)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}: must divide heads, which is {self.heads}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """The numbers of query heads and key-value heads, and the head width."""
        return self.heads, self.kv_heads or self.heads, self.head_dim or d_model // self.heads

    def cross_layer_values(self, width: int) -> dict[str, tuple[int, ...]]:
        return {} if self.value_residual is None else {VALUE_RESIDUAL: self.widths(width)[1:]}

    @property
    def needs_cross_layer_gradients(self) -> bool:
        """True if the share of the first layer's values is learned."""
        return self.value_residual is not None and self.value_residual.learned

    def cross_layer_cost(self, place: Place) -> Cost:
        """With fixed shares the joint projection, which learned shares keep in any layer."""
        assert self.value_residual is not None
        learned = self.value_residual.model_copy(update={"learned": True})
        costs = self.model_copy(update={"value_residual": learned}).cost(place), self.cost(place)
        return Cost(
            activation_memory=(
                lambda *shape: costs[0].activation_elements(*shape) - costs[1].activation_elements(*shape),
            )
        )

    @property
    def supports_prefix(self) -> bool:
        return not self.prefix_conflict

    @property
    def prefix_conflict(self) -> str:
        """A window, sinks, bounded scores, or relative positions without keys after the query."""
        if self.window is not None:
            return f"window: {self.window}: expected none"
        if self.sinks:
            return "sinks: True: expected false"
        if self.soft_cap is not None:
            return f"soft_cap: {self.soft_cap}: expected none"
        if self.positions is not None and not self.positions.sees_ahead:
            return f"positions: {self.positions.kind}: expected rotary, or kind t5 with both_ways: true"
        return ""

    @property
    def out_has_bias(self) -> bool:
        """True if the output projection has a bias."""
        return self.bias if self.out_bias is None else self.out_bias

    def build(self, place: Place) -> "Attention":
        return Attention(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Projections, scores and weighted sum; the state is keys and values."""
        width = place.width
        heads, kv_heads, head_dim = self.widths(width)
        query, key_value = (linear_cost(width, count * head_dim, self.bias) for count in (heads, kv_heads))
        out = linear_cost(heads * head_dim, width, self.out_has_bias)
        maps = query + key_value.repeated(2) + out + Cost(activations_per_token=width)
        norm, residual = self.query_key_norm, self.value_residual
        maps += Cost() if norm is None else norm.heads_cost(heads, kv_heads, head_dim)
        maps += Cost() if residual is None else residual.cost()
        maps += Cost() if self.gate is None else output_gate_cost(self.gate, width, heads, head_dim, self.bias)
        kind, values = None if norm is None else norm.kind, "own" if residual is None else residual.read
        vectors = 0 if norm is None else norm.vectors(heads, kv_heads)
        if self.positions is not None:
            positions_cost = self.positions.cost(heads, head_dim, self.window)
            # An encoder adds the bias of each pair of tokens and has no table by distance.
            maps += replace(positions_cost, activation_memory=()) if place.whole else positions_cost
        if self.sinks:  # one more column of the scores, computed in blocks
            column = 2 * heads * head_dim
            maps += Cost(parameters=heads, flops_by_length=(lambda tokens: column * tokens * (tokens > 1),))
        no_kernel = any(part is not None for part in (self.positions, self.sink_tokens, self.soft_cap)) or self.sinks
        shape = AttentionShape(heads, kv_heads, head_dim, self.rotary is not None, kind, values, no_kernel, vectors)
        return maps + (
            shape.cost(place.whole)
            if self.window is None
            else shape.windowed_cost(self.window, self.sink_tokens or 0, self.gate is not None)
        )


class Attention(Mixer):
    """Causal self-attention with one fused projection for queries, keys and values."""

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {
        "attend": attention_reference,
        "attend_all": full_attention_reference,
    }

    def __init__(self, spec: AttentionSpec, d_model: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.widths(d_model)
        self.rotary, self.scale = spec.rotary, spec.scale
        self.window, self.sink_tokens, self.soft_cap = spec.window, spec.sink_tokens or 0, spec.soft_cap
        self.traits = Traits(
            prefix=spec.supports_prefix,
            constant_state=self.window is not None,
            window=None if self.sink_tokens else self.window,
        )
        widths = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.query_key_value = FusedLinear(d_model, widths, spec.bias)
        norm = spec.query_key_norm
        self.query_key_norm = None if norm is None else HeadNorm(norm, *spec.widths(d_model))
        residual = spec.value_residual
        self.value_residual = None if residual is None else ValueResidual(residual)
        self.positions = None if spec.positions is None else spec.positions.build(self.heads, self.head_dim)
        self.sinks_N = nn.Parameter(torch.zeros(self.heads)) if spec.sinks else None
        gate = spec.gate
        self.gate = None if gate is None else OutputGate(gate, d_model, self.heads, self.head_dim, spec.bias)
        self.attend, self.attend_all = attention, full_attention
        self.out = Linear(self.heads * self.head_dim, d_model, bias=spec.out_has_bias)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> KeyValueState | WindowState:
        """Empty keys and values for `capacity` tokens, or for a window."""
        capacity = capacity if self.window is None else self.window + self.sink_tokens
        if all(part is None for part in (self.window, self.positions, self.sinks_N, self.soft_cap)):
            dtype = cache_dtype(self.query_key_value, dtype)
        tensors = key_value_tensors(batch, self.kv_heads, capacity, self.head_dim, device, dtype)
        return KeyValueState(*tensors) if self.window is None else WindowState(*tensors, self.sink_tokens)

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        """Any layout without a window. With one, rows at different positions only for a single token."""
        if self.sink_tokens and layout.padding is not None:
            return False  # sinks have the same places in all rows
        if layout.uniform or not isinstance(state, WindowState):
            return True
        # Several tokens add different keys in each row. A single token does not know the distances of its keys, so
        # rows with relative positions need the same position.
        return length == 1 and layout.padding is None and self.positions is None

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q_BNTK, k_BMTK, v_BMTK = queries_keys_values(
            self.query_key_value(x_BTD), heads, self.rotary, layout, self.query_key_norm
        )
        if self.value_residual is not None:
            v_BMTK = self.value_residual(v_BMTK.transpose(1, 2), layout).transpose(1, 2)
        if state is None and layout.whole(x_BTD.shape[1]):  # an encoder: all tokens see each other
            real_BT = layout.real(x_BTD.shape[1], x_BTD.device)
            mask = None if real_BT is None else real_BT[:, None, None]
            out_BNTK = self.attend_all(
                q_BNTK, k_BMTK, v_BMTK, mask, self.scale, self._bias(q_BNTK, k_BMTK, None, layout)
            )
        else:
            seen = visible_keys(k_BMTK, v_BMTK, state, layout, ordered=self.positions is not None)
            key_range = KeyRange(seen.first_B, self.window, self.sink_tokens, seen.last_BT)
            if self.positions is None:
                extras = (None, self.sinks_N, self.soft_cap)
                out_BNTK = self.attend(q_BNTK, seen.keys, seen.values, key_range, self.scale, *extras)
            elif layout.prefixes is not None:  # queries see later keys, which the tables by distance do not cover
                mask = attention_mask(q_BNTK.shape[2], seen.keys.shape[2], x_BTD.device, key_range)
                bias_NTS = self._bias(q_BNTK, seen.keys, state, layout)
                out_BNTK = self.attend_all(q_BNTK, seen.keys, seen.values, mask, self.scale, bias_NTS)
            else:
                relative = self.positions.relative(seen.keys.shape[2], q_BNTK.device)
                out_BNTK = self.attend(q_BNTK, seen.keys, seen.values, key_range, self.scale, relative, self.sinks_N)
                out_BNTK = self.positions.added(out_BNTK)
        out_BTF = out_BNTK.transpose(1, 2).flatten(2)
        out_BTD: Tensor = self.out(out_BTF if self.gate is None else self.gate(out_BTF, x_BTD))
        return out_BTD

    def _bias(self, q_BNTK: Tensor, k_BMSK: Tensor, state: State | None, layout: BatchLayout) -> Tensor | None:
        """The bias of relative positions for all pairs of tokens, `[N, T, S]` or `[B, N, T, S]`."""
        if self.positions is None:
            return None
        queries, device = q_BNTK.shape[2], q_BNTK.device
        positions = torch.arange(queries, device=device) if state is None else layout.positions(queries, device)
        return self.positions.pairs(torch.arange(k_BMSK.shape[2], device=device) - positions[..., None])
