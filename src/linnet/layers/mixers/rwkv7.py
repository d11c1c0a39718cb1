"""The time mixing of RWKV-7, "Goose": a generalized delta rule (Peng et al., 2025, arXiv 2503.14456, section 4).

Tokens mixed with the ones before (`nn.token_shift`) in six ways: to what is read r, decays w, keys k, values v, rates a
and a gate g. With `first_values` a share of a layer's values is taken from the first such layer of the model.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `N` heads, `K` width of a head, `E` of all heads together,
`R` rank of a map, `S` mixes of tokens.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import DecodeStep, MixerSpec, Place, RecurrentMixer
from linnet.layers.rotary import check_heads
from linnet.layers.state import State
from linnet.layers.token_shift import LastTokenState, layers_left, rising, row_mixes
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import Linear
from linnet.nn.neighbors import token_mixes, token_shift_cost
from linnet.nn.packed_linear import gemv, gemv_of
from linnet.ops.rwkv7 import chunk_length, rwkv7, rwkv7_flops, rwkv7_output, rwkv7_reference, rwkv7_row
from linnet.ops.support import recompute

STATE_BYTES = 4
FIRST_VALUES = "first_values"
"""The field of a description, and the name under which values are left."""
MIXES = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}
"""What tokens are mixed for, and how fast the share of the token before falls with the channel at the start."""


class Rwkv7Spec(MixerSpec):
    """`heads` heads, each with a matrix of its own.

    head_dim: width of a head (null: the width over `heads`). decay_rank, rate_rank, value_rank, gate_rank: widths
    within the maps of low rank to decays, rates, shares of the first values, and the gate (null: by the model's width,
    as published). first_values: whether values are mixed with those of the first layer that has them. eps: of the norm
    of each head.
    """

    kind: Literal["rwkv7"] = "rwkv7"
    heads: Extent
    head_dim: Extent | None = None
    decay_rank: Extent | None = None
    rate_rank: Extent | None = None
    value_rank: Extent | None = None
    gate_rank: Extent | None = None
    first_values: bool = True
    eps: PositiveFloat = 6.4e-4

    @classmethod
    def examples(cls) -> list[Self]:
        """Ranks and a width of heads of their own; values that are a layer's own alone, ranks as published.

        `eps` is larger than published: heads so narrow often read next to nothing, whose roundings the norm blows up.
        """
        return [
            cls(heads=2, head_dim=6, decay_rank=3, rate_rank=4, value_rank=2, gate_rank=5, eps=0.1),
            cls(heads=4, first_values=False, eps=0.1),
        ]

    def check(self, width: int) -> None:
        """Heads must divide the width, unless theirs is given; no rank is given of a map that there is not."""
        check_heads(self.heads, self.head_dim, width, None)
        if self.value_rank is not None and not self.first_values:
            raise ValueError(f"value_rank: {self.value_rank}: is that of first_values, which are off; leave it out")

    def widths(self, d_model: int) -> tuple[int, int]:
        """Of a head and of all of them."""
        head = self.head_dim or d_model // self.heads
        return head, self.heads * head

    def ranks(self, d_model: int) -> dict[str, int]:
        """Of each map of low rank."""
        given = {"decay": self.decay_rank, "rate": self.rate_rank, "value": self.value_rank, "gate": self.gate_rank}
        published = {"decay": 2.5, "rate": 2.5, "value": 1.7, "gate": 5.0}
        ranks = {name: rank or _rank(published[name], d_model) for name, rank in given.items()}
        return {name: rank for name, rank in ranks.items() if self.first_values or name != "value"}

    def cross_layer_values(self, width: int) -> dict[str, tuple[int, ...]]:
        """The first values."""
        return {FIRST_VALUES: (self.heads, self.widths(width)[0])} if self.first_values else {}

    @property
    def needs_cross_layer_gradients(self) -> bool:
        """The gradient of the share needs them; who leaves them keeps them anyway."""
        return self.first_values

    def build(self, place: Place) -> "Rwkv7":
        return Rwkv7(self, place)

    def cost(self, place: Place) -> Cost:
        """Maps of full and of low rank, mixes and the rule; a token and one matrix for each head as state."""
        width, (head, channels) = place.width, self.widths(place.width)
        maps = linear_cost(width, channels, False).repeated(3) + linear_cost(channels, width, False)
        ranks = self.ranks(width)
        pairs = sum(ranks.values()) * (width + channels)
        own = Cost(
            parameters=pairs + (len(ranks) - 1 + 5) * channels,
            flops_per_token=2 * pairs,
            flops_by_length=(partial(self._flops, head),),
            state_fixed_bytes=STATE_BYTES * channels * head,
            activations_per_token=sum(ranks.values()) + (10 if self.first_values else 8) * channels,
            activation_memory=(partial(self._kept, head),),
        )
        return maps + token_shift_cost(width, len(MIXES)) + own

    def _flops(self, head: int, tokens: int) -> int:
        return rwkv7_flops(tokens, self.heads, head, head)

    def _kept(self, head: int, sequences: int, tokens: int) -> int:
        """The state before each chunk, and what is read behind the last token of the last one."""
        chunk = chunk_length(tokens)
        chunks = -(-tokens // chunk)
        return sequences * self.heads * head * (chunks * head + chunks * chunk - tokens)


def _rank(factor: float, d_model: int) -> int:
    """Of a map of low rank, as published: a multiple of 32."""
    return max(32, round(factor * math.sqrt(d_model) / 32) * 32)


@dataclass
class Rwkv7State(LastTokenState):
    """And the matrices `[B, N, K, K]`, keys as rows, float32 or wider."""

    matrices: Tensor


class LowRank(nn.Module):
    """`up f(down x) + bias`, which starts as its bias and decays towards nothing: no linear map to an optimizer."""

    def __init__(self, inputs: int, rank: int, outputs: int, function: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.function = function
        self.down = nn.Parameter(torch.zeros(rank, inputs))
        self.up = nn.Parameter(torch.empty(outputs, rank))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.orthogonal_(self.up, gain=0.1 * max(1.0, rank / outputs) ** 0.5)

    def start_at(self, values_E: Tensor) -> None:
        """What it gives at first, whatever it reads."""
        assert self.bias is not None
        self.bias.copy_(values_E)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, E]`."""
        return F.linear(self.function(F.linear(x_BTD, self.down)), self.up, self.bias)

    def row(self) -> Callable[[Tensor], Tensor]:
        """The same of a row, `[1, D] -> [1, E]`; without gradients."""
        down, up = gemv(self.down.detach(), None), gemv(self.up.detach(), self.bias)
        return lambda x_1D: up.of(self.function(down.of(x_1D)))


class Rwkv7(RecurrentMixer):
    """Token shift, the generalized delta rule, a norm of each head, a bonus for the token itself, a gate."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"rule": rwkv7_reference}

    def __init__(self, spec: Rwkv7Spec, place: Place) -> None:
        super().__init__()
        width, ranks = place.width, spec.ranks(place.width)
        self.heads, (self.head_width, channels) = spec.heads, spec.widths(width)
        self.shares = nn.Parameter(torch.empty(len(MIXES), width))
        self.receptance, self.key, self.value = (nn.Linear(width, channels, bias=False) for _ in range(3))
        self.decay = LowRank(width, ranks["decay"], channels, torch.tanh, bias=True)
        self.rate = LowRank(width, ranks["rate"], channels, nn.Identity(), bias=True)
        self.gate = LowRank(width, ranks["gate"], channels, torch.sigmoid, bias=False)
        self.first_share = (
            LowRank(width, ranks["value"], channels, nn.Identity(), bias=True) if spec.first_values else None
        )
        self.erased, self.mixed, self.bonus = (nn.Parameter(torch.empty(channels)) for _ in range(3))
        self.norm = nn.GroupNorm(spec.heads, channels, spec.eps)
        self.rule = rwkv7
        self.out = Linear(channels, width, bias=False)
        self.reset_parameters(place)

    def reset_parameters(self, place: Place) -> None:
        """As in the authors' training code, by the number of the layer; all but the map behind the heads."""
        powers_S1 = layers_left(place) * torch.tensor(list(MIXES.values()))[:, None]
        with torch.no_grad():
            self.shares.copy_(1 - rising(place.width)[0] ** powers_S1)
        bound = place.width**-0.5
        for linear, scale in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -scale * bound, scale * bound)
        nn.init.constant_(self.mixed, 1.02)
        nn.init.constant_(self.bonus, -0.04)
        nn.init.constant_(self.norm.weight, ((place.index + 1) / place.layers) ** 0.7)
        self._spread_over_channels(place.index / max(1, place.layers - 1))

    @torch.no_grad()
    def _spread_over_channels(self, later: float) -> None:
        """Logits, and what keys are multiplied by; `later`: 0 in the first layer, 1 in the last."""
        slope_E = torch.linspace(0, 1, len(self.erased))
        within_K = torch.linspace(-1, 1, self.head_width) if self.head_width > 1 else torch.zeros(1)
        zigzag_E = (within_K * within_K.abs()).repeat(self.heads)
        self.decay.start_at(6 * slope_E ** (1 + later**0.3) - 5.5 + 2.5 * zigzag_E)
        self.rate.start_at(0.3 * zigzag_E + 0.4 * slope_E - 0.39)
        self.erased.copy_(0.76 - 0.1 * slope_E)
        if self.first_share is not None:
            self.first_share.start_at(0.93 - 0.4 * slope_E)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> Rwkv7State:
        last = torch.zeros(batch, self.shares.shape[1], device=device, dtype=dtype)
        shape = (batch, self.heads, self.head_width, self.head_width)
        wide = torch.promote_types(dtype, torch.float32)
        return Rwkv7State(last, torch.zeros(shape, device=device, dtype=wide))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, Rwkv7State)
        for_r, for_w, for_k, for_v, for_a, for_g = token_mixes(x_BTD, self.shares.unbind(), state)
        r_BTE, w_BTE, k_BTE = self.receptance(for_r), self.decay(for_w), self.key(for_k)
        v_BTE, a_BTE, gate_BTE = self._values(for_v, layout), self.rate(for_a), self.gate(for_g)
        with torch.autocast(x_BTD.device.type, enabled=False):
            out_BTE = self._read([self._heads(x) for x in (r_BTE, w_BTE, k_BTE, v_BTE, a_BTE, gate_BTE)], state)
        out_BTD: Tensor = self.out(out_BTE.to(gate_BTE.dtype))
        return out_BTD

    def _values(self, x_BTD: Tensor, layout: BatchLayout) -> Tensor:
        """Mixed with those that an earlier layer left, `[B, T, E]`; leaves them where none did."""
        v_BTE: Tensor = self.value(x_BTD)
        if self.first_share is None:
            return v_BTE
        return torch.lerp(v_BTE, self._first(v_BTE, layout), self.first_share(x_BTD).sigmoid())

    def _first(self, v_BTE: Tensor, layout: BatchLayout) -> Tensor:
        """The values that an earlier layer left, `[B, T, E]`, or where none did its own, which it leaves."""
        first_BTNK = layout.cross_layer_value(FIRST_VALUES)
        if first_BTNK is None:
            layout.save_cross_layer_value(FIRST_VALUES, torch.unflatten(v_BTE, -1, (self.heads, -1)))
            return v_BTE
        return first_BTNK.flatten(2)

    def _heads(self, x_BTE: Tensor) -> Tensor:
        """`[B, T, N, K]`, in float32 or wider."""
        return torch.unflatten(x_BTE.to(torch.promote_types(x_BTE.dtype, torch.float32)), -1, (self.heads, -1))

    def _read(self, tensors: list[Tensor], state: Rwkv7State | None) -> Tensor:
        """What comes of what each token reads, `[B, T, E]`, in float32 or wider; advances the state."""
        r_BTNK, _, k_BTNK, v_BTNK, a_BTNK, gate_BTNK = tensors
        parameters = self.erased, self.mixed, self.bonus, self.norm.weight, self.norm.bias
        erased_NK, mixed_NK, *others = (torch.unflatten(x.to(r_BTNK.dtype), 0, (self.heads, -1)) for x in parameters)
        r, w, k, v, a = (x.transpose(1, 2) for x in tensors[:5])
        o_BNTK, matrices = self.rule(r, w, k, v, a, erased_NK, mixed_NK, None if state is None else state.matrices)
        if state is not None:
            state.matrices = matrices.detach()
        read = o_BNTK.transpose(1, 2), r_BTNK, k_BTNK, v_BTNK, a_BTNK, gate_BTNK
        return recompute(partial(rwkv7_output, eps=self.norm.eps), *read, mixed_NK, *others).flatten(2)

    def decode_step(self, state: State | None, record: AuxiliaryOutputs | None = None) -> DecodeStep | None:
        receptance, key, value, out = map(gemv_of, (self.receptance, self.key, self.value, self.out))
        if receptance is None or key is None or value is None or out is None:
            return None
        assert isinstance(state, Rwkv7State)
        mixes, matrices_NKK, layout = (
            row_mixes(state, self.shares.unbind()),
            state.matrices[0],
            BatchLayout(record=record),
        )
        decay, rate, gate = self.decay.row(), self.rate.row(), self.gate.row()
        share = None if self.first_share is None else self.first_share.row()
        parameters = self.erased, self.mixed, self.bonus, self.norm.weight, self.norm.bias
        erased_NK, mixed_NK, bonus_NK, *norm = (torch.unflatten(x.detach(), 0, (self.heads, -1)) for x in parameters)
        output = partial(rwkv7_output, eps=self.norm.eps)

        def step(sum_1D: Tensor, x_1D: Tensor, position: int) -> Tensor:
            for_r, for_w, for_k, for_v, for_a, for_g = mixes(x_1D)
            v_1E = value.of(for_v)
            if share is not None:
                v_1E = torch.lerp(v_1E, self._first(v_1E[None], layout)[0], share(for_v).sigmoid_())
            rows = receptance.of(for_r), decay(for_w), key.of(for_k), v_1E, rate(for_a), gate(for_g)
            r, w, k, v, a, g = (row_1E.view(self.heads, -1) for row_1E in rows)
            o_NK = rwkv7_row(matrices_NKK, r, w, k, v, a, erased_NK, mixed_NK)
            read_NK = output(o_NK, r, k, v, a, g, mixed_NK, bonus_NK, *norm)
            return out.added(sum_1D, read_NK.view(1, -1))

        return step
