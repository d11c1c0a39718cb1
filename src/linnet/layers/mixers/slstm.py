"""The sLSTM of xLSTM: a recurrent network with exponential gates (Beck et al., 2024, arXiv 2405.04517, section 2.2).

As in its residual block with a post-projection (appendix A.4): a short convolution before the input and forget gates, a
norm for each head, an output projection. The maps from the token are full matrices; the paper's are block-diagonal.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels, `N` heads, `P` channels of a head, `W` tokens
of the convolution.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from linnet.ops.xlstm import GATES, empty_memory, slstm, slstm_reference

STATE_BYTES = 4
MAX_FORGET_BIAS, FORGET_BIAS_RANGE = 5.0, 12.0
"""The initial biases of the forget gates run from 5 to -7 over the channels of a head."""
FIRST_EXPONENT, EXPONENT_RANGE = 0.3, 1.3
"""They depend on a power of the channel: the exponent in the first layer, and its increase up to the last."""


class SlstmSpec(MixerSpec):
    """heads: groups of channels with a recurrent matrix each. channels: of all heads (null: the model's width).

    conv: tokens that the input and forget gates read (null: no convolution). eps: of the norm of the heads.
    """

    kind: Literal["slstm"] = "slstm"
    heads: Extent
    channels: Extent | None = None
    conv: Extent | None = 4
    eps: PositiveFloat = 1e-5

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; with own channels and without a convolution.

        `eps` is larger than published, because the norm of heads this narrow amplifies rounding.
        """
        return [cls(heads=2, eps=1e-2), cls(heads=3, channels=12, conv=None, eps=1e-2)]

    def check(self, width: int) -> None:
        channels = self.channels or width
        if channels % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the {channels} channels")

    def build(self, place: Place) -> "Slstm":
        return Slstm(self, place)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution, recurrent matrices and the norm; the state is the inputs of the convolution and four
        numbers for each channel.
        """
        width, channels = place.width, self.channels or place.width

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the inputs, outputs and silu of the convolution, four logits, c, n, m, h, and two tensors
            # of the norm; for each sequence the initial state.
            conv = 0 if self.conv is None else width * (3 * tokens + self.conv - 1)
            return sequences * (conv + tokens * (10 * channels + 2 * self.heads) + 4 * channels)

        maps = linear_cost(width, GATES * channels, True) + linear_cost(channels, width, False)
        if self.conv is not None:
            maps += convolution_cost(width, self.conv, True)
        recurrent = GATES * channels * (channels // self.heads)
        return maps + Cost(
            parameters=recurrent + channels,
            flops_per_token=2 * recurrent,
            state_fixed_bytes=STATE_BYTES * 4 * channels,
            activations_per_token=width,
            activation_memory=(activation_memory,),
        )


@dataclass
class SlstmState(State):
    """The convolution's last inputs `[B, D, W - 1]` (empty without one), and h, c, n, m of the paper.

    hidden, cell, normalizer, peak: `[B, N, P]` each, float32 or wider: the output, the memory, its normalizer, and the
    largest exponent so far, by whose exponential memory and normalizer are divided.
    """

    inputs: Tensor
    hidden: Tensor
    cell: Tensor
    normalizer: Tensor
    peak: Tensor

    def forget(self) -> Self:
        """Zeros, except for m, which is `-inf` before the first token."""
        empty = super().forget()
        empty.peak.fill_(-torch.inf)
        return empty


class Slstm(RecurrentMixer):
    """A recurrent network between the maps to its gates and a norm for each head; sequential over tokens."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"recur": slstm_reference}

    def __init__(self, spec: SlstmSpec, place: Place) -> None:
        super().__init__()
        self.width, self.heads, self.channels = place.width, spec.heads, spec.channels or place.width
        head_dim = self.channels // self.heads
        self.conv1d = None if spec.conv is None else CausalConvolution(place.width, spec.conv, bias=True)
        self.input_forget = FusedLinear(place.width, [self.channels, self.channels], bias=True)
        self.cell_output = FusedLinear(place.width, [self.channels, self.channels], bias=True)
        self.recurrent = nn.Parameter(torch.zeros(self.heads, head_dim, GATES * head_dim))
        self.recur = slstm
        self.norm = HeadLayerNorm(self.heads, head_dim, spec.eps)
        self.out = Linear(self.channels, place.width, bias=False)
        # The channels of a head start with different lifetimes, which depend on the depth of the layer.
        depth = place.index / max(1, place.layers - 1)
        spread_P = torch.linspace(0, 1, head_dim) ** (FIRST_EXPONENT + EXPONENT_RANGE * depth)
        bias_P = MAX_FORGET_BIAS - FORGET_BIAS_RANGE * spread_P
        with torch.no_grad():
            self.input_forget.bias[self.channels :] = bias_P.repeat(self.heads)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> SlstmState:
        before = 0 if self.conv1d is None else self.conv1d.before
        inputs = torch.zeros(batch, self.width, before, device=device, dtype=dtype)
        shape = (batch, self.heads, self.channels // self.heads)
        return SlstmState(inputs, *empty_memory(shape, device, torch.promote_types(dtype, torch.float32)))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, SlstmState)
        convolved_BTD = x_BTD
        if self.conv1d is not None:
            convolved_BTD = F.silu(self.conv1d.advancing(x_BTD.transpose(1, 2), state)).transpose(1, 2).contiguous()
        logits = torch.cat([self.input_forget(convolved_BTD), self.cell_output(x_BTD)], dim=-1)
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(logits.dtype, torch.float32)
            x_BT4NP = torch.unflatten(logits.to(wide), -1, (GATES, self.heads, -1))
            memory = None if state is None else (state.hidden, state.cell, state.normalizer, state.peak)
            h_BTNP, memory = self.recur(x_BT4NP, self.recurrent.to(wide), memory)
            if state is not None:  # a copy: a view would keep the memories of all tokens
                copies = (part.detach().clone(memory_format=torch.contiguous_format) for part in memory)
                state.hidden, state.cell, state.normalizer, state.peak = copies
            normed_BTE = self.norm(h_BTNP)
        out_BTD: Tensor = self.out(normed_BTE.to(logits.dtype))
        return out_BTD
