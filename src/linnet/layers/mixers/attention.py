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
from linnet.layers.first_values import VALUE_RESIDUAL, ValueResidual, ValueResidualSpec, ValuesRead
from linnet.layers.key_value import KeyValueState, WindowState, key_value_row, key_value_tensors, seen_keys
from linnet.layers.retention import FULL, Retention
from linnet.layers.rotary import RotarySpec, check_heads, queries_keys_values
from linnet.layers.state import State
from linnet.layers.view import Record, View
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.head_norm import HeadNorm, head_norm_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.norms import NormKind, NormSpec
from linnet.ops.attention import attention, attention_reference, full_attention, full_attention_reference
from linnet.ops.blocked_attention import blocks_serve
from linnet.ops.windowed_attention import in_blocks, windowed_pairs


class AttentionSpec(MixerSpec):
    """`heads` query heads share `kv_heads` key-value heads (default: one each; 1 is multi-query attention).

    bias: of the maps to queries, keys and values; out_bias: of the map behind them (null: as `bias`).
    scale: what scores are multiplied by (null: one over the root of the head width).
    window: a token sees so many tokens, itself included (null: all of the past); the state is as large and stays so.
    value_residual: values are mixed with those of the first layer that has them (`layers.first_values`).
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
    value_residual: ValueResidualSpec | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """Multi-head, grouped-query, multi-query; pairings, partial, no positions; biases; a head width, a window.

        Queries and keys normalised, in both ways; values mixed with those of the first layer, in both ways.
        """
        residual, fixed = ValueResidualSpec(), ValueResidualSpec(own=1.0, first=0.7, learned=False)
        return [
            cls(heads=4),
            cls(heads=4, kv_heads=2, bias=True, rotary=RotarySpec(pairing="adjacent")),
            cls(heads=2, kv_heads=1, head_dim=12, rotary=None),
            cls(heads=2, out_bias=True, scale=1.0, window=4, rotary=RotarySpec(fraction=0.5)),
            cls(heads=4, kv_heads=2, query_key_norm=NormSpec()),
            cls(heads=2, head_dim=6, window=4, query_key_norm=NormSpec(kind="layer")),
            cls(heads=2, kv_heads=1, head_dim=12, value_residual=residual),
            cls(heads=3, kv_heads=1, head_dim=12, window=4, value_residual=fixed),
        ]

    def check(self, width: int) -> None:
        """Heads must divide the width, key-value heads must divide the heads."""
        check_heads(self.heads, self.head_dim, width, self.rotary)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}: must divide heads, which is {self.heads}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """Query heads, key-value heads, head width."""
        return self.heads, self.kv_heads or self.heads, self.head_dim or d_model // self.heads

    def leaves(self, width: int) -> dict[str, tuple[int, ...]]:
        """The first values."""
        return {} if self.value_residual is None else {VALUE_RESIDUAL: self.widths(width)[1:]}

    @property
    def needs_left(self) -> bool:
        """Where it learns its share of them."""
        return self.value_residual is not None and self.value_residual.learned

    def cost_of_left(self, place: Place) -> Cost:
        """With fixed shares: what learned ones would keep, the joint projection, unless it is kept anyway."""
        assert self.value_residual is not None
        learned = self.value_residual.model_copy(update={"learned": True})
        costs = self.model_copy(update={"value_residual": learned}).cost(place), self.cost(place)
        return Cost(kept_by_shape=(lambda *shape: costs[0].kept(*shape) - costs[1].kept(*shape),))

    @property
    def sees_prefix(self) -> bool:
        """But over a window, which looks back alone."""
        return self.window is None

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
        norm, residual = self.query_key_norm, self.value_residual
        maps += Cost() if norm is None else head_norm_cost(norm, head_dim)
        maps += Cost() if residual is None else residual.cost()
        kind, values = None if norm is None else norm.kind, "own" if residual is None else residual.read
        shape = AttentionShape(heads, kv_heads, head_dim, self.rotary is not None, kind, values)
        return maps + (shape.cost(place.whole) if self.window is None else shape.windowed_cost(self.window))


@dataclass(frozen=True)
class AttentionShape:
    """What the cost of the attention between the maps depends on. Kept is what is kept on a CPU in float32.

    norm: of queries and keys, by its kind. values: that are read: a token's own, or mixed with others.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool
    norm: NormKind | None = None
    values: ValuesRead = "own"

    def cost(self, whole: bool = False) -> Cost:
        """Over all of the past, or all of the row. Kept are the joint projection, what was turned, the result; maybe a
        number per head.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Cost(
            flops_per_pair=4 * queries,
            state_elements_per_token=2 * keys,
            kept_per_token=(queries + 2 * keys) * self._keeps_joint
            + (queries + keys) * self.rotary
            + keys * (self.values != "own")
            + self._kept_by_norm()
            + queries,
            kept_by_shape=(partial(self._kept_by_softmax, whole),),
        )

    def _kept_by_softmax(self, whole: bool, sequences: int, tokens: int) -> int:
        """PyTorch's kernel keeps a number for each query; in blocks, which serve what is causal, nothing is kept."""
        return 0 if blocks_serve(tokens, torch.float32) and not whole else sequences * tokens * self.heads

    @property
    def _keeps_joint(self) -> bool:
        """But where nothing of the joint projection is read as it is."""
        copied = self.rotary or self.norm == "rms"
        return self.values != "fixed" or self.norm == "layer" or not copied

    def _kept_by_norm(self) -> int:
        """`rms` keeps its output and a number per head; `layer` its input, of the joint projection, and two numbers."""
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
            softmax = sequences * tokens * self.heads if mask else self._kept_by_softmax(False, sequences, tokens)
            return sequences * tokens * self.cost().kept_per_token + softmax + mask
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        whole = -(-tokens // window) * window
        cut = tokens * queries if whole > tokens else 0
        return sequences * (whole * (2 * queries + 4 * keys + self.heads + 2 * window) + cut + tokens * self._before())

    def _before(self) -> int:
        """Of a token before the blocks, which are copies: what its norm keeps, and the joint projection if it is read
        by a `layer` norm or by shares of values that are learned.
        """
        joint = (self.heads + 2 * self.kv_heads) * self.head_dim
        normed = 2 * (self.heads + self.kv_heads) if self.norm == "layer" else self._kept_by_norm()
        return normed + joint * (self.norm == "layer" or self.values == "learned")


class Attention(Mixer):
    """Causal self-attention with one fused projection for queries, keys and values."""

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {
        "attend": attention_reference,
        "attend_all": full_attention_reference,
    }

    def __init__(self, spec: AttentionSpec, d_model: int) -> None:
        super().__init__()
        self.traits = Traits(prefix=spec.sees_prefix, constant_state=spec.window is not None, window=spec.window)
        self.heads, self.kv_heads, self.head_dim = spec.widths(d_model)
        self.rotary, self.scale, self.window = spec.rotary, spec.scale, spec.window
        widths = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.query_key_value = FusedLinear(d_model, widths, spec.bias)
        norm = spec.query_key_norm
        self.query_key_norm = None if norm is None else HeadNorm(norm, self.head_dim)
        residual = spec.value_residual
        self.value_residual = None if residual is None else ValueResidual(residual)
        self.attend, self.attend_all = attention, full_attention
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
        if self.value_residual is not None:
            v_BMTK = self.value_residual(v_BMTK.transpose(1, 2), view).transpose(1, 2)
        if state is None and view.whole(x_BTD.shape[1]):
            real_BT = view.real(x_BTD.shape[1], x_BTD.device)
            out_BNTK = self.attend_all(q_BNTK, k_BMTK, v_BMTK, real_BT, self.scale)
        else:
            seen = seen_keys(k_BMTK, v_BMTK, state, view)
            out_BNTK = self.attend(q_BNTK, *seen[:3], self.scale, self.window, seen.last_BT)
        out_BTD: Tensor = self.out(out_BNTK.transpose(1, 2).flatten(2))
        return out_BTD

    def row_step(self, state: State | None, record: Record | None = None) -> RowStep | None:
        """See `Sublayer`; not over a window."""
        if not isinstance(state, KeyValueState):
            return None
        norm = None if self.query_key_norm is None else self.query_key_norm.row(self.heads, self.kv_heads)
        residual = self.value_residual
        values = None if residual is None else residual.row(record)
        joint, out = self.query_key_value, self.out
        return key_value_row(joint, out, state, self.heads, self.rotary, scale=self.scale, norm=norm, values=values)
