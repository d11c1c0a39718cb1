"""Softmax attention: multi-head, grouped-query and multi-query.

Vaswani et al., 2017; Ainslie et al., 2023 (arXiv 2305.13245); Shazeer, 2019 (arXiv 1911.02150).

Legend: `B` batch, `T` tokens of the chunk, `S` tokens so far, `N` query heads, `M` key-value heads, `K` head width,
`D` model width.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from linnet.mixers.base import Mixer, MixerSpec, Span, State, Traits
from linnet.mixers.key_value import KeyValueState, key_value_tensors
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import attention, attention_reference
from linnet.ops.rotary import Pairing, rotary_range, rotary_table, rotate_heads
from linnet.spec import Spec


class RotarySpec(Spec):
    """Rotary positions: `base` of the angles and which elements of a head form a pair."""

    base: PositiveFloat = 10000.0
    pairing: Pairing = "halves"

    def turned(self, joint_BTNK: Tensor, heads: tuple[int, int, int], span: Span) -> tuple[Tensor, ...]:
        """Queries and keys, rotated by the positions of their tokens, and values, from one joint projection."""
        length, width = joint_BTNK.shape[1], joint_BTNK.shape[-1]
        end, device = span.start + length, joint_BTNK.device
        if span.padding_B is None:
            table = rotary_range(span.start, end, width, self.base, device)
        else:
            table = rotary_table(span.positions(length, device), width, self.base, end)
        return rotate_heads(joint_BTNK, heads, table, self.pairing)


def queries_keys_values(
    joint_BTD: Tensor, heads: tuple[int, int, int], rotary: RotarySpec | None, span: Span
) -> tuple[Tensor, ...]:
    """`[B, T, (N + 2M) K]` -> queries `[B, N, T, K]`, keys and values `[B, M, T, K]`, rotated where asked for."""
    joint_BTNK = joint_BTD.view(*joint_BTD.shape[:2], sum(heads), -1)
    parts = torch.split(joint_BTNK, list(heads), dim=2) if rotary is None else rotary.turned(joint_BTNK, heads, span)
    return tuple(part.transpose(1, 2) for part in parts)


def check_heads(heads: int, head_dim: int | None, d_model: int, rotary: RotarySpec | None) -> None:
    """Raise a `ValueError` that names the field where heads and width do not fit."""
    if head_dim is None and d_model % heads:
        raise ValueError(f"heads: {heads}: must divide the width {d_model}, or head_dim must be given")
    width = head_dim or d_model // heads
    if rotary is not None and width % 2:
        raise ValueError(f"heads: {heads}: gives heads of width {width}; rotary positions need an even width")


class AttentionSpec(MixerSpec):
    """`heads` query heads share `kv_heads` key-value heads (default: one each; 1 is multi-query attention)."""

    kind: Literal["attention"] = "attention"
    heads: PositiveInt
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    bias: bool = False
    rotary: RotarySpec | None = RotarySpec()

    @classmethod
    def examples(cls) -> list[Self]:
        """Multi-head, grouped-query, multi-query; both pairings, no positions, biases, a head width of its own."""
        return [
            cls(heads=4),
            cls(heads=4, kv_heads=2, bias=True, rotary=RotarySpec(pairing="adjacent")),
            cls(heads=2, kv_heads=1, head_dim=12, rotary=None),
        ]

    def check(self, d_model: int) -> None:
        """Heads must divide the width, key-value heads must divide the heads."""
        check_heads(self.heads, self.head_dim, d_model, self.rotary)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}: must divide heads, which is {self.heads}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """Query heads, key-value heads, head width."""
        return self.heads, self.kv_heads or self.heads, self.head_dim or d_model // self.heads

    def build(self, d_model: int, context_length: int) -> "Attention":
        """Build the module."""
        return Attention(self, d_model)

    def cost(self, d_model: int, context_length: int) -> Cost:
        """Projections, scores and weighted sum; keys and values as state."""
        heads, kv_heads, head_dim = self.widths(d_model)
        into = linear_cost(d_model, (heads + 2 * kv_heads) * head_dim, self.bias)
        out = linear_cost(heads * head_dim, d_model, self.bias)
        pairs = Cost(flops_per_pair=4 * heads * head_dim, state_elements_per_token=2 * kv_heads * head_dim)
        return into + out + pairs


class Attention(Mixer):
    """Causal self-attention with one fused projection for queries, keys and values."""

    traits = Traits()
    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"attend": attention_reference}

    def __init__(self, spec: AttentionSpec, d_model: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.widths(d_model)
        self.rotary = spec.rotary
        widths = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.query_key_value = FusedLinear(d_model, widths, spec.bias)
        self.attend = attention
        self.out = Linear(self.heads * self.head_dim, d_model, bias=spec.bias)

    def initial_state(self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> KeyValueState:
        """Room for the keys and values of `capacity` tokens."""
        return KeyValueState(*key_value_tensors(batch, self.kv_heads, capacity, self.head_dim, device, dtype))

    def forward(self, x_BTD: Tensor, state: State | None = None, span: Span = Span()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q_BNTK, k_BMSK, v_BMSK = queries_keys_values(self.query_key_value(x_BTD), heads, self.rotary, span)
        if state is not None:
            assert isinstance(state, KeyValueState)
            k_BMSK, v_BMSK = state.append(k_BMSK, v_BMSK, span.start)
        out_BNTK = self.attend(q_BNTK, k_BMSK, v_BMSK, span.padding_B)
        out_BTD: Tensor = self.out(out_BNTK.transpose(1, 2).flatten(2))
        return out_BTD
