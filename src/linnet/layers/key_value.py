"""The decode state of attention: the rotated keys and the values of every token so far, or of those in a window.

Shapes: `B` batch, `N` query heads, `M` key-value heads, `P` query heads of each of them, `S` tokens so far, `T` tokens
of the chunk, `K` head width, `W` window, `C` capacity.

Also the cost of attention, and the values of the first layer mixed into those of later ones (Zhou et al., "Value
residual learning", arXiv 2410.17897): the first layer of a pass saves its values
(`BatchLayout.save_cross_layer_value`), and every layer reads `V' = own V + first V_1`. The paper's first layer reads
`V_1` itself; here it reads `(own + first) V_1`, so that all layers are alike. With the initial shares of the paper's
learnable form, a half each, that is the same.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.core.spec import Spec
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import DecodeStep
from linnet.layers.rotary import RotarySpec, turn_of
from linnet.layers.state import State, write_chunk
from linnet.nn.cost import Cost
from linnet.nn.linear import WeightedSum
from linnet.nn.norms import NormKind
from linnet.nn.packed_linear import QuantizedLinear, RowMap, gemv_of, native_library_of
from linnet.ops.attention import uses_blocks, windowed_pairs
from linnet.ops.blocked_attention import blocked_is_faster, blocked_pairs
from linnet.ops.native.attention import AttentionRow, attention_row, operator_row
from linnet.ops.relative_positions import RelativePositionRow
from linnet.ops.support import is_exporting

VALUE_RESIDUAL = "value_residual"
"""The field of a description, and the name under which values are left."""


ValuesRead = Literal["own", "fixed", "learned"]
"""What a layer reads: a token's own values, or own and first ones in shares that are fixed or learned."""


class ValueResidualSpec(Spec):
    """The shares of a layer's own values and of the first layer's: where they start, or `learned: false` stay."""

    own: float = 0.5
    first: float = 0.5
    learned: bool = True

    @property
    def read(self) -> ValuesRead:
        """What layers read."""
        return "learned" if self.learned else "fixed"

    def cost(self) -> Cost:
        """Two numbers."""
        return Cost(parameters=2 * self.learned)


class ValueResidual(nn.Module):
    """What makes a layer's values into those that it reads with."""

    def __init__(self, spec: ValueResidualSpec) -> None:
        super().__init__()
        self.mix = WeightedSum(spec.own, spec.first, spec.learned)

    def forward(self, v_BTMK: Tensor, layout: BatchLayout) -> Tensor:
        """The same shape; leaves them where nobody has."""
        first_BTMK = layout.cross_layer_value(VALUE_RESIDUAL)
        if first_BTMK is None:
            layout.save_cross_layer_value(VALUE_RESIDUAL, v_BTMK)
            first_BTMK = v_BTMK
        mixed_BTMK: Tensor = self.mix(v_BTMK, first_BTMK)
        return mixed_BTMK

    def row(self, record: AuxiliaryOutputs | None) -> Callable[[Tensor], Tensor]:
        """Of one token of one stream, `[M, K]`; `record`: of its step, None where nobody leaves anything."""
        mix, layout = self.mix.row(), BatchLayout(record=record)

        def mixed(v_MK: Tensor) -> Tensor:
            first_11MK = layout.cross_layer_value(VALUE_RESIDUAL)
            if first_11MK is None:
                first_11MK = v_MK[None, None]
                layout.save_cross_layer_value(VALUE_RESIDUAL, first_11MK)
            return mix(v_MK, first_11MK[0, 0])

        return mixed


@dataclass(frozen=True)
class AttentionShape:
    """What the cost of the attention between the maps depends on. Kept is what is kept on a CPU in float32.

    norm: of queries and keys, by its kind. values: that are read: a token's own, or mixed with others. no_kernel:
    whether scores are what PyTorch's kernel does not have, and so computed in blocks, whatever the length.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool
    norm: NormKind | None = None
    values: ValuesRead = "own"
    no_kernel: bool = False

    def cost(self, whole: bool = False) -> Cost:
        """Over all of the past, or all of the row. Kept are the joint projection, what was turned, the result; maybe a
        number per head.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return Cost(
            flops_per_pair=4 * queries,
            state_elements_per_token=2 * keys,
            state_narrow_per_token=0 if self.no_kernel else 2 * keys,
            activations_per_token=(queries + 2 * keys) * self._keeps_joint
            + (queries + keys) * self.rotary
            + keys * (self.values != "own")
            + self._kept_by_norm()
            + queries,
            activation_memory=(partial(self._kept_by_softmax, whole),),
        )

    def _kept_by_softmax(self, whole: bool, sequences: int, tokens: int) -> int:
        """PyTorch's kernel keeps a number for each query; in blocks, which serve what is causal, nothing is kept. Of a
        whole row with distances the weights are kept.
        """
        if whole:
            return sequences * tokens * self.heads * (tokens if self.no_kernel else 1)
        return 0 if self.no_kernel or blocked_is_faster(tokens, torch.float32) else sequences * tokens * self.heads

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

    def windowed_cost(self, window: int, sink_tokens: int = 0) -> Cost:
        """Over a window and the `sink_tokens` first tokens, in blocks where the sequence is long."""
        flops, kept = partial(self._flops, window, sink_tokens), partial(self._kept, window)
        state = 2 * self.kv_heads * self.head_dim * (window + sink_tokens)
        return Cost(flops_by_length=(flops,), activation_memory=(kept,), state_elements=state)

    def _flops(self, window: int, sink_tokens: int, tokens: int) -> int:
        pairs = blocked_pairs(tokens, window, sink_tokens) if self.no_kernel else windowed_pairs(tokens, window)
        return 4 * self.heads * self.head_dim * pairs

    def _kept(self, window: int, sequences: int, tokens: int) -> int:
        """In blocks: queries, results, keys and values with their neighbors, masks; else as above with one mask."""
        if self.no_kernel:
            return sequences * tokens * self.cost().activations_per_token
        if not uses_blocks(tokens, window):
            mask = tokens * tokens if tokens > window else 0
            softmax = sequences * tokens * self.heads if mask else self._kept_by_softmax(False, sequences, tokens)
            return sequences * tokens * self.cost().activations_per_token + softmax + mask
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


class VisibleKeys(NamedTuple):
    """Keys and values that the tokens of a chunk may see, `[B, M, S, K]` each, and which: see `ops.attention`."""

    keys: Tensor
    values: Tensor
    first_B: Tensor | None = None
    last_BT: Tensor | None = None


@dataclass
class KeyValueState(State):
    """Keys and values, `[B, M, capacity, K]` each; how much of them is filled is the row's position."""

    room: ClassVar[Mapping[str, int]] = MappingProxyType({"keys": 2, "values": 2})

    keys: Tensor
    values: Tensor

    def append(self, k_BMTK: Tensor, v_BMTK: Tensor, layout: BatchLayout) -> VisibleKeys:
        """Write a chunk and give keys and values of the whole stream, as views."""
        length = k_BMTK.shape[2]
        end = layout.end(length)
        self.keys, self.values = (
            write_chunk(kept, new, layout, 2) for kept, new in ((self.keys, k_BMTK), (self.values, v_BMTK))
        )
        last_BT = layout.last_in_prefix(length, k_BMTK.device)
        if last_BT is not None:
            last_BT = (last_BT + layout.offsets_B(k_BMTK.device)[:, None]).clamp(min=0)
        elif not layout.uniform:
            last_BT = layout.positions(length, k_BMTK.device)
        return VisibleKeys(self.keys[:, :, :end], self.values[:, :, :end], None, last_BT)

    def forget(self) -> Self:
        """An empty copy: what lies behind a row's position is overwritten before it is read."""
        return self.fork()

    def crop(self, length: int) -> None:
        """Nothing to do: what lies behind a row's position is overwritten before it is read."""


@dataclass
class WindowState(State):
    """Keys and values of the last W tokens, `[B, M, W, K]` each; the token at position p lies at `p mod W`.

    sink_tokens: so many tokens of the stream stay, in places of their own before those of the window.
    """

    keys: Tensor
    values: Tensor
    sink_tokens: int = 0

    @property
    def window(self) -> int:
        """W."""
        return self.keys.shape[2] - self.sink_tokens

    def _places(self, positions: Tensor) -> Tensor:
        within = (positions - self.sink_tokens) % self.window + self.sink_tokens
        return torch.where(positions < self.sink_tokens, positions, within) if self.sink_tokens else within

    def _kept(self, end: int, last: int, since: int = 0) -> Tensor:
        """The positions from `since` to before `end` that are among the first, or the `last`."""
        first, device = min(self.sink_tokens, end), self.keys.device
        ranges = (min(since, first), first), (max(first, end - last, since), end)
        return torch.cat([torch.arange(*bounds, device=device) for bounds in ranges])

    def append(self, k_BMTK: Tensor, v_BMTK: Tensor, layout: BatchLayout, ordered: bool = False) -> VisibleKeys:
        """Take in a chunk, of which the first token needs W - 1 tokens of the past.

        A single token gets what lies here as it lies, which saves a copy, unless it is to be `ordered`.
        """
        if k_BMTK.shape[2] == 1 and not ordered:
            return self._append_token(k_BMTK, v_BMTK, layout)
        if is_exporting():
            return self._append_in_graph(k_BMTK, v_BMTK, layout)
        length, start = k_BMTK.shape[2], layout.start
        places = self._places(self._kept(start, self.window - 1))
        pairs = (self.keys, k_BMTK), (self.values, v_BMTK)
        keys, values = (torch.cat([past[:, :, places], new], dim=2) for past, new in pairs)
        positions = self._kept(start + length, self.window, since=start)
        for kept, new in pairs:
            kept[:, :, self._places(positions)] = new[:, :, positions - start].to(kept.dtype)
        return VisibleKeys(keys, values)

    def _append_token(self, k_BM1K: Tensor, v_BM1K: Tensor, layout: BatchLayout) -> VisibleKeys:
        room, device = self.keys.shape[2], self.keys.device
        positions_B = layout.offsets_B(device).expand(len(self.keys))
        last_B1 = None if layout.uniform else positions_B.clamp(max=room - 1)[:, None]
        if is_exporting():  # one stream; places that are yet to be filled are masked
            index_1M1K = self._places(positions_B).view(-1, 1, 1, 1).expand_as(k_BM1K)
            pairs = (self.keys, k_BM1K), (self.values, v_BM1K)
            self.keys, self.values = (kept.scatter(2, index_1M1K, new.to(kept.dtype)) for kept, new in pairs)
            return VisibleKeys(self.keys, self.values, None, last_B1)
        rows = torch.arange(len(self.keys), device=device)
        for kept, new in ((self.keys, k_BM1K), (self.values, v_BM1K)):
            kept[rows, :, self._places(positions_B)] = new[:, :, 0].to(kept.dtype)
        known = min(layout.end(1), room)
        return VisibleKeys(self.keys[:, :, :known], self.values[:, :, :known], None, last_B1)

    def _append_in_graph(self, k_BMTK: Tensor, v_BMTK: Tensor, layout: BatchLayout) -> VisibleKeys:
        """`append` of one stream in a graph, where all lengths are fixed: what is yet to come is masked.

        In order there is what is kept of the past, the chunk behind it, and what is left of as many places.
        """
        length, most, device = k_BMTK.shape[2], self.keys.shape[2] - 1, self.keys.device
        start = layout.offsets_B(device)
        dropped = (start - most).clamp(min=0)  # positions between the first ones and the rest of what is kept
        order = torch.arange(most, device=device)
        past = self._places(torch.where(order < self.sink_tokens, order, order + dropped))
        chunk_T = start - dropped + torch.arange(length, device=device)
        ends, room = start + length, torch.arange(most + 1, device=device)
        standing = torch.where(room < self.sink_tokens, room, ends - 1 - (ends - 1 - room) % self.window)
        stays = torch.where(standing < self.sink_tokens, standing, standing - dropped).clamp(min=0)
        keys, values = (
            torch.cat([kept.index_select(2, past), torch.zeros_like(new)], dim=2).scatter(
                2, chunk_T.view(1, 1, -1, 1).expand_as(new), new.to(kept.dtype)
            )
            for kept, new in ((self.keys, k_BMTK), (self.values, v_BMTK))
        )
        self.keys, self.values = keys.index_select(2, stays), values.index_select(2, stays)
        return VisibleKeys(keys, values, None, chunk_T[None])


def visible_keys(
    k_BMTK: Tensor, v_BMTK: Tensor, state: State | None, layout: BatchLayout, ordered: bool = False
) -> VisibleKeys:
    """What the tokens of a chunk may see: the chunk's own keys and values, and with a state, advanced, the past's.

    ordered: the earliest first, also where that takes a copy.
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
    """Empty keys and values."""
    shape = (batch, heads, capacity, head_dim)
    return torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype)


def cache_dtype(joint: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """Of keys and values: 16 bits beside a map in few bits, since behind long texts they are most of what is read."""
    return torch.bfloat16 if isinstance(joint, QuantizedLinear) and dtype == torch.float32 else dtype


def key_value_decode_step(
    joint: nn.Module,
    out: nn.Module,
    state: KeyValueState,
    heads: int,
    rotary: RotarySpec | None,
    scale: float | None = None,
    operator_NKK: Tensor | None = None,
    norm: Callable[[Tensor], Tensor] | None = None,
    values: Callable[[Tensor], Tensor] | None = None,
    bias: Callable[[int], Tensor] | None = None,
    near: RelativePositionRow | None = None,
    gate: Callable[[Tensor, Tensor], Tensor] | None = None,
    sinks_N: Tensor | None = None,
) -> DecodeStep | None:
    """Attention for one more token of one stream.

    operator_NKK: stands between queries and keys where it is given. norm: of a token's queries and keys, `[N + M, K]`.
    values: makes its own values, `[M, K]`, into those that are read. bias: of a position, is added to its scores.
    near: keys and values of distances.
    gate: makes what heads have read, `[1, N K]`, and the row into what is mapped to the output.
    sinks_N: a score in each head of nothing.
    None where a map is none that has a form for rows, or there are several streams.
    """
    joint_row, out_row = gemv_of(joint), gemv_of(out)
    if joint_row is None or out_row is None or len(state.keys) != 1:
        return None
    compiled = native_library_of(joint) if bias is None and near is None and sinks_N is None else None
    beside = (norm, operator_NKK, values, bias, near, gate, sinks_N)
    in_bfloat16 = state.keys.dtype == torch.bfloat16 and not isinstance(joint, QuantizedLinear)
    if compiled is None and in_bfloat16 and all(part is None for part in beside):
        return _bfloat16_row(joint_row, out_row, state, heads, rotary, scale)
    _, kv_heads, capacity, width = state.keys.shape
    turn = None if rotary is None else turn_of(rotary, width, capacity, compiled)
    factor = width**-0.5 if scale is None else scale
    if compiled is None:
        read = _reading(state, factor, bias, near, sinks_N)
    else:
        read = attention_row(compiled, state.keys[0], state.values[0], factor)
    through = None if operator_NKK is None else _through(operator_NKK, compiled)

    def step(sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
        joint_JK = joint_row.of(x_1D).view(heads + 2 * kv_heads, width)
        turned_JK = joint_JK[: heads + kv_heads]
        if norm is not None:
            turned_JK = norm(turned_JK)
        if turn is not None:
            turned_JK = turn(turned_JK, position)
        v_MK = joint_JK[heads + kv_heads :]
        q_MPK = turned_JK[:heads].view(kv_heads, heads // kv_heads, width)
        if through is not None:
            q_MPK = through(q_MPK)
        read_1F = read(q_MPK, turned_JK[heads:], v_MK if values is None else values(v_MK), position)
        return out_row.added(sum_1D, read_1F if gate is None else gate(read_1F, x_1D))

    return step


def _through(operator_NKK: Tensor, compiled: ctypes.CDLL | None) -> Callable[[Tensor], Tensor]:
    """`q G`, `[N, 1, K] -> [N, 1, K]`."""
    if compiled is not None:
        return operator_row(compiled, operator_NKK)
    return lambda q_N1K: torch.bmm(q_N1K, operator_NKK)


def _reading(
    state: KeyValueState,
    factor: float,
    bias: Callable[[int], Tensor] | None,
    near: RelativePositionRow | None,
    sinks_N: Tensor | None,
) -> AttentionRow:
    """As `ops.native.attention`, with all that `key_value_decode_step` takes."""
    keys_MCK, values_MCK = state.keys[0], state.values[0]
    sinks_MP1 = None if sinks_N is None else sinks_N.detach().view(len(keys_MCK), -1, 1)
    nothing = torch.zeros((), device="cpu")

    def read(q_MPK: Tensor, k_MK: Tensor, v_MK: Tensor, position: int) -> Tensor:
        keys_MCK[:, position] = k_MK
        values_MCK[:, position] = v_MK
        keys_MKS = keys_MCK[:, : position + 1].float().transpose(1, 2)
        if bias is None:
            scores_MPS = torch.baddbmm(nothing, q_MPK, keys_MKS, beta=0, alpha=factor)
        else:
            scores_MPS = torch.baddbmm(bias(position), q_MPK, keys_MKS, alpha=factor)
        if near is not None:
            near.add_scores(scores_MPS, q_MPK, factor)
        if sinks_MP1 is not None:
            scores_MPS = torch.cat([scores_MPS, sinks_MP1], dim=2)
        weights_MPS = scores_MPS.softmax(dim=2)[..., : position + 1]
        read_MPK = torch.bmm(weights_MPS, values_MCK[:, : position + 1].float())
        if near is not None:
            read_MPK = near.read(read_MPK, weights_MPS)
        return read_MPK.view(1, -1)

    return read


def _bfloat16_row(
    joint: RowMap, out: RowMap, state: KeyValueState, heads: int, rotary: RotarySpec | None, scale: float | None
) -> DecodeStep:
    """The same over keys and values of bfloat16, in PyTorch's own attention, which adds up in float32."""
    _, kv_heads, capacity, width = state.keys.shape
    keys_1MCK, values_1MCK = state.keys, state.values
    turn = None if rotary is None else turn_of(rotary, width, capacity)

    def step(sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
        joint_JK = joint.of(x_1D).view(heads + 2 * kv_heads, width)
        turned_JK = joint_JK[: heads + kv_heads]
        if turn is not None:
            turned_JK = turn(turned_JK, position)
        keys_1MCK[0, :, position] = turned_JK[heads:]
        values_1MCK[0, :, position] = joint_JK[heads + kv_heads :]
        q_1MPK = turned_JK[:heads].view(1, kv_heads, heads // kv_heads, width).bfloat16()
        keys_1MSK, seen_1MSK = keys_1MCK[:, :, : position + 1], values_1MCK[:, :, : position + 1]
        read_1MPK = F.scaled_dot_product_attention(q_1MPK, keys_1MSK, seen_1MSK, scale=scale)
        return out.added(sum_1D, read_1MPK.reshape(1, -1))

    return step
