"""The time mixing of RWKV-7, "Goose": a generalized delta rule (Peng et al., 2025, arXiv 2503.14456, section 4).

Six mixes of each token with the one before (`nn.neighbors`) are mapped to receptances r, decays w, keys k, values v,
in-context learning rates a, and gates g. With `first_values` values are mixed with those of the first such layer.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `N` heads, `K` width of a head, `E` channels of all heads,
`S` mixes of tokens.
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
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, Place, RecurrentMixer
from linnet.layers.rotary import check_heads
from linnet.layers.state import State
from linnet.layers.token_shift import LastTokenState, layers_left, rising
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import Linear
from linnet.nn.neighbors import token_mixes, token_shift_cost
from linnet.ops.rwkv7 import CHUNK, rwkv7, rwkv7_flops, rwkv7_output, rwkv7_reference
from linnet.ops.support import recompute

STATE_BYTES = 4
FIRST_VALUES = "first_values"
"""The field of a description, and the name of the cross-layer value."""
MIXES = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}
"""The mixes of tokens, with the exponent by which the initial share of the token before falls over the channels."""
RANK_FACTORS = {"decay": 2.5, "rate": 2.5, "value": 1.7, "gate": 5.0}
"""The published rank of each low-rank map, relative to the root of the model's width."""


class Rwkv7Spec(MixerSpec):
    """heads: number of heads, each with a matrix state.

    head_dim: width of a head (null: the model's width over `heads`). decay_rank, rate_rank, value_rank, gate_rank:
    ranks of the maps to decays, rates, shares of the first values, and the gate (null: by the model's width, as
    published). first_values: whether values are mixed with those of the first layer that has them. eps: of the norm of
    each head.
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
        """Own ranks and an own width of heads; without first values, with the published ranks.

        `eps` is larger than published, because the norm of heads this narrow amplifies rounding.
        """
        return [
            cls(heads=2, head_dim=6, decay_rank=3, rate_rank=4, value_rank=2, gate_rank=5, eps=0.1),
            cls(heads=4, first_values=False, eps=0.1),
        ]

    def check(self, width: int) -> None:
        check_heads(self.heads, self.head_dim, width, None)
        if self.value_rank is not None and not self.first_values:
            raise ValueError(f"value_rank: {self.value_rank}: must be null with first_values: false")

    def widths(self, d_model: int) -> tuple[int, int]:
        """The widths of a head and of all heads."""
        head = self.head_dim or d_model // self.heads
        return head, self.heads * head

    def ranks(self, d_model: int) -> dict[str, int]:
        """The rank of each low-rank map; as published, a multiple of 32."""
        ranks = {}
        for name, factor in RANK_FACTORS.items():
            if self.first_values or name != "value":
                published = max(32, round(factor * math.sqrt(d_model) / 32) * 32)
                ranks[name] = getattr(self, f"{name}_rank") or published
        return ranks

    def cross_layer_values(self, width: int) -> dict[str, tuple[int, ...]]:
        return {FIRST_VALUES: (self.heads, self.widths(width)[0])} if self.first_values else {}

    @property
    def needs_cross_layer_gradients(self) -> bool:
        """True with first values: the gradient of their share needs them."""
        return self.first_values

    def build(self, place: Place) -> "Rwkv7":
        return Rwkv7(self, place)

    def cost(self, place: Place) -> Cost:
        """Maps of full and of low rank, mixes and the rule; the state is a token and one matrix for each head."""
        width, (head, channels) = place.width, self.widths(place.width)
        ranks = self.ranks(width)

        def activation_memory(sequences: int, tokens: int) -> int:
            # The state before each chunk, and the outputs of the padding of the last chunk.
            chunk = min(CHUNK, tokens)
            chunks = -(-tokens // chunk)
            return sequences * channels * (chunks * head + chunks * chunk - tokens)

        maps = linear_cost(width, channels, False).repeated(3) + linear_cost(channels, width, False)
        low_rank = sum(ranks.values()) * (width + channels)
        rule = Cost(
            parameters=low_rank + (len(ranks) - 1 + 5) * channels,
            flops_per_token=2 * low_rank,
            flops_by_length=(lambda tokens: rwkv7_flops(tokens, self.heads, head, head),),
            state_fixed_bytes=STATE_BYTES * channels * head,
            activations_per_token=sum(ranks.values()) + (10 if self.first_values else 8) * channels,
            activation_memory=(activation_memory,),
        )
        return maps + token_shift_cost(width, len(MIXES)) + rule


@dataclass
class Rwkv7State(LastTokenState):
    """The last token, and the matrices `[B, N, K, K]`, keys as rows, float32 or wider."""

    matrices: Tensor


class LowRank(nn.Module):
    """`up f(down x) + bias`, initially its bias. Its parameters are no linear layers, so they have no weight decay."""

    def __init__(self, inputs: int, rank: int, outputs: int, function: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.function = function
        self.down = nn.Parameter(torch.zeros(rank, inputs))
        self.up = nn.Parameter(torch.empty(outputs, rank))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.orthogonal_(self.up, gain=0.1 * max(1.0, rank / outputs) ** 0.5)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """`[B, T, D] -> [B, T, E]`."""
        return F.linear(self.function(F.linear(x_BTD, self.down)), self.up, self.bias)


class Rwkv7(RecurrentMixer):
    """Token shift, the generalized delta rule, a norm for each head, a bonus for the current token, and a gate."""

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
        """Initialize everything except the output projection as in the authors' training code, by the layer's index."""
        powers_S1 = layers_left(place) * torch.tensor(list(MIXES.values()))[:, None]
        with torch.no_grad():
            self.shares.copy_(1 - rising(place.width)[0] ** powers_S1)
        bound = place.width**-0.5
        for linear, scale in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -scale * bound, scale * bound)
        nn.init.constant_(self.mixed, 1.02)
        nn.init.constant_(self.bonus, -0.04)
        nn.init.constant_(self.norm.weight, ((place.index + 1) / place.layers) ** 0.7)
        # Biases rise over all channels, and over those of each head; depth is 0 in the first layer and 1 in the last.
        depth = place.index / max(1, place.layers - 1)
        slope_E = torch.linspace(0, 1, len(self.erased))
        within_K = torch.linspace(-1, 1, self.head_width) if self.head_width > 1 else torch.zeros(1)
        zigzag_E = (within_K * within_K.abs()).repeat(self.heads)
        biases = [
            (self.decay, 6 * slope_E ** (1 + depth**0.3) - 5.5 + 2.5 * zigzag_E),
            (self.rate, 0.3 * zigzag_E + 0.4 * slope_E - 0.39),
            (self.first_share, 0.93 - 0.4 * slope_E),
        ]
        with torch.no_grad():
            self.erased.copy_(0.76 - 0.1 * slope_E)
            for low_rank, bias_E in biases:
                if low_rank is not None and low_rank.bias is not None:
                    low_rank.bias.copy_(bias_E)

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
        v_BTE = self.value(for_v)
        if self.first_share is not None:
            v_BTE = torch.lerp(v_BTE, self._first_values(v_BTE, layout), self.first_share(for_v).sigmoid())
        a_BTE, gate_BTE = self.rate(for_a), self.gate(for_g)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(r_BTE.dtype, torch.float32)
            r_BTNK, w_BTNK, k_BTNK, v_BTNK, a_BTNK, gate_BTNK = (
                torch.unflatten(x.to(wide), -1, (self.heads, -1)) for x in (r_BTE, w_BTE, k_BTE, v_BTE, a_BTE, gate_BTE)
            )
            parameters = self.erased, self.mixed, self.bonus, self.norm.weight, self.norm.bias
            erased_NK, mixed_NK, *others = (torch.unflatten(x.to(wide), 0, (self.heads, -1)) for x in parameters)
            r, w, k, v, a = (x.transpose(1, 2) for x in (r_BTNK, w_BTNK, k_BTNK, v_BTNK, a_BTNK))
            o_BNTK, matrices = self.rule(r, w, k, v, a, erased_NK, mixed_NK, None if state is None else state.matrices)
            if state is not None:
                state.matrices = matrices.detach()
            read = o_BNTK.transpose(1, 2), r_BTNK, k_BTNK, v_BTNK, a_BTNK, gate_BTNK
            out_BTNK = recompute(partial(rwkv7_output, eps=self.norm.eps), *read, mixed_NK, *others)
        out_BTD: Tensor = self.out(out_BTNK.flatten(2).to(gate_BTE.dtype))
        return out_BTD

    def _first_values(self, v_BTE: Tensor, layout: BatchLayout) -> Tensor:
        """The values that an earlier layer has saved, `[B, T, E]`; in the first layer its own, which it saves."""
        first_BTNK = layout.cross_layer_value(FIRST_VALUES)
        if first_BTNK is None:
            layout.save_cross_layer_value(FIRST_VALUES, torch.unflatten(v_BTE, -1, (self.heads, -1)))
            return v_BTE
        return first_BTNK.flatten(2)
