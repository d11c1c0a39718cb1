"""Gated linear attention: a matrix state with data-dependent decay of each key channel (Yang et al., arXiv 2312.06635).

`S_t = Diag(alpha_t) S_(t-1) + k_t v_t^T`, `o_t = S_t^T q_t / sqrt(K)`, `y_t = W_o (norm(o_t) * silu(W_g x_t))`, with
`alpha_t = sigmoid(W_2 W_1 x_t + b)^(1 / gate_logit_normalizer)` for each channel of the key (section 4.4).

Shapes: `B` batch, `T` tokens of the chunk, `N` heads, `K` width of queries and keys, `V` width of values, `E` keys and
`F` values of all heads together, `D` model width.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, MuonParameter, Place, RecurrentMixer, muon_parameter_of
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.norms import RmsNorm
from linnet.ops.delta_rule import chunk_length
from linnet.ops.gated_delta import gla, gla_flops, gla_reference

STATE_BYTES = 4


class GlaSpec(MixerSpec):
    """heads: number of heads, each with a matrix state.

    head_dim: width of queries and keys (null: half the model's width over `heads`, as published). value_dim: width of
    values (null: the model's width over `heads`). gate_rank: rank of the map to the decays. gate_logit_normalizer: a
    decay is this root of a sigmoid, so a larger value means slower decay. eps: of the norm of the heads.
    """

    kind: Literal["gla"] = "gla"
    heads: Extent
    head_dim: Extent | None = None
    value_dim: Extent | None = None
    gate_rank: Extent = 16
    gate_logit_normalizer: PositiveFloat = 16.0
    eps: PositiveFloat = 1e-5

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; other widths, and decay within a few tokens.

        `eps` is larger than published, because the norm of heads this narrow amplifies rounding.
        """
        return [
            cls(heads=2, eps=1e-3),
            cls(heads=3, head_dim=5, value_dim=2, gate_rank=3, gate_logit_normalizer=0.5, eps=1e-2),
        ]

    def check(self, width: int) -> None:
        for field, value, whole, name in (
            ("head_dim", self.head_dim, width / 2, "half the width"),
            ("value_dim", self.value_dim, width, "the width"),
        ):
            if value is None and whole % self.heads:
                raise ValueError(f"heads: {self.heads}: must divide {name}, {whole:g}, or {field} must be given")

    def widths(self, d_model: int) -> tuple[int, int]:
        """The widths of a key and of a value."""
        return self.head_dim or d_model // 2 // self.heads, self.value_dim or d_model // self.heads

    def build(self, place: Place) -> "Gla":
        return Gla(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, decays, matrices and the norm; the state is one matrix for each head."""
        width, (key, value) = place.width, self.widths(place.width)
        keys, values = self.heads * key, self.heads * value

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the joint projection, three tensors of decays, the input of the norm, gates, their product
            # and the norms; a state for each chunk.
            per_head = 2 * (key + value) + 3 * key + 3 * value + 1
            states = -(-tokens // chunk_length(tokens)) * self.heads * key * value
            return sequences * (tokens * (self.heads * per_head + self.gate_rank) + states)

        maps = linear_cost(width, 2 * (keys + values), False) + linear_cost(values, width, False)
        decays = linear_cost(width, self.gate_rank, False) + linear_cost(self.gate_rank, keys, True)
        rule = Cost(
            parameters=value,
            flops_by_length=(lambda tokens: self.heads * gla_flops(tokens, key, value),),
            state_fixed_bytes=STATE_BYTES * keys * value,
            activations_per_token=width,
            activation_memory=(activation_memory,),
        )
        return maps + decays + rule


@dataclass
class GlaState(State):
    """The matrices `[B, N, K, V]`, float32 or wider, because long sums with slow decay lose precision otherwise."""

    matrices: Tensor


class Gla(RecurrentMixer):
    """Linear attention with a decay for each channel of the key, a norm for each head and a gate."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"rule": gla_reference}

    def __init__(self, spec: GlaSpec, d_model: int) -> None:
        super().__init__()
        self.spec, (self.key_width, self.value_width) = spec, spec.widths(d_model)
        keys, values = spec.heads * self.key_width, spec.heads * self.value_width
        self.query_key_value_gate = FusedLinear(d_model, [keys, keys, values, values], bias=False)
        self.decay_in = Linear(d_model, spec.gate_rank, bias=False)
        self.decay_out = Linear(spec.gate_rank, keys, bias=True)
        self.rule = gla
        self.norm = RmsNorm(self.value_width, spec.eps)
        self.out = Linear(values, d_model, bias=False)

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """All maps except the two of low rank."""
        return (muon_parameter_of(linear) for linear in (self.query_key_value_gate, self.out))

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> GlaState:
        shape = (batch, self.spec.heads, self.key_width, self.value_width)
        return GlaState(torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32)))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, GlaState)
        q_BTE, k_BTE, v_BTF, gate_BTF = self.query_key_value_gate.split(self.query_key_value_gate(x_BTD))
        decay_BTE = self.decay_out(self.decay_in(x_BTD))
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(v_BTF.dtype, torch.float32)
            log_alpha_BTE = F.logsigmoid(decay_BTE.to(wide)) / self.spec.gate_logit_normalizer
            q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK = (
                torch.unflatten(x.to(wide), -1, (self.spec.heads, -1)).transpose(1, 2)
                for x in (q_BTE, k_BTE, v_BTF, log_alpha_BTE)
            )
            before = None if state is None else state.matrices
            o_BNTV, matrices = self.rule(q_BNTK, k_BNTK, v_BNTV, log_alpha_BNTK, before)
            if state is not None:
                state.matrices = matrices.detach()
        normed_BTNV = self.norm(o_BNTV.transpose(1, 2).contiguous().to(self.norm.weight.dtype))
        out_BTD: Tensor = self.out(normed_BTNV.flatten(2) * F.silu(gate_BTF))
        return out_BTD
