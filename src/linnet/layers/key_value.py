"""Keys and values of attention: their state, their cost, value residuals, and attention for one token.

The state holds the rotated keys and the values of all tokens so far, or of those in a window.

Value residuals mix the values of the first layer into those of later ones (Zhou et al., "Value residual learning",
arXiv 2410.17897): the first layer of a pass saves its values (`BatchLayout.save_cross_layer_value`), and every layer
reads `V' = own V + first V_1`. The paper's first layer reads `V_1`; here it reads `(own + first) V_1`, so that all
layers are the same. With the initial weights of the paper's learnable form, one half each, the two are equal.

Shapes: `B` batch, `N` query heads, `M` key-value heads, `P` query heads per key-value head, `S` tokens so far, `T`
tokens of the chunk, `K` head width, `W` window, `C` capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.state import Contents, State, write_chunk, write_places
from linnet.nn.cost import Cost
from linnet.nn.linear import WeightedSum
from linnet.nn.norms import NormKind
from linnet.nn.packed_linear import QuantizedLinear
from linnet.ops.attention import uses_blocks, windowed_pairs
from linnet.ops.blocked_attention import blocked_is_faster, blocked_pairs

VALUE_RESIDUAL = "value_residual"
"""The field of a spec, and the name of the cross-layer value."""


ValuesRead = Literal["own", "fixed", "learned"]
"""The values that a layer reads: its own, or its own and the first layer's with fixed or learned weights."""


class ValueResidualSpec(Spec):
    """The weights of a layer's own values and of the first layer's; initial values only, unless `learned: false`."""

    own: float = 0.5
    first: float = 0.5
    learned: bool = True

    @property
    def read(self) -> ValuesRead:
        """The values that layers read."""
        return "learned" if self.learned else "fixed"

    def cost(self) -> Cost:
        """Two parameters if they are learned."""
        return Cost(parameters=2 * self.learned)


class ValueResidual(nn.Module):
    """The mix of a layer's values and the first layer's."""

    def __init__(self, spec: ValueResidualSpec) -> None:
        super().__init__()
        self.mix = WeightedSum(spec.own, spec.first, spec.learned)

    def forward(self, v_BTMK: Tensor, layout: BatchLayout) -> Tensor:
        """The mixed values, `[B, T, M, K]`; the first layer saves its own."""
        first_BTMK = layout.cross_layer_value(VALUE_RESIDUAL)
        if first_BTMK is None:
            layout.save_cross_layer_value(VALUE_RESIDUAL, v_BTMK)
            first_BTMK = v_BTMK
        mixed_BTMK: Tensor = self.mix(v_BTMK, first_BTMK)
        return mixed_BTMK


@dataclass(frozen=True)
class AttentionShape:
    """The properties that the cost of attention between the linear maps depends on.

    Activation memory is that on a CPU in float32. norm: the kind of norm of queries and keys. values: the values that
    are read. no_kernel: whether PyTorch's kernel does not support the scores, so that they are computed in blocks at
    any length. normed_vectors: the number of vectors of a token that the norm normalizes.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool
    norm: NormKind | None = None
    values: ValuesRead = "own"
    no_kernel: bool = False
    normed_vectors: int = 0

    def cost(self, whole: bool = False) -> Cost:
        """Attention over all earlier tokens, or over the whole row.

        The joint projection, rotated queries and keys, and the result are kept for the backward pass.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        # The joint projection is not kept if nothing reads it unchanged.
        copied = self.rotary or self.norm == "rms"
        keeps_joint = self.values != "fixed" or self.norm == "layer" or not copied
        return Cost(
            flops_per_pair=4 * queries,
            state_elements_per_token=2 * keys,
            state_narrow_per_token=0 if self.no_kernel else 2 * keys,
            activations_per_token=(queries + 2 * keys) * keeps_joint
            + (queries + keys) * self.rotary
            + keys * (self.values != "own")
            + self._norm_memory()
            + queries,
            activation_memory=(partial(self._softmax_memory, whole),),
        )

    def _softmax_memory(self, whole: bool, sequences: int, tokens: int) -> int:
        """PyTorch's kernel keeps a number for each query, and causal attention in blocks nothing.

        Over whole rows with positions by distance the weights are kept.
        """
        if whole:
            return sequences * tokens * self.heads * (tokens if self.no_kernel else 1)
        return 0 if self.no_kernel or blocked_is_faster(tokens, torch.float32) else sequences * tokens * self.heads

    def _norm_memory(self) -> int:
        """`rms` keeps its output and a number per vector; `layer` its input, the joint projection, and two numbers."""
        elements = (self.heads + self.kv_heads) * self.head_dim
        if self.norm is None:
            return 0
        if self.norm == "rms":
            return elements + self.normed_vectors
        return 2 * self.normed_vectors + (0 if self.rotary else elements)

    def windowed_cost(self, window: int, sink_tokens: int = 0, gated: bool = False) -> Cost:
        """Attention over a window and the first `sink_tokens` tokens, computed in blocks if the sequence is long.

        gated: a gate reads the result, not a linear map.
        """
        state = 2 * self.kv_heads * self.head_dim * (window + sink_tokens)

        def flops(tokens: int) -> int:
            pairs = blocked_pairs(tokens, window, sink_tokens) if self.no_kernel else windowed_pairs(tokens, window)
            return 4 * self.heads * self.head_dim * pairs

        memory = partial(self._window_memory, window, gated)
        return Cost(flops_by_length=(flops,), activation_memory=(memory,), state_elements=state)

    def _window_memory(self, window: int, gated: bool, sequences: int, tokens: int) -> int:
        """In blocks: queries, results, keys and values with their neighbors, masks; else as `cost`, with one mask."""
        if self.no_kernel:
            return sequences * tokens * self.cost().activations_per_token
        if not uses_blocks(tokens, window):
            mask = tokens * tokens if tokens > window else 0
            softmax = sequences * tokens * self.heads if mask else self._softmax_memory(False, sequences, tokens)
            return sequences * tokens * self.cost().activations_per_token + softmax + mask
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        whole = -(-tokens // window) * window
        # The results up to the last token are a copy, unless a gate reads them as the view that they are for one head.
        cut = tokens * queries if whole > tokens and not (gated and self.heads == 1) else 0
        # Blocks are copies. Before them, the norm keeps its tensors, and a `layer` norm or learned weights of values
        # keep the joint projection.
        norm = 2 * self.normed_vectors if self.norm == "layer" else self._norm_memory()
        joint = (queries + 2 * keys) * (self.norm == "layer" or self.values == "learned")
        blocks = whole * (2 * queries + 4 * keys + self.heads + 2 * window)
        return sequences * (blocks + cut + tokens * (norm + joint))


class VisibleKeys(NamedTuple):
    """Keys and values that the tokens of a chunk can see, `[B, M, S, K]` each, and the limits of `ops.attention`."""

    keys: Tensor
    values: Tensor
    first_B: Tensor | None = None
    last_BT: Tensor | None = None


@dataclass
class KeyValueState(State):
    """Keys and values, `[B, M, capacity, K]` each; they are filled up to the row's position."""

    room: ClassVar[Mapping[str, int]] = MappingProxyType({"keys": 2, "values": 2})

    keys: Tensor
    values: Tensor

    def append(self, k_BMTK: Tensor, v_BMTK: Tensor, layout: BatchLayout) -> VisibleKeys:
        """Write a chunk, and return the keys and values of the whole stream as views."""
        length = k_BMTK.shape[2]
        end = layout.end(length)
        self.keys = write_chunk(self.keys, k_BMTK, layout, 2)
        self.values = write_chunk(self.values, v_BMTK, layout, 2)
        last_BT = layout.last_in_prefix(length, k_BMTK.device)
        if last_BT is not None:
            last_BT = (last_BT + layout.offsets_B(k_BMTK.device)[:, None]).clamp(min=0)
        elif not layout.uniform:
            last_BT = layout.positions(length, k_BMTK.device)
        return VisibleKeys(self.keys[:, :, :end], self.values[:, :, :end], None, last_BT)

    def forget(self) -> Self:
        """A copy: what is after a row's position is overwritten before it is read."""
        return self.fork()

    def can_crop(self, length: int) -> bool:
        return True

    def crop(self, length: int) -> None:
        """Nothing to do: what is after a row's position is overwritten before it is read."""


@dataclass
class WindowState(State):
    """Keys and values of the last W tokens, `[B, M, W, K]` each; the token at position p is at place `p mod W`.

    sink_tokens: the number of first tokens of the stream that stay, in places before those of the window.
    """

    keys: Tensor
    values: Tensor
    sink_tokens: int = 0

    @property
    def window(self) -> int:
        return self.keys.shape[2] - self.sink_tokens

    def _places(self, positions: Tensor) -> Tensor:
        """The place of each position."""
        within = (positions - self.sink_tokens) % self.window + self.sink_tokens
        return torch.where(positions < self.sink_tokens, positions, within) if self.sink_tokens else within

    def _positions(self, end: int, last: int, since: int = 0) -> Tensor:
        """The positions from `since` to before `end` that are sink tokens or among the `last` ones."""
        first, device = min(self.sink_tokens, end), self.keys.device
        ranges = (min(since, first), first), (max(first, end - last, since), end)
        return torch.cat([torch.arange(*bounds, device=device) for bounds in ranges])

    def observe(self, position: int, row: int = 0) -> Contents:
        return self.contents(position, 0, position - 1 - self._positions(position, self.window).cpu().numpy())

    def append(self, k_BMTK: Tensor, v_BMTK: Tensor, layout: BatchLayout, ordered: bool = False) -> VisibleKeys:
        """Write a chunk, and return its keys and values after the W - 1 earlier ones that its first token sees.

        For a single token they are returned in the order of the places, without a copy, unless `ordered` is set.
        """
        if k_BMTK.shape[2] == 1 and not ordered:
            return self._append_token(k_BMTK, v_BMTK, layout)
        if layout.in_graph:
            return self._append_in_graph(k_BMTK, v_BMTK, layout)
        length, start = k_BMTK.shape[2], layout.start
        places = self._places(self._positions(start, self.window - 1))
        pairs = (self.keys, k_BMTK), (self.values, v_BMTK)
        keys, values = (torch.cat([past[:, :, places], new], dim=2) for past, new in pairs)
        positions = self._positions(start + length, self.window, since=start)
        for cache, new in pairs:
            cache[:, :, self._places(positions)] = new[:, :, positions - start].to(cache.dtype)
        return VisibleKeys(keys, values)

    def _append_token(self, k_BM1K: Tensor, v_BM1K: Tensor, layout: BatchLayout) -> VisibleKeys:
        room, device = self.keys.shape[2], self.keys.device
        positions_B = layout.offsets_B(device).expand(self.keys.shape[0])  # a symbol in a graph
        last_B1 = None if layout.uniform else positions_B.clamp(max=room - 1)[:, None]
        places_B1 = self._places(positions_B)[:, None]
        self.keys = write_places(self.keys, k_BM1K, places_B1, layout, 2)
        self.values = write_places(self.values, v_BM1K, places_B1, layout, 2)
        filled = room if layout.in_graph else min(layout.end(1), room)  # a graph masks unused places
        return VisibleKeys(self.keys[:, :, :filled], self.values[:, :, :filled], None, last_B1)

    def _append_in_graph(self, k_BMTK: Tensor, v_BMTK: Tensor, layout: BatchLayout) -> VisibleKeys:
        """`append` for rows at any positions in a graph, where all lengths are fixed; unused places are masked.

        The result has the earlier tokens in order, then the chunk, then unused places.
        """
        length, past_room, device = k_BMTK.shape[2], self.keys.shape[2] - 1, self.keys.device
        start_B1 = layout.offsets_B(device)[:, None]
        dropped_B1 = (start_B1 - past_room).clamp(min=0)  # positions between the sink tokens and the window
        order = torch.arange(past_room, device=device)
        past = self._places(torch.where(order < self.sink_tokens, order, order + dropped_B1))
        chunk_BT = start_B1 - dropped_B1 + torch.arange(length, device=device)
        ends_B1, places = start_B1 + length, torch.arange(past_room + 1, device=device)
        # The position that each place holds after the chunk, and where it is in the result.
        positions = torch.where(places < self.sink_tokens, places, ends_B1 - 1 - (ends_B1 - 1 - places) % self.window)
        sources = torch.where(positions < self.sink_tokens, positions, positions - dropped_B1).clamp(min=0)
        keys, values = (
            torch.cat([_at_places(cache, past), torch.zeros_like(new)], dim=2).scatter(
                2, chunk_BT[:, None, :, None].expand_as(new), new.to(cache.dtype)
            )
            for cache, new in ((self.keys, k_BMTK), (self.values, v_BMTK))
        )
        self.keys, self.values = _at_places(keys, sources), _at_places(values, sources)
        return VisibleKeys(keys, values, None, chunk_BT)


def _at_places(cache_BMCK: Tensor, places_BP: Tensor) -> Tensor:
    """The entries of each row at its places, `[B, M, P, K]`."""
    return cache_BMCK.gather(2, places_BP[:, None, :, None].expand(*cache_BMCK.shape[:2], -1, cache_BMCK.shape[3]))


def visible_keys(
    k_BMTK: Tensor, v_BMTK: Tensor, state: State | None, layout: BatchLayout, ordered: bool = False
) -> VisibleKeys:
    """The keys and values that the tokens of a chunk can see: its own, and those of a state, which is advanced.

    ordered: in the order of positions, even if that needs a copy.
    """
    if state is None:
        last_BT = layout.last_in_prefix(k_BMTK.shape[2], k_BMTK.device)
        return VisibleKeys(k_BMTK, v_BMTK, layout.padding_B(k_BMTK.device), last_BT)
    if isinstance(state, WindowState):
        return state.append(k_BMTK, v_BMTK, layout, ordered)
    assert isinstance(state, KeyValueState)
    return state.append(k_BMTK, v_BMTK, layout)


def key_value_tensors(
    batch: int, heads: int, capacity: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values of zeros, `[B, M, C, K]` each."""
    shape = (batch, heads, capacity, head_dim)
    return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)


def cache_dtype(joint: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """The precision of cached keys and values: bfloat16 with quantized maps, as they dominate after long texts."""
    return torch.bfloat16 if isinstance(joint, QuantizedLinear) and dtype == torch.float32 else dtype
