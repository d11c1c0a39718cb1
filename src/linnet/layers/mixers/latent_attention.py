"""Multi-head latent attention: keys and values of all heads are projected from one small latent for each token.

DeepSeek-V2 (arXiv 2405.04434, 2.1), DeepSeek-V3 (arXiv 2412.19437, 2.1.1). Positions are in a rotary key that all heads
share, beside the keys from the latent.

Shapes: `B` batch, `T` tokens of the chunk, `S` tokens so far, `D` model width, `N` heads, `P` width of the rotary part
of queries and keys, `C` width of the other part, `K = P + C`, `V` width of a value, `Q` rank of the queries' latent,
`R` rank of the latent of keys and values, `E = P + R`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, Self

import torch
from pydantic import PositiveFloat
from torch import Tensor

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Mixer, MixerSpec, Place, Traits
from linnet.layers.rotary import RotarySpec, check_heads
from linnet.layers.state import State, write_chunk
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.norms import RmsNorm, normed
from linnet.ops.attention import (
    KeyRange,
    absorbed_is_cheaper,
    attention,
    attention_reference,
    latent_attention,
    latent_attention_reference,
)
from linnet.ops.blocked_attention import blocked_is_faster


class LatentAttentionSpec(MixerSpec):
    """heads: number of heads. kv_rank: rank of the latent of keys and values.

    head_dim: width of queries and keys without their rotary part (null: the model's width over `heads`). rotary_dim:
    width of the rotary part. value_dim: width of a value (null: `head_dim`). q_rank: rank of a latent of queries (null:
    no latent). scale: a factor of the scores (null: one over the root of `head_dim + rotary_dim`). eps: of the norms of
    the latents.
    """

    kind: Literal["latent_attention"] = "latent_attention"
    heads: Extent
    kv_rank: Extent
    rotary_dim: Extent
    head_dim: Extent | None = None
    value_dim: Extent | None = None
    q_rank: Extent | None = None
    rotary: RotarySpec = RotarySpec()
    scale: PositiveFloat | None = None
    eps: PositiveFloat = 1e-6

    @classmethod
    def examples(cls) -> list[Self]:
        """As in DeepSeek-V3, with a latent of queries and adjacent pairs; without one; values as wide as keys."""
        return [
            cls(heads=4, kv_rank=6, rotary_dim=2, q_rank=5, rotary=RotarySpec(pairing="adjacent")),
            cls(heads=2, kv_rank=5, rotary_dim=4, head_dim=3, value_dim=6, scale=0.7, eps=1e-4),
            cls(heads=2, kv_rank=12, rotary_dim=4, head_dim=2, value_dim=6),
        ]

    def check(self, width: int) -> None:
        check_heads(self.heads, self.head_dim, width, None)
        if self.rotary_dim % 2:
            raise ValueError(f"rotary_dim: {self.rotary_dim}: must be even")
        if self.rotary.fraction != 1:
            raise ValueError(f"rotary.fraction: {self.rotary.fraction}: must be 1; set rotary_dim instead")

    def widths(self, d_model: int) -> tuple[int, int]:
        """The widths of a key without its rotary part, and of a value."""
        content = self.head_dim or d_model // self.heads
        return content, self.value_dim or content

    def build(self, place: Place) -> "LatentAttention":
        return LatentAttention(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps down and up, scores and weighted sums; the state is the latent and the rotary key of each token."""
        width, (content, value), rank = place.width, self.widths(place.width), self.kv_rank
        key, entry = self.rotary_dim + content, self.rotary_dim + self.kv_rank
        queries = self.heads * key

        def activation_memory(sequences: int, tokens: int) -> int:
            # Queries, keys, values and outputs. PyTorch's kernel needs all in one width, from which the output is cut,
            # and keeps a number for each query.
            if blocked_is_faster(tokens, torch.float32, key != value):
                return sequences * tokens * self.heads * 2 * (key + value)
            return sequences * tokens * self.heads * (4 * max(key, value) + 1 + value * (key > value))

        down = linear_cost(width, (self.q_rank or queries) + entry, False)
        up = linear_cost(rank, self.heads * content, False) + linear_cost(rank, self.heads * value, False)
        if self.q_rank:
            up += linear_cost(self.q_rank, queries, False)
        out = linear_cost(self.heads * value, width, False)
        read = Cost(
            parameters=rank + (self.q_rank or 0),
            flops_per_pair=2 * (queries + self.heads * value),
            state_elements_per_token=entry,
            activations_per_token=width + rank + 1 + (self.q_rank + 1 if self.q_rank else 0),
            activation_memory=(activation_memory,),
        )
        return down + up + out + read


@dataclass
class LatentState(State):
    """The entries of the tokens, `[B, capacity, E]`: the rotated rotary key, then the normalized latent."""

    room: ClassVar[Mapping[str, int]] = MappingProxyType({"entries": 1})

    entries: Tensor

    def forget(self) -> Self:
        """A copy: entries after a row's position are overwritten before they are read."""
        return self.fork()

    def can_crop(self, length: int) -> bool:
        return True

    def crop(self, length: int) -> None:
        """Do nothing: entries after a row's position are overwritten before they are read."""


class LatentAttention(Mixer):
    """Causal self-attention whose state is a latent for each token."""

    references: ClassVar[Mapping[str, Callable[..., Tensor]]] = {
        "attend": attention_reference,
        "attend_past": latent_attention_reference,
    }

    def __init__(self, spec: LatentAttentionSpec, d_model: int) -> None:
        super().__init__()
        self.traits = Traits()
        self.spec, (self.content, self.value) = spec, spec.widths(d_model)
        self.width = spec.rotary_dim + self.content
        self.scale = self.width**-0.5 if spec.scale is None else spec.scale
        queries = spec.heads * self.width
        self.down = FusedLinear(d_model, [spec.q_rank or queries, spec.rotary_dim, spec.kv_rank], bias=False)
        self.query_norm = RmsNorm(spec.q_rank, spec.eps) if spec.q_rank else None
        self.query_up = Linear(spec.q_rank, queries, bias=False) if spec.q_rank else None
        self.latent_norm = RmsNorm(spec.kv_rank, spec.eps)
        self.key_up = Linear(spec.kv_rank, spec.heads * self.content, bias=False)
        self.value_up = Linear(spec.kv_rank, spec.heads * self.value, bias=False)
        self.attend, self.attend_past = attention, latent_attention
        self.out = Linear(spec.heads * self.value, d_model, bias=False)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> LatentState:
        entry = self.spec.rotary_dim + self.spec.kv_rank
        return LatentState(torch.zeros(batch, capacity, entry, device=device, dtype=dtype))

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        return True

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        query_BTQ, rotary_BTP, latent_BTR = self.down.split(self.down(x_BTD))
        if self.query_norm is not None and self.query_up is not None:
            query_BTQ = self.query_up(normed(self.query_norm, query_BTQ))
        q_BTNK = torch.unflatten(query_BTQ, 2, (self.spec.heads, self.width))
        q_BNTK = self.spec.rotary.rotated(q_BTNK, layout, self.spec.rotary_dim).transpose(1, 2)
        rotary_BTP = self.spec.rotary.rotated(rotary_BTP.unsqueeze(2), layout).squeeze(2)
        latent_BTR = normed(self.latent_norm, latent_BTR)
        if state is None:
            out_BNTV = self._read(q_BNTK, rotary_BTP, latent_BTR, layout.padding_B(x_BTD.device))
        else:
            assert isinstance(state, LatentState)
            state.entries = write_chunk(state.entries, torch.cat([rotary_BTP, latent_BTR], dim=2), layout)
            out_BNTV = self._read_with_past(q_BNTK, state.entries[:, : layout.end(x_BTD.shape[1])], layout)
        out_BTD: Tensor = self.out(out_BNTV.transpose(1, 2).flatten(2))
        return out_BTD

    def _read(
        self,
        q_BNTK: Tensor,
        rotary_BSP: Tensor,
        latent_BSR: Tensor,
        padding_B: Tensor | None = None,
        last_BT: Tensor | None = None,
    ) -> Tensor:
        """Attention over the keys and values of all heads, projected from the latents: `[B, N, T, V]`."""
        heads = self.spec.heads
        content_BSNC = torch.unflatten(self.key_up(latent_BSR), 2, (heads, self.content))
        rotary_BSNP = rotary_BSP.to(content_BSNC.dtype).unsqueeze(2).expand(-1, -1, heads, -1)
        k_BNSK = torch.cat([rotary_BSNP, content_BSNC], dim=3).transpose(1, 2)
        v_BNSV = torch.unflatten(self.value_up(latent_BSR), 2, (heads, self.value)).transpose(1, 2)
        return self.attend(q_BNTK, k_BNSK, v_BNSV, KeyRange(padding_B, last_BT=last_BT), self.scale)

    def _read_with_past(self, q_BNTK: Tensor, entries_BSE: Tensor, layout: BatchLayout) -> Tensor:
        """Attention over all entries: on the latents, or on projected keys and values where that is cheaper."""
        length, rank = q_BNTK.shape[2], self.spec.kv_rank
        last_BT = None if layout.uniform else layout.positions(length, q_BNTK.device)
        if layout.in_graph:  # it cannot compare the costs
            absorbing = length == 1
        else:
            absorbing = length < entries_BSE.shape[1] and absorbed_is_cheaper(length, rank, self.content, self.value)
        if absorbing:
            return self.attend_past(q_BNTK, entries_BSE, *self._up(), self.scale, last_BT)
        rotary_BSP, latent_BSR = torch.split(entries_BSE, [self.spec.rotary_dim, rank], dim=2)
        return self._read(q_BNTK, rotary_BSP, latent_BSR, None, last_BT)

    def _up(self) -> tuple[Tensor, Tensor]:
        """The maps of each head from a latent to a key `[N, C, R]` and to a value `[N, V, R]`."""
        key, value = (torch.unflatten(up.weight, 0, (self.spec.heads, -1)) for up in (self.key_up, self.value_up))
        return key, value
