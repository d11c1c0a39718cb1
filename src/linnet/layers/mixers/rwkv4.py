"""Time mixing of RWKV version 4: a gated average of the past with exponential decay, for each channel separately.

Peng et al., 2023 (arXiv 2305.13048), section 3.1: `W_o (sigmoid(r_t) * wkv_t)`. Keys, values and receptances r come
from mixes of each token with the one before. The names are those of the published parameters.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels of the average.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, Place, RecurrentMixer
from linnet.layers.state import State
from linnet.layers.token_shift import LastTokenState, layers_left, rising
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import Linear
from linnet.nn.neighbors import token_mixes, token_shift_cost
from linnet.ops.linear_scan import segments
from linnet.ops.wkv import wkv, wkv_reference

SUM_BYTES = 4
MIN_LOG_RATE, MAX_LOG_RATE = -5.0, 3.0
"""The range of the logarithms of the initial decay rates."""
BONUS = math.log(0.3)


class Rwkv4Spec(MixerSpec):
    """channels: of the average (null: the model's width)."""

    kind: Literal["rwkv4"] = "rwkv4"
    channels: Extent | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; own channels."""
        return [cls(), cls(channels=24)]

    def build(self, place: Place) -> "Rwkv4":
        return Rwkv4(self, place)

    def cost(self, place: Place) -> Cost:
        """Three mixes, four maps, rates and bonuses; the state is the last token, an average and its weight."""
        width, channels = place.width, self.channels or place.width

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token key, value, average, gate and their product; an average and a weight for each segment, and
            # the last average; rates and shares.
            starts = 2 * len(list(segments((sequences, tokens, channels)))) + 1
            return sequences * channels * (5 * tokens + starts) + channels + 3 * width

        maps = linear_cost(width, channels, False).repeated(3) + linear_cost(channels, width, False)
        average = Cost(
            parameters=2 * channels,
            state_fixed_bytes=2 * SUM_BYTES * channels,
            activation_memory=(activation_memory,),
        )
        return token_shift_cost(width, 3) + maps + average


@dataclass
class Rwkv4State(LastTokenState):
    """The last token `[B, D]`; the average and the logarithm of its weight, `[B, E]` each, float32 or wider."""

    mean: Tensor
    log_weight: Tensor

    def forget(self) -> Self:
        """A copy before the first token: the weight is 0, its logarithm `-inf`."""
        empty = super().forget()
        empty.log_weight.fill_(-math.inf)
        return empty


class Rwkv4(RecurrentMixer):
    """Maps of three mixes of each token with the one before, the average, a gate, and an output projection."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"wkv": wkv_reference}

    def __init__(self, spec: Rwkv4Spec, place: Place) -> None:
        super().__init__()
        width, channels = place.width, spec.channels or place.width
        self.time_decay = nn.Parameter(torch.empty(channels))
        self.time_first = nn.Parameter(torch.empty(channels))
        self.time_mix_key = nn.Parameter(torch.empty(1, 1, width))
        self.time_mix_value = nn.Parameter(torch.empty(1, 1, width))
        self.time_mix_receptance = nn.Parameter(torch.empty(1, 1, width))
        self.key = nn.Linear(width, channels, bias=False)
        self.value = Linear(width, channels, bias=False)
        self.receptance = nn.Linear(width, channels, bias=False)
        self.wkv = wkv
        self.output = Linear(channels, width, bias=False)
        self.reset_parameters(place)

    @torch.no_grad()
    def reset_parameters(self, place: Place) -> None:
        """As published: rates from slow to fast, with more slow ones and smaller token shifts in later layers.

        The maps to keys and gates are 0, so all tokens have the same weight and gates are half open.
        """
        channels, width, left = len(self.time_decay), place.width, layers_left(place)
        depth = place.index / max(1, place.layers - 1)
        channel_E = torch.arange(channels)
        spread_E = (channel_E / max(1, channels - 1)) ** (0.7 + 1.3 * depth)
        self.time_decay.copy_(MIN_LOG_RATE + (MAX_LOG_RATE - MIN_LOG_RATE) * spread_E)
        self.time_first.copy_(BONUS + 0.5 * ((channel_E + 1) % 3 - 1))
        self.time_mix_key.copy_(rising(width) ** left)
        self.time_mix_value.copy_(rising(width) ** left + 0.3 * depth)
        self.time_mix_receptance.copy_(rising(width) ** (0.5 * left))
        for linear in (self.key, self.receptance):
            nn.init.zeros_(linear.weight)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> Rwkv4State:
        last_BD = torch.zeros(batch, self.time_mix_key.numel(), device=device, dtype=dtype)
        wide = torch.promote_types(dtype, torch.float32)
        mean_BE = torch.zeros(batch, len(self.time_decay), device=device, dtype=wide)
        return Rwkv4State(last_BD, mean_BE, torch.full_like(mean_BE, -math.inf))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, Rwkv4State)
        key_BTD, value_BTD, receptance_BTD = token_mixes(x_BTD, self._shares(), state)
        gate_BTE = self.receptance(receptance_BTD).sigmoid()
        k_BTE, v_BTE = self.key(key_BTD), self.value(value_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(k_BTE.dtype, torch.float32)
            rate_E, bonus_E = self.time_decay.to(wide).exp(), self.time_first.to(wide)
            if state is None:
                mean_BE = torch.zeros_like(k_BTE[:, 0], dtype=wide)
                log_weight_BE = torch.full_like(mean_BE, -math.inf)
            else:
                mean_BE, log_weight_BE = state.mean, state.log_weight
            wkv_BTE, *memory = self.wkv(k_BTE.to(wide), v_BTE.to(wide), rate_E, bonus_E, mean_BE, log_weight_BE)
            if state is not None:
                state.mean, state.log_weight = (part.detach() for part in memory)
        out_BTD: Tensor = self.output(gate_BTE * wkv_BTE.to(gate_BTE.dtype))
        return out_BTD

    def _shares(self) -> list[Tensor]:
        """The shares of the token before in the inputs of keys, values and receptances, `[D]` each."""
        return [1 - mix.flatten() for mix in (self.time_mix_key, self.time_mix_value, self.time_mix_receptance)]
