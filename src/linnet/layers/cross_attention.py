"""Cross-attention: every token of the decoder sees the whole output of the encoder (Vaswani et al., 2017).

Queries come from the decoder, keys and values from the encoder's memory (`BatchLayout.memory`). They are computed once,
in the first chunk of a stream; no later token adds to them.

Shapes: `B` batch, `T` tokens of the chunk, `S` tokens of the longest input, `N` query heads, `M` key-value heads, `P`
query heads per key-value head, `K` head width, `D` width of the decoder's layer, `E` width of the memory, `F` keys and
values of a token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place, Sublayer, SublayerSpec, Traits
from linnet.layers.rotary import check_heads
from linnet.layers.state import Contents, State, joined_rows
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.attention import full_attention, full_attention_reference


class CrossAttentionSpec(SublayerSpec):
    """`heads` query heads share `kv_heads` key-value heads (default: one each).

    bias: whether all maps have one. scale: the factor of scores (null: one over the root of the head width).
    """

    kind: Literal["cross_attention"] = "cross_attention"
    heads: Extent
    kv_heads: Extent | None = None
    head_dim: Extent | None = None
    bias: bool = False
    scale: PositiveFloat | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """Multi-head; grouped-query with biases, a head width and a scale."""
        return [cls(heads=4), cls(heads=4, kv_heads=2, head_dim=6, bias=True, scale=1.0)]

    def check(self, width: int) -> None:
        """Heads must divide the width, key-value heads must divide the heads."""
        check_heads(self.heads, self.head_dim, width, None)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads}: must divide heads, which is {self.heads}")

    def widths(self, width: int) -> tuple[int, int, int]:
        """Query heads, key-value heads, head width."""
        return self.heads, self.kv_heads or self.heads, self.head_dim or width // self.heads

    def build(self, place: Place) -> "CrossAttention":
        return CrossAttention(self, place)

    def cost(self, place: Place) -> Cost:
        """All parameters, and the work per token of the decoder; `memory_cost` is that per token of the input.

        Its input, the queries, the output of attention and a number for each query are kept for the backward pass.
        """
        heads, kv_heads, head_dim = self.widths(place.width)
        inner = heads * head_dim
        maps = linear_cost(place.width, inner, self.bias) + linear_cost(inner, place.width, self.bias)
        key_value = linear_cost(place.memory_width, kv_heads * head_dim, self.bias).repeated(2)
        activations = Cost(activations_per_token=place.width + 2 * inner + heads)
        return maps + replace(key_value, flops_per_token=0) + activations

    def memory_cost(self, place: Place) -> Cost:
        """The work and the state per token of the input: keys, values and a byte for the mask; no parameters.

        The memory itself is kept once for all layers, and is not included.
        """
        _, kv_heads, head_dim = self.widths(place.width)
        inner = kv_heads * head_dim
        key_value = linear_cost(place.memory_width, inner, self.bias).repeated(2)
        state = Cost(state_elements_per_token=2 * inner, state_bytes_per_token=1, activations_per_token=2 * inner)
        return replace(key_value, parameters=0, matrices=()) + state

    def flops_per_pair(self, place: Place) -> int:
        """FLOPs for each token of the decoder and token of the input: the score and the weighted sum."""
        heads, _, head_dim = self.widths(place.width)
        return 4 * heads * head_dim


@dataclass
class MemoryState(State):
    """Keys and values of the input, `[B, S, M, K]` each, and a mask, False at padding, `[B, S]`.

    S is 0 before the first chunk. The state does not change when the stream forgets its own tokens.
    """

    any_length: ClassVar[frozenset[str]] = frozenset({"keys", "values", "real"})

    keys: Tensor
    values: Tensor
    real: Tensor

    def join(self, others: Sequence[Self]) -> Self:
        """See `State`; shorter inputs are padded at the end."""
        fields = {name: [state.tensors()[name] for state in (self, *others)] for name in self.tensors()}
        return replace(self, **{name: joined_rows(tensors, 1) for name, tensors in fields.items()})

    def reserve(self, tokens: int) -> None:
        """At least two places: a graph with any number of them supports no single one."""
        missing = 2 - self.real.shape[1]
        if missing > 0:
            self.keys, self.values = (F.pad(x_BSMK, (0, 0, 0, 0, 0, missing)) for x_BSMK in (self.keys, self.values))
            self.real = F.pad(self.real, (0, missing))

    def forget(self) -> Self:
        """A copy: the input is not part of the stream's own past."""
        return self.fork()

    def observe(self, position: int, row: int = 0) -> Contents:
        return self.contents(position, int(self.real[row].sum()), ())

    def can_crop(self, length: int) -> bool:
        return True

    def crop(self, length: int) -> None:
        """Nothing to do: the input is not part of the stream's own past."""


class CrossAttention(Sublayer):
    """Attention over an encoder's memory; keys and values are computed by one projection."""

    traits = Traits(constant_state=True, window=1)
    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {"attend": full_attention_reference}

    def __init__(self, spec: CrossAttentionSpec, place: Place) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.widths(place.width)
        self.scale = spec.scale
        self.query = Linear(place.width, self.heads * self.head_dim, bias=spec.bias)
        self.key_value = FusedLinear(place.memory_width, [self.kv_heads * self.head_dim] * 2, spec.bias)
        self.attend = full_attention
        self.out = Linear(self.heads * self.head_dim, place.width, bias=spec.bias)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> MemoryState:
        """Keys and values of no tokens: the first chunk brings the memory, of any length."""
        empty_B0MK = torch.zeros(batch, 0, self.kv_heads, self.head_dim, device=device, dtype=dtype)
        return MemoryState(empty_B0MK, empty_B0MK.clone(), torch.zeros(batch, 0, device=device, dtype=torch.bool))

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        return True  # what a token sees does not depend on its position

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        """`[B, T, D] -> [B, T, D]`; reads the memory of the layout, which the state keeps, or else the state's."""
        assert state is None or isinstance(state, MemoryState)
        mask_BS: Tensor | None
        if layout.memory is None:
            assert state is not None and state.real.shape[1], "no memory, and none was read before"
            k_BSMK, v_BSMK, mask_BS = state.keys, state.values, state.real
        else:
            hidden_BSE, mask_BS = layout.memory.hidden_BSE, layout.memory.real_BS
            joint_BSF = self.key_value(hidden_BSE)
            k_BSMK, v_BSMK = joint_BSF.view(*hidden_BSE.shape[:2], 2, self.kv_heads, self.head_dim).unbind(2)
            if state is not None:
                state.keys, state.values = k_BSMK.to(state.keys.dtype), v_BSMK.to(state.values.dtype)
                everything_BS = torch.ones_like(joint_BSF[..., 0], dtype=torch.bool)
                state.real = everything_BS if mask_BS is None else mask_BS.clone()  # rows of a state move in place
        q_BTNK = self.query(x_BTD).view(*x_BTD.shape[:2], self.heads, self.head_dim)
        mask = None if mask_BS is None else mask_BS[:, None, None]
        out_BNTK = self.attend(q_BTNK.transpose(1, 2), k_BSMK.transpose(1, 2), v_BSMK.transpose(1, 2), mask, self.scale)
        out_BTD: Tensor = self.out(out_BNTK.transpose(1, 2).flatten(2))
        return out_BTD
