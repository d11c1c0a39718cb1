"""Griffin's recurrent block: a gated linear recurrence behind a short convolution (De et al., 2024, arXiv 2402.19427).

`y_t = W_out (gelu(W_y x_t + b_y) * rglru(conv(W_x x_t + b_x)))`: section 2.3 and 2.4, with the names of the published
parameters.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels of the recurrence, `N` heads, which are blocks
of channels that gate each other, `K` channels of one, `W` inputs of the convolution.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.core.spec import Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, Place, RecurrentMixer
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.ops.linear_scan import rglru, rglru_reference

SUM_BYTES = 4
SHARPNESS = 8.0
"""c of the paper: how much faster than its slowest a channel can forget, `a^c`."""
FASTEST, SLOWEST = 0.9, 0.999
"""Between what the decays of channels start, to the power of `c r`."""
CONVOLUTION_VARIANCE = 0.01


class RglruSpec(MixerSpec):
    """`heads` blocks of channels with gates of their own, a convolution over `conv` tokens.

    channels: of the recurrence (null: the model's width; the paper has four thirds of it).
    """

    kind: Literal["rglru"] = "rglru"
    heads: Extent
    channels: Extent | None = None
    conv: Extent = 4

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; channels of a number of their own, each gated by itself, a convolution over one token alone."""
        return [cls(heads=4), cls(heads=12, channels=12, conv=1)]

    def check(self, width: int) -> None:
        """Heads must divide the channels."""
        channels = self.channels or width
        if channels % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the {channels} channels")

    def build(self, place: Place) -> "Rglru":
        return Rglru(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution and gates; inputs of the convolution and one number of a channel as state."""
        width, channels = place.width, self.channels or place.width
        maps = linear_cost(width, channels, True) + linear_cost(width, channels, True)
        maps += linear_cost(channels, width, True)
        recurrence = Cost(
            parameters=2 * channels * (channels // self.heads + 1) + channels,
            flops_per_token=4 * channels * (channels // self.heads),
            state_fixed_bytes=SUM_BYTES * channels,
        )
        recurrence += convolution_cost(channels, self.conv, True)
        return maps + recurrence + Cost(activations_per_token=width, activation_memory=(partial(self._kept, channels),))

    def _kept(self, channels: int, sequences: int, tokens: int) -> int:
        """Of a token the gate and its gelu, inputs and outputs of the convolution, two gates, decays, states, their
        product with the gate; of a sequence what is before it; rates.
        """
        return sequences * channels * (9 * tokens + self.conv) + channels


@dataclass
class RglruState(State):
    """The convolution's last inputs `[B, E, W - 1]`, and the recurrence's state `[B, E]`, float32 or wider."""

    inputs: Tensor
    hidden: Tensor


class RealGates(nn.Module):
    """The gates of input and recurrence, block-diagonal maps, and the rates of the channels."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        within = channels // heads
        self.recurrent_param = nn.Parameter(torch.empty(channels))
        self.input_gate_weight = nn.Parameter(torch.empty(heads, within, within))
        self.input_gate_bias = nn.Parameter(torch.empty(heads, within))
        self.recurrent_gate_weight = nn.Parameter(torch.empty(heads, within, within))
        self.recurrent_gate_bias = nn.Parameter(torch.empty(heads, within))

    def forward(self, x_BTE: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the gates of input and recurrence, `[B, T, E]` each."""
        heads, within = self.input_gate_bias.shape
        x_NFK = x_BTE.reshape(-1, heads, within).transpose(0, 1)  # F: tokens of all rows
        logits = (
            torch.baddbmm(bias_NK[:, None], x_NFK, weight_NKK).transpose(0, 1).reshape(x_BTE.shape).contiguous()
            for weight_NKK, bias_NK in (
                (self.input_gate_weight, self.input_gate_bias),
                (self.recurrent_gate_weight, self.recurrent_gate_bias),
            )
        )
        input_BTE, recurrent_BTE = logits
        return input_BTE, recurrent_BTE

    def rates(self, dtype: torch.dtype) -> Tensor:
        """How fast each channel forgets at most, `[E]`: minus the logarithm of a decay."""
        return SHARPNESS * F.softplus(self.recurrent_param.to(dtype))


class Rglru(RecurrentMixer):
    """Two branches, one through a GeLU, the other through convolution and recurrence; their product is mapped back."""

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"scan": rglru_reference}

    def __init__(self, spec: RglruSpec, d_model: int) -> None:
        super().__init__()
        channels = spec.channels or d_model
        self.linear_y = nn.Linear(d_model, channels)
        self.linear_x = nn.Linear(d_model, channels)
        self.conv_1d = CausalConvolution(channels, spec.conv, bias=True)
        self.rg_lru = RealGates(channels, spec.heads)
        self.scan = rglru
        self.linear_out = nn.Linear(channels, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Maps and gates that keep the variance of what they read; squared decays spread evenly; biases of 0."""
        gates = self.rg_lru
        for linear in (self.linear_y, self.linear_x, self.linear_out):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        for weight_NKK in (gates.input_gate_weight, gates.recurrent_gate_weight):
            nn.init.normal_(weight_NKK, std=weight_NKK.shape[1] ** -0.5)
        nn.init.normal_(self.conv_1d.weight, std=(CONVOLUTION_VARIANCE / self.conv_1d.kernel_size[0]) ** 0.5)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        squared_E = torch.empty_like(gates.recurrent_param).uniform_(FASTEST**2, SLOWEST**2)
        with torch.no_grad():
            gates.recurrent_param.copy_((-0.5 * squared_E.log()).expm1().log())  # what softplus makes `-log a` of

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> RglruState:
        channels, before = self.conv_1d.in_channels, self.conv_1d.before
        inputs = torch.zeros(batch, channels, before, device=device, dtype=dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return RglruState(inputs, torch.zeros(batch, channels, device=device, dtype=wide))

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, RglruState)
        gate_BTE = F.gelu(self.linear_y(x_BTD), approximate="tanh")
        convolved_BET = self.conv_1d.advancing(self.linear_x(x_BTD).transpose(1, 2), state)
        begins_B1 = layout.positions(1, x_BTD.device).view(-1, 1) == 0
        x_BTE = convolved_BET.transpose(1, 2).contiguous()
        out_BTE = self._recurred(x_BTE, state, begins_B1).to(gate_BTE.dtype) * gate_BTE
        out_BTD: Tensor = self.linear_out(out_BTE)
        return out_BTD

    def _recurred(self, x_BTE: Tensor, state: RglruState | None, begins_B1: Tensor) -> Tensor:
        """The recurrence's states, `[B, T, E]`, in float32 or wider; advances them."""
        logits = self.rg_lru(x_BTE)
        with torch.autocast(x_BTE.device.type, enabled=False):
            wide = torch.promote_types(x_BTE.dtype, torch.float32)
            input_BTE, recurrent_BTE = (part.to(wide).sigmoid() for part in logits)
            hidden_BE = x_BTE.new_zeros(x_BTE[:, 0].shape, dtype=wide) if state is None else state.hidden
            states_BTE, hidden_BE = self.scan(
                x_BTE.to(wide), input_BTE, recurrent_BTE, self.rg_lru.rates(wide), begins_B1, hidden_BE
            )
            if state is not None:
                state.hidden = hidden_BE.detach().clone()  # a layout would hold all of them
            out_BTE: Tensor = states_BTE
            return out_BTE
