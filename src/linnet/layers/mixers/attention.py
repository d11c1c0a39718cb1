"""Softmax attention: multi-head, grouped-query and multi-query; over all of the past or a window of it.

Vaswani et al., 2017; Ainslie et al., 2023 (arXiv 2305.13245); Shazeer, 2019 (arXiv 1911.02150); Beltagy et al., 2020
(arXiv 2004.05150).

Legend: `B` batch, `T` tokens of the chunk, `S` tokens so far, `N` query heads, `M` key-value heads, `K` head width,
`D` model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from linnet.core.spec import Spec
from linnet.layers.contract import Mixer, MixerSpec, Span, State, Traits
from linnet.layers.key_value import KeyValueState, WindowState, key_value_tensors
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import attention, attention_reference
from linnet.ops.rotary import Pairing, rotary_range, rotary_table, rotate_heads
from linnet.ops.windowed_attention import in_blocks, windowed_pairs


class RotarySpec(Spec):
    """Rotary positions: `base` of the angles, which elements of a head form a pair, how much of a head is turned.

    `fraction` of a head's elements, from the first, are turned (1 all of them; GPT-NeoX a quarter).
    """

    base: PositiveFloat = 10000.0
    pairing: Pairing = "halves"
    fraction: float = Field(default=1.0, gt=0, le=1)

    def width(self, head_dim: int) -> int:
        """How many elements of a head are turned."""
        return int(head_dim * self.fraction)

    def turned(self, joint_BTNK: Tensor, heads: tuple[int, int, int], span: Span) -> tuple[Tensor, ...]:
        """Queries and keys, rotated by the positions of their tokens, and values, from one joint projection."""
        length, width = joint_BTNK.shape[1], self.width(joint_BTNK.shape[-1])
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
    if rotary is None:
        return
    if rotary.fraction == 1 and width % 2:
        raise ValueError(f"heads: {heads}: gives heads of width {width}; rotary positions need an even width")
    if rotary.width(width) % 2 or rotary.width(width) == 0:
        raise ValueError(
            f"rotary.fraction: {rotary.fraction}: of heads of width {width} it turns {rotary.width(width)} elements;"
            " expected an even number above 0"
        )


class AttentionSpec(MixerSpec):
    """`heads` query heads share `kv_heads` key-value heads (default: one each; 1 is multi-query attention).

    bias: of the maps to queries, keys and values; out_bias: of the map behind them (null: as `bias`).
    scale: what scores are multiplied by (null: one over the root of the head width).
    window: a token sees so many tokens, itself included (null: all of the past); the state is as large and stays so.
    """

    kind: Literal["attention"] = "attention"
    heads: PositiveInt
    kv_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    bias: bool = False
    out_bias: bool | None = None
    rotary: RotarySpec | None = RotarySpec()
    scale: PositiveFloat | None = None
    window: PositiveInt | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """Multi-head, grouped-query, multi-query; pairings, partial, no positions; biases; a head width, a window."""
        return [
            cls(heads=4),
            cls(heads=4, kv_heads=2, bias=True, rotary=RotarySpec(pairing="adjacent")),
            cls(heads=2, kv_heads=1, head_dim=12, rotary=None),
            cls(heads=2, out_bias=True, scale=1.0, window=4, rotary=RotarySpec(fraction=0.5)),
        ]

    def check(self, d_model: int) -> None:
        """Heads must divide the width, key-value heads must divide the heads."""
        check_heads(self.heads, self.head_dim, d_model, self.rotary)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}: must divide heads, which is {self.heads}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """Query heads, key-value heads, head width."""
        return self.heads, self.kv_heads or self.heads, self.head_dim or d_model // self.heads

    @property
    def out_has_bias(self) -> bool:
        """Whether the map behind the heads has a bias."""
        return self.bias if self.out_bias is None else self.out_bias

    def build(self, d_model: int, context_length: int) -> "Attention":
        """Build the module."""
        return Attention(self, d_model)

    def cost(self, d_model: int, context_length: int) -> Cost:
        """Projections, scores and weighted sum; keys and values as state."""
        heads, kv_heads, head_dim = self.widths(d_model)
        query, key_value = (linear_cost(d_model, count * head_dim, self.bias) for count in (heads, kv_heads))
        out = linear_cost(heads * head_dim, d_model, self.out_has_bias)
        maps = query + key_value.repeated(2) + out + Cost(kept_per_token=d_model)
        shape = AttentionShape(heads, kv_heads, head_dim, self.rotary is not None)
        return maps + (shape.cost() if self.window is None else shape.windowed_cost(self.window))


@dataclass(frozen=True)
class AttentionShape:
    """What the cost of the attention between the maps depends on. Kept is what PyTorch's CPU kernel keeps."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool

    def cost(self) -> Cost:
        """Over all of the past. Kept are the joint projection, what was turned, the result, a number per head."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Cost(
            flops_per_pair=4 * queries,
            state_elements_per_token=2 * keys,
            kept_per_token=(queries + 2 * keys) + (queries + keys) * self.rotary + queries + self.heads,
        )

    def windowed_cost(self, window: int) -> Cost:
        """Over a window, in blocks where the sequence is long."""
        flops, kept = partial(self._flops, window), partial(self._kept, window)
        state = 2 * self.kv_heads * self.head_dim * window
        return Cost(flops_by_length=(flops,), kept_by_shape=(kept,), state_elements=state)

    def _flops(self, window: int, tokens: int) -> int:
        return 4 * self.heads * self.head_dim * windowed_pairs(tokens, window)

    def _kept(self, window: int, sequences: int, tokens: int) -> int:
        """In blocks: queries, results, keys and values with their neighbours, masks; else as above with one mask."""
        if not in_blocks(tokens, window):
            mask = tokens * tokens if tokens > window else 0
            return sequences * tokens * self.cost().kept_per_token + mask
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        whole = -(-tokens // window) * window
        cut = tokens * queries if whole > tokens else 0
        return sequences * (whole * (2 * queries + 4 * keys + self.heads + 2 * window) + cut)


class Attention(Mixer):
    """Causal self-attention with one fused projection for queries, keys and values."""

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"attend": attention_reference}

    def __init__(self, spec: AttentionSpec, d_model: int) -> None:
        super().__init__()
        self.traits = Traits(constant_state=spec.window is not None, window=spec.window)
        self.heads, self.kv_heads, self.head_dim = spec.widths(d_model)
        self.rotary, self.scale, self.window = spec.rotary, spec.scale, spec.window
        widths = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.query_key_value = FusedLinear(d_model, widths, spec.bias)
        self.attend = attention
        self.out = Linear(self.heads * self.head_dim, d_model, bias=spec.out_has_bias)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> KeyValueState | WindowState:
        """Room for the keys and values of `capacity` tokens, or of a window."""
        kept = self.window or capacity
        tensors = key_value_tensors(batch, self.kv_heads, kept, self.head_dim, device, dtype)
        return KeyValueState(*tensors) if self.window is None else WindowState(*tensors)

    def forward(self, x_BTD: Tensor, state: State | None = None, span: Span = Span()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q_BNTK, k_BMSK, v_BMSK = queries_keys_values(self.query_key_value(x_BTD), heads, self.rotary, span)
        padding_B = span.padding_B
        if isinstance(state, KeyValueState):
            k_BMSK, v_BMSK = state.append(k_BMSK, v_BMSK, span.start)
        elif isinstance(state, WindowState):
            k_BMSK, v_BMSK, first = state.append(k_BMSK, v_BMSK, span.start, ordered=padding_B is not None)
            padding_B = None if padding_B is None else (padding_B - first).clamp(min=0)
        out_BNTK = self.attend(q_BNTK, k_BMSK, v_BMSK, padding_B, self.scale, self.window)
        out_BTD: Tensor = self.out(out_BNTK.transpose(1, 2).flatten(2))
        return out_BTD
