"""Griffin's recurrent block: a short convolution and a gated linear recurrence (De et al., 2024, arXiv 2402.19427).

`y_t = W_out (gelu(W_y x_t + b_y) * rglru(conv(W_x x_t + b_x)))`: sections 2.3 and 2.4, with the names of the published
parameters.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels of the recurrence, `N` heads, the blocks of
the block-diagonal gates, `K` channels of a head, `W` tokens of the convolution.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""c of the paper: the decay of a channel is `a^(c r)` with its gate r."""
MIN_DECAY, MAX_DECAY = 0.9, 0.999
"""The range of the initial `a^c`."""
CONVOLUTION_VARIANCE = 0.01


class RglruSpec(MixerSpec):
    """heads: blocks of the block-diagonal gates. conv: tokens that the convolution reads.

    channels: of the recurrence (null: the model's width; the paper has four thirds of it).
    """

    kind: Literal["rglru"] = "rglru"
    heads: Extent
    channels: Extent | None = None
    conv: Extent = 4

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; own channels, each with separate gates, and a convolution over a single token."""
        return [cls(heads=4), cls(heads=12, channels=12, conv=1)]

    def check(self, width: int) -> None:
        channels = self.channels or width
        if channels % self.heads:
            raise ValueError(f"heads: {self.heads}: must divide the {channels} channels")

    def build(self, place: Place) -> "Rglru":
        return Rglru(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution and gates; the state is the inputs of the convolution and one number for each channel."""
        width, channels = place.width, self.channels or place.width
        maps = linear_cost(width, channels, True).repeated(2) + linear_cost(channels, width, True)
        # Activations, for each token: the gate and its gelu, inputs and outputs of the convolution, two gates, decays,
        # states, their product with the gate; for each sequence the state; the rates.
        recurrence = Cost(
            parameters=2 * channels * (channels // self.heads + 1) + channels,
            flops_per_token=4 * channels * (channels // self.heads),
            state_fixed_bytes=SUM_BYTES * channels,
            activations_per_token=width,
            activation_memory=(lambda sequences, tokens: sequences * channels * (9 * tokens + self.conv) + channels,),
        )
        return maps + recurrence + convolution_cost(channels, self.conv, True)


@dataclass
class RglruState(State):
    """The convolution's last inputs `[B, E, W - 1]`, and the recurrence's state `[B, E]`, float32 or wider."""

    inputs: Tensor
    hidden: Tensor


class RealGates(nn.Module):
    """The block-diagonal maps to the gates of input and recurrence, and the decay rates of the channels."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        head_dim = channels // heads
        self.recurrent_param = nn.Parameter(torch.empty(channels))
        self.input_gate_weight = nn.Parameter(torch.empty(heads, head_dim, head_dim))
        self.input_gate_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.recurrent_gate_weight = nn.Parameter(torch.empty(heads, head_dim, head_dim))
        self.recurrent_gate_bias = nn.Parameter(torch.empty(heads, head_dim))

    def forward(self, x_BTE: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the gates of input and recurrence, `[B, T, E]` each."""
        x_NFK = x_BTE.reshape(-1, *self.input_gate_bias.shape).transpose(0, 1)  # F: tokens of all rows
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
        """The maximum decay rate of each channel, `[E]`: minus the logarithm of its decay with an open gate."""
        return SHARPNESS * F.softplus(self.recurrent_param.to(dtype))


class Rglru(RecurrentMixer):
    """The product of a GeLU branch and a branch with convolution and recurrence, and an output projection."""

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
        """Maps and gates keep the variance of their inputs; squared decays are uniform; biases are 0."""
        gates = self.rg_lru
        for linear in (self.linear_y, self.linear_x, self.linear_out):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
        for weight_NKK in (gates.input_gate_weight, gates.recurrent_gate_weight):
            nn.init.normal_(weight_NKK, std=weight_NKK.shape[1] ** -0.5)
        nn.init.normal_(self.conv_1d.weight, std=(CONVOLUTION_VARIANCE / self.conv_1d.kernel_size[0]) ** 0.5)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        squared_E = torch.empty_like(gates.recurrent_param).uniform_(MIN_DECAY**2, MAX_DECAY**2)
        with torch.no_grad():
            gates.recurrent_param.copy_((-0.5 * squared_E.log()).expm1().log())  # its softplus is `-log a`

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
        logits = self.rg_lru(x_BTE)
        with torch.autocast(x_BTE.device.type, enabled=False):
            wide = torch.promote_types(x_BTE.dtype, torch.float32)
            input_BTE, recurrent_BTE = (part.to(wide).sigmoid() for part in logits)
            hidden_BE = x_BTE.new_zeros(x_BTE[:, 0].shape, dtype=wide) if state is None else state.hidden
            rates_E = self.rg_lru.rates(wide)
            states_BTE, hidden_BE = self.scan(x_BTE.to(wide), input_BTE, recurrent_BTE, rates_E, begins_B1, hidden_BE)
            if state is not None:
                state.hidden = hidden_BE.detach().clone()  # a view would keep the states of all tokens
        out_BTD: Tensor = self.linear_out(states_BTE.to(gate_BTE.dtype) * gate_BTE)
        return out_BTD
