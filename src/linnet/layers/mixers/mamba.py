"""Mamba: a short convolution and a selective state-space model behind a gate (Gu and Dao, 2023, arXiv 2312.00752).

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` inner channels, `N` state of a channel, `R` rank of the
map to the step sizes, `W` tokens of the convolution.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnet.core.spec import Count, Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, MuonParameter, Place, RecurrentMixer, muon_parameter_of
from linnet.layers.diagonal_ssm import step_biases
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.ops.selective_scan import selective_scan, selective_scan_reference, selective_scan_segment_length

SUM_BYTES = 4


class MambaSpec(MixerSpec):
    """expand: inner channels as a multiple of the model's width. state: numbers of state for each of these channels.

    conv: tokens that the convolution reads. step_rank: rank of the map to the step sizes (null: the model's width over
    16, rounded up).
    """

    kind: Literal["mamba"] = "mamba"
    expand: Count = 2
    state: Extent = 16
    conv: Extent = 4
    step_rank: Extent | None = None
    bias: bool = False
    conv_bias: bool = True

    @classmethod
    def examples(cls) -> list[Self]:
        """As published; biases, a convolution over a single token, a higher rank of the step sizes."""
        return [cls(), cls(expand=1, state=3, conv=1, step_rank=5, bias=True, conv_bias=False)]

    def widths(self, d_model: int) -> tuple[int, int]:
        """The number of inner channels, and the rank of the map to the step sizes."""
        return self.expand * d_model, self.step_rank or math.ceil(d_model / 16)

    def build(self, place: Place) -> "Mamba":
        return Mamba(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution and scan; the state is the inputs of the convolution and the states of the channels."""
        width, (channels, rank) = place.width, self.widths(place.width)
        states = channels * self.state

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token ten tensors of the channels' size, and the inputs of steps, B and C; for each segment a
            # state; two tensors of rates.
            segments = -(-tokens // selective_scan_segment_length(sequences, states))
            per_token = 10 * channels + rank + 2 * self.state
            return sequences * (tokens * per_token + channels * (self.conv - 1) + segments * states) + 2 * states

        maps = linear_cost(width, 2 * channels, self.bias) + linear_cost(channels, rank + 2 * self.state, False)
        maps += linear_cost(rank, channels, True) + linear_cost(channels, width, self.bias)
        scan = Cost(
            parameters=channels * (self.state + 1),
            flops_per_token=2 * states,
            state_fixed_bytes=SUM_BYTES * states,
            activations_per_token=width,
            activation_memory=(activation_memory,),
        )
        return maps + convolution_cost(channels, self.conv, self.conv_bias) + scan


@dataclass
class MambaState(State):
    """The convolution's last inputs `[B, E, W - 1]`, and the states `[B, N, E]`, float32 or wider."""

    inputs: Tensor
    states: Tensor


class Mamba(RecurrentMixer):
    """A selective state-space model, with the names of its published parameters.

    The maps have PyTorch's initialization, as in the published code, and not that of the model's description.
    """

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"scan": selective_scan_reference}

    def __init__(self, spec: MambaSpec, d_model: int) -> None:
        super().__init__()
        channels, rank = spec.widths(d_model)
        self.parts = [rank, spec.state, spec.state]
        self.in_proj = nn.Linear(d_model, 2 * channels, bias=spec.bias)
        self.conv1d = CausalConvolution(channels, spec.conv, spec.conv_bias)
        self.x_proj = nn.Linear(channels, sum(self.parts), bias=False)
        self.dt_proj = nn.Linear(rank, channels)
        self.A_log = nn.Parameter(torch.empty(channels, spec.state))
        self.D = nn.Parameter(torch.ones(channels))
        self.scan = selective_scan
        self.out_proj = nn.Linear(channels, d_model, bias=spec.bias)
        # The states of a channel decay at rates 1, 2, ... N; steps are spread between a tenth and a thousandth.
        biases_E = step_biases(channels)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1.0, spec.state + 1).log().expand(channels, spec.state))
            nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
            self.dt_proj.bias.copy_(biases_E)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> MambaState:
        channels, state = self.A_log.shape
        inputs = torch.zeros(batch, channels, self.conv1d.before, device=device, dtype=dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return MambaState(inputs, torch.zeros(batch, state, channels, device=device, dtype=wide))

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The maps from and to hidden vectors, values and gate separately; those to the step sizes have low rank."""
        yield MuonParameter(self.in_proj.weight, (self.in_proj.out_features // 2,) * 2)
        yield muon_parameter_of(self.out_proj)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, MambaState)
        x_BTE, gate_BTE = self.in_proj(x_BTD).chunk(2, dim=-1)
        x_BTE = F.silu(self.conv1d.advancing(x_BTE.transpose(1, 2), state)).transpose(1, 2).contiguous()
        step_BTR, b_BTN, c_BTN = self.x_proj(x_BTE).split(self.parts, dim=-1)
        dt_BTE = self.dt_proj(step_BTR)
        with torch.autocast(x_BTE.device.type, enabled=False):
            wide = torch.promote_types(x_BTE.dtype, torch.float32)
            x_BTE, dt_BTE, b_BTN, c_BTN = (part.to(wide) for part in (x_BTE, dt_BTE, b_BTN, c_BTN))
            a_NE = -self.A_log.to(wide).exp().t()
            states = None if state is None else state.states
            y_BTE, states = self.scan(x_BTE, F.softplus(dt_BTE), a_NE, b_BTN, c_BTN, states)
            if state is not None:
                state.states = states.detach()
            y_BTE = torch.addcmul(y_BTE, x_BTE, self.D.to(wide))
        out_BTD: Tensor = self.out_proj(y_BTE.to(gate_BTE.dtype) * F.silu(gate_BTE))
        return out_BTD
