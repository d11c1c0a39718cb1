"""The sLSTM of xLSTM: a recurrent network with exponential gates (Beck et al., 2024, arXiv 2405.04517, section 2.2).

As in its residual block with the projection behind it (appendix A.4): a short convolution before the gates of input and
forgetting, a norm for each head; a map back behind it. The maps from the token are full; the paper's are blocks of it.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels, `N` heads, `P` channels of one, `G` logits of
its gates, `W` inputs of the convolution.
"""

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
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.linear import FusedLinear, Linear
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.nn.norms import HeadLayerNorm
from linnet.ops.xlstm import GATES, Memory, empty_memory, slstm, slstm_reference

STATE_BYTES = 4
MOST_FORGOTTEN, SPAN = 5.0, 12.0
"""Biases of the forget gates start from 5 to -7 over the channels of a head."""
FIRST_BEND, MORE_BEND = 0.3, 1.3
"""By which power of the channel, in the first layer; and how much more in the last."""


class SlstmSpec(MixerSpec):
    """`heads` heads whose channels mix. channels: of all heads (null: the model's width).

    conv: tokens that the gates of input and forgetting see (null: no convolution). eps: of the norm behind the heads.
    """

    kind: Literal["slstm"] = "slstm"
    heads: Extent
    channels: Extent | None = None
    conv: Extent | None = 4
    eps: PositiveFloat = 1e-5

    @classmethod
    def examples(cls) -> list[Self]:
        """As published, but for a larger `eps`: so narrow heads blow roundings up; channels of its own."""
        return [cls(heads=2, eps=1e-2), cls(heads=3, channels=12, conv=None, eps=1e-2)]

    def check(self, width: int) -> None:
        """Heads must divide the channels."""
        channels = self.channels or width
        if channels % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the {channels} channels")

    def build(self, place: Place) -> "Slstm":
        return Slstm(self, place)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution, what heads mix and the norm; inputs of the convolution and four numbers of a channel as
        state.
        """
        width, channels = place.width, self.channels or place.width
        maps = linear_cost(width, GATES * channels, True) + linear_cost(channels, width, False)
        if self.conv is not None:
            maps += convolution_cost(width, self.conv, True)
        recurrence = Cost(
            parameters=GATES * channels * (channels // self.heads) + channels,
            flops_per_token=2 * GATES * channels * (channels // self.heads),
            state_fixed_bytes=STATE_BYTES * 4 * channels,
        )
        return (
            maps
            + recurrence
            + Cost(activations_per_token=width, activation_memory=(partial(self._kept, width, channels),))
        )

    def _kept(self, width: int, channels: int, sequences: int, tokens: int) -> int:
        """Of a token inputs, outputs and their silu of the convolution, four logits, c, n, m, h, two forms of the
        norm; of a sequence what is before it.
        """
        conv = 0 if self.conv is None else width * (3 * tokens + self.conv - 1)
        return sequences * (conv + tokens * (10 * channels + 2 * self.heads) + 4 * channels)


@dataclass
class SlstmState(State):
    """The convolution's last inputs `[B, D, W - 1]`, none without one; h, c, n, m, `[B, N, P]` each, float32 or wider:
    what is given, the memory, its normalizer, and the largest exponent so far, by whose exponential both are divided.
    """

    inputs: Tensor
    hidden: Tensor
    cell: Tensor
    normalizer: Tensor
    peak: Tensor

    @property
    def memory(self) -> Memory:
        """What the recurrence goes on from."""
        return self.hidden, self.cell, self.normalizer, self.peak

    def forget(self) -> Self:
        """Zeros, but for m: nothing has been seen."""
        empty = super().forget()
        empty.peak.fill_(-torch.inf)
        return empty


class Slstm(RecurrentMixer):
    """A recurrent network between the maps to its gates and a norm for each head. It cannot be parallel over tokens."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"recur": slstm_reference}

    def __init__(self, spec: SlstmSpec, place: Place) -> None:
        super().__init__()
        self.width, self.heads, self.channels = place.width, spec.heads, spec.channels or place.width
        self.depth = place.index / max(1, place.layers - 1)
        within, both = self.channels // self.heads, [self.channels, self.channels]
        self.conv1d = None if spec.conv is None else CausalConvolution(place.width, spec.conv, bias=True)
        self.input_forget = FusedLinear(place.width, both, bias=True)
        self.cell_output = FusedLinear(place.width, both, bias=True)
        self.recurrent = nn.Parameter(torch.empty(self.heads, within, GATES * within))
        self.recur = slstm
        self.norm = HeadLayerNorm(self.heads, within, spec.eps)
        self.out = Linear(self.channels, place.width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Heads that do not mix yet; their channels forget at rates of their own, bent by the depth."""
        nn.init.zeros_(self.recurrent)
        within = self.channels // self.heads
        spread_P = torch.linspace(0, 1, within) ** (FIRST_BEND + MORE_BEND * self.depth)
        with torch.no_grad():
            self.input_forget.bias[self.channels :] = (MOST_FORGOTTEN - SPAN * spread_P).repeat(self.heads)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> SlstmState:
        before = 0 if self.conv1d is None else self.conv1d.before
        inputs = torch.zeros(batch, self.width, before, device=device, dtype=dtype)
        shape = (batch, self.heads, self.channels // self.heads)
        return SlstmState(inputs, *empty_memory(shape, device, torch.promote_types(dtype, torch.float32)))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, SlstmState)
        near_BTD = x_BTD
        if self.conv1d is not None:
            near_BTD = F.silu(self.conv1d.advancing(x_BTD.transpose(1, 2), state)).transpose(1, 2).contiguous()
        logits = torch.cat([self.input_forget(near_BTD), self.cell_output(x_BTD)], dim=-1)
        with torch.autocast(x_BTD.device.type, enabled=False):
            normed_BTE = self.norm(self._recurred(logits, state))
        out_BTD: Tensor = self.out(normed_BTE.to(logits.dtype))
        return out_BTD

    def _recurred(self, logits_BTG: Tensor, state: SlstmState | None) -> Tensor:
        """What the recurrence gives, `[B, T, N, P]`, in float32 or wider; advances it."""
        wide = torch.promote_types(logits_BTG.dtype, torch.float32)
        x_BT4NP = torch.unflatten(logits_BTG.to(wide), -1, (GATES, self.heads, -1))
        h_BTNP, memory = self.recur(x_BT4NP, self.recurrent.to(wide), None if state is None else state.memory)
        if state is not None:
            own = (
                part.detach().clone(memory_format=torch.contiguous_format) for part in memory
            )  # of the last token alone
            state.hidden, state.cell, state.normalizer, state.peak = own
        out_BTNP: Tensor = h_BTNP
        return out_BTNP
