"""Multi-scale retention: linear attention with a fixed decay in each head (Sun et al., 2023, arXiv 2307.08621).

`S_t = gamma_n S_(t-1) + k_t v_t^T`, `o_t = q_t S_t`, `y_t = W_o (silu(W_g x_t) * norm(o_t))`, with rotary positions of
queries and keys and a norm for each head.

Shapes: `B` batch, `T` tokens of the chunk, `N` heads, `K` width of queries and keys, `V` width of values, `D` model
width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from linnet.core.spec import Count, Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, Place, RecurrentMixer
from linnet.layers.rotary import RotarySpec, check_heads, queries_keys_values
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.ops.retention import CHUNK, retention, retention_flops, retention_reference, retention_step
from linnet.ops.support import accumulation_dtype

SUM_BYTES = 4


class RetentionSpec(MixerSpec):
    """heads: number of heads. expand: width of values as a multiple of that of queries and keys, 2 as published.

    head_dim: width of queries and keys of a head (null: the model's width over `heads`). eps: of the norm of the heads.
    """

    kind: Literal["retention"] = "retention"
    heads: Extent
    head_dim: Extent | None = None
    expand: Count = 2
    rotary: RotarySpec | None = RotarySpec(pairing="adjacent")
    eps: PositiveFloat = 1e-6

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; with a head width, narrow values and without positions."""
        return [cls(heads=4), cls(heads=2, head_dim=6, expand=1, rotary=None)]

    def check(self, width: int) -> None:
        check_heads(self.heads, self.head_dim, width, self.rotary)

    def widths(self, d_model: int) -> tuple[int, int]:
        """The widths of keys and of values, of all heads together."""
        keys = self.heads * (self.head_dim or d_model // self.heads)
        return keys, self.expand * keys

    def build(self, place: Place) -> "MultiScaleRetention":
        return MultiScaleRetention(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Projections, sums and the norm; the state is one sum for each head, float32 in any precision of the model."""
        width, (keys, values) = place.width, self.widths(place.width)
        key, value = keys // self.heads, values // self.heads

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the joint projection, queries, keys, five tensors of values, two numbers of each norm;
            # decayed queries and keys if there are several chunks; decayed scores, sums before each chunk. Decays of
            # pairs, of the past and, where a chunk follows, of tokens up to the chunk's end are the same for all rows.
            last = tokens % CHUNK
            whole = tokens - last
            pairs, chunks = whole * CHUNK + last * last, -(-tokens // CHUNK)
            decays = (CHUNK * CHUNK if whole else 0) + last * last
            decays += last + (CHUNK if whole else 0) + (CHUNK if tokens > CHUNK else 0)
            decayed = (whole if tokens > CHUNK else 0) + (whole if whole > CHUNK else 0) + (last if whole else 0)
            per_token = 2 * (keys + values) + 2 * keys + 5 * values + 2 * self.heads
            per_sequence = tokens * per_token + decayed * keys + self.heads * (pairs + chunks * key * value)
            return sequences * per_sequence + self.heads * decays

        maps = linear_cost(width, 2 * (keys + values), False) + linear_cost(values, width, False)
        sums = Cost(
            parameters=2 * values,
            flops_by_length=(lambda tokens: self.heads * retention_flops(tokens, key, value),),
            state_fixed_bytes=SUM_BYTES * self.heads * key * value,
            activations_per_token=width,
            activation_memory=(activation_memory,),
        )
        return maps + sums


@dataclass
class RetentionState(State):
    """The sums `[B, N, K, V]`, float32 or wider, because long sums with slow decay lose precision otherwise."""

    sums: Tensor


class MultiScaleRetention(RecurrentMixer):
    """Retention with a decay rate, a norm and a gate for each head."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"retain": retention_reference}

    def __init__(self, spec: RetentionSpec, d_model: int) -> None:
        super().__init__()
        self.heads, self.rotary = spec.heads, spec.rotary
        keys, values = spec.widths(d_model)
        self.key_width, self.value_width = keys // spec.heads, values // spec.heads
        self.query_key_value_gate = FusedLinear(d_model, [keys, keys, values, values], bias=False)
        self.retain = retention
        self.norm = nn.GroupNorm(spec.heads, values, spec.eps)
        self.out = Linear(values, d_model, bias=False)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> RetentionState:
        shape = (batch, self.heads, self.key_width, self.value_width)
        return RetentionState(torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32)))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, RetentionState)
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        both_BTF, v_BTF, gate_BTF = self.query_key_value_gate(x_BTD).split([2 * keys, values, values], dim=-1)
        q_BNTK, k_BNTK, _ = queries_keys_values(both_BTF, (self.heads, self.heads, 0), self.rotary, layout)
        k_BNTK, v_BNTV = k_BNTK * self.key_width**-0.5, v_BTF.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(v_BNTV.dtype, torch.float32)
            q_BNTK, k_BNTK, v_BNTV = (x.to(wide) for x in (q_BNTK, k_BNTK, v_BNTV))
            log_gamma_N = log_rates(self.heads, v_BNTV.device, wide)
            if state is not None and v_BNTV.shape[2] == 1:
                q_BNK, k_BNK, v_BNV = (x[:, :, 0] for x in (q_BNTK, k_BNTK, v_BNTV))
                o_BNV, sums = retention_step(q_BNK, k_BNK, v_BNV, log_gamma_N, state.sums)
                o_BNTV = o_BNV[:, :, None]
            else:
                before = None if state is None else state.sums
                o_BNTV, sums = self.retain(q_BNTK, k_BNTK, v_BNTV, log_gamma_N, before)
            if state is not None:
                state.sums = sums.detach()
        normed_BTF = self.norm(o_BNTV.transpose(1, 2).flatten(0, 1).flatten(1).to(v_BTF.dtype)).view_as(v_BTF)
        out_BTD: Tensor = self.out(F.silu(gate_BTF) * normed_BTF)
        return out_BTD


def log_rates(heads: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """`log(1 - 2^(-5 - n))` for heads n = 0, 1, ... (section 2.2), `[N]`: lifetimes of 32, 64, 128, ... tokens."""
    wide = accumulation_dtype(device)
    return torch.log1p(-torch.exp2(-5.0 - torch.arange(heads, device=device, dtype=wide))).to(dtype)
