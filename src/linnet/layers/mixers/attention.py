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
from pydantic import PositiveFloat
from torch import Tensor

from linnet.core.spec import Amount, Extent
from linnet.layers.contract import Mixer, MixerSpec, Place, RowStep, Traits
from linnet.layers.key_value import KeyValueState, WindowState, key_value_row, key_value_tensors, seen_keys
from linnet.layers.retention import FULL, Retention
from linnet.layers.rotary import RotarySpec, check_heads, queries_keys_values
from linnet.layers.state import State
from linnet.layers.view import View
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.head_norm import HeadNorm, head_norm_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.norms import NormKind, NormSpec
from linnet.ops.attention import attention, attention_reference
from linnet.ops.blocked_attention import blocks_serve
from linnet.ops.windowed_attention import in_blocks, windowed_pairs


class AttentionSpec(MixerSpec):
    """`heads` query heads share `kv_heads` key-value heads (default: one each; 1 is multi-query attention).

    bias: of the maps to queries, keys and values; out_bias: of the map behind them (null: as `bias`).
    scale: what scores are multiplied by (null: one over the root of the head width).
    window: a token sees so many tokens, itself included (null: all of the past); the state is as large and stays so.
    query_key_norm: of each query and each key over the head's width, before rotary positions (`nn.head_norm`).
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
    query_key_norm: NormSpec | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """Multi-head, grouped-query, multi-query; pairings, partial, no positions; biases; a head width, a window.

        Queries and keys normalised, in both ways.
        """
        return [
            cls(heads=4),
            cls(heads=4, kv_heads=2, bias=True, rotary=RotarySpec(pairing="adjacent")),
            cls(heads=2, kv_heads=1, head_dim=12, rotary=None),
            cls(heads=2, out_bias=True, scale=1.0, window=4, rotary=RotarySpec(fraction=0.5)),
            cls(heads=4, kv_heads=2, query_key_norm=NormSpec()),
            cls(heads=2, head_dim=6, window=4, query_key_norm=NormSpec(kind="layer")),
        ]

    def check(self, width: int) -> None:
        """Heads must divide the width, key-value heads must divide the heads."""
        check_heads(self.heads, self.head_dim, width, self.rotary)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}: must divide heads, which is {self.heads}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """Query heads, key-value heads, head width."""
        return self.heads, self.kv_heads or self.heads, self.head_dim or d_model // self.heads

    @property
    def out_has_bias(self) -> bool:
        """Whether the map behind the heads has a bias."""
        return self.bias if self.out_bias is None else self.out_bias

    def build(self, place: Place) -> "Attention":
        """Build the module."""
        return Attention(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Projections, scores and weighted sum; keys and values as state."""
        width = place.width
        heads, kv_heads, head_dim = self.widths(width)
        query, key_value = (linear_cost(width, count * head_dim, self.bias) for count in (heads, kv_heads))
        out = linear_cost(heads * head_dim, width, self.out_has_bias)
        maps = query + key_value.repeated(2) + out + Cost(kept_per_token=width)
        norm = self.query_key_norm
        if norm is not None:
            maps += head_norm_cost(norm, head_dim)
        shape = AttentionShape(heads, kv_heads, head_dim, self.rotary is not None, None if norm is None else norm.kind)
        return maps + (shape.cost() if self.window is None else shape.windowed_cost(self.window))


@dataclass(frozen=True)
class AttentionShape:
    """What the cost of the attention between the maps depends on. Kept is what is kept on a CPU in float32.

    norm: of queries and keys, by its kind.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool
    norm: NormKind | None = None

    def cost(self) -> Cost:
        """Over all of the past. Kept are the joint projection, what was turned, the result; maybe a number per head."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Cost(
            flops_per_pair=4 * queries,
            state_elements_per_token=2 * keys,
            kept_per_token=(queries + 2 * keys) + (queries + keys) * self.rotary + self._kept_by_norm() + queries,
            kept_by_shape=(self._kept_by_softmax,),
        )

    def _kept_by_softmax(self, sequences: int, tokens: int) -> int:
        """PyTorch's kernel keeps a number for each query; in blocks nothing is kept."""
        return 0 if blocks_serve(tokens, torch.float32) else sequences * tokens * self.heads

    def _kept_by_norm(self) -> int:
        """`rms` keeps its output and a number per head; `layer` its input, which is kept anyway, and two numbers."""
        heads = self.heads + self.kv_heads
        if self.norm is None:
            return 0
        if self.norm == "rms":
            return heads * (self.head_dim + 1)
        return heads * (2 + (0 if self.rotary else self.head_dim))

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
            softmax = sequences * tokens * self.heads if mask else self._kept_by_softmax(sequences, tokens)
            return sequences * tokens * self.cost().kept_per_token + softmax + mask
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        whole = -(-tokens // window) * window
        cut = tokens * queries if whole > tokens else 0
        return sequences * (whole * (2 * queries + 4 * keys + self.heads + 2 * window) + cut + tokens * self._normed())

    def _normed(self) -> int:
        """Of a token in blocks, which are copies, so that a `layer` norm keeps the joint projection for itself."""
        heads = self.heads + self.kv_heads
        if self.norm == "layer":
            return (heads + self.kv_heads) * self.head_dim + 2 * heads
        return self._kept_by_norm()


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
        norm = spec.query_key_norm
        self.query_key_norm = None if norm is None else HeadNorm(norm, self.head_dim)
        self.attend = attention
        self.out = Linear(self.heads * self.head_dim, d_model, bias=spec.out_has_bias)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, retention: Retention = FULL
    ) -> KeyValueState | WindowState:
        """Room for the keys and values of `capacity` tokens, or of a window."""
        kept = self.window or capacity
        tensors = key_value_tensors(batch, self.kv_heads, kept, self.head_dim, device, dtype)
        return KeyValueState(*tensors) if self.window is None else WindowState(*tensors)

    def takes(self, view: View, length: int, state: State | None) -> bool:
        """Anything, but for a chunk of several tokens behind a window: rows then take in different keys."""
        return view.uniform or not isinstance(state, WindowState) or (length == 1 and view.padding is None)

    def forward(self, x_BTD: Tensor, state: State | None = None, view: View = View()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`."""
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q_BNTK, k_BMTK, v_BMTK = queries_keys_values(
            self.query_key_value(x_BTD), heads, self.rotary, view, self.query_key_norm
        )
        seen = seen_keys(k_BMTK, v_BMTK, state, view)
        out_BNTK = self.attend(q_BNTK, *seen[:3], self.scale, self.window, seen.last_BT)
        out_BTD: Tensor = self.out(out_BNTK.transpose(1, 2).flatten(2))
        return out_BTD

    def row_step(self, state: State | None) -> RowStep | None:
        """See `Sublayer`; not over a window."""
        if not isinstance(state, KeyValueState):
            return None
        norm = None if self.query_key_norm is None else self.query_key_norm.row(self.heads, self.kv_heads)
        joint, out = self.query_key_value, self.out
        return key_value_row(joint, out, state, self.heads, self.rotary, scale=self.scale, norm=norm)
