"""Mamba-2: a short convolution and a state-space model with one decay rate for each head, then a gate and a norm.

Dao and Gu, 2024 (arXiv 2405.21060), figure 6 and section 7: values, B, C and steps come from one joint projection.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` inner channels, `N` heads of `P` channels, `G` groups
of heads, `S` state of a channel, `W` tokens of the convolution, `F` channels of the convolution (`F = E + 2 G S`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor, nn

from linnet.core.spec import Count, Extent
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec, MuonParameter, Place, RecurrentMixer, muon_parameter_of
from linnet.layers.diagonal_ssm import step_biases
from linnet.layers.state import State
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.neighbors import CausalConvolution, convolution_cost
from linnet.nn.norms import GroupedRmsNorm
from linnet.ops.state_space_dual import (
    CHUNK,
    elements_per_token,
    state_space_dual,
    state_space_dual_flops,
    state_space_dual_reference,
)
from linnet.ops.support import segment_length

SUM_BYTES = 4
MIN_RATE, MAX_RATE = 1.0, 16.0


class Mamba2Spec(MixerSpec):
    """expand: inner channels as a multiple of the model's width. head_dim: channels of a head. state: per channel.

    groups: groups of heads that share B and C. conv: tokens that the convolution reads. step_floor, step_ceiling:
    limits of the step sizes. eps: of the norm.
    """

    kind: Literal["mamba2"] = "mamba2"
    expand: Count = 2
    head_dim: Extent = 64
    state: Extent = 128
    groups: Extent = 1
    conv: Extent = 4
    step_floor: NonNegativeFloat = 0.0
    step_ceiling: PositiveFloat | None = None
    bias: bool = False
    conv_bias: bool = True
    eps: PositiveFloat = 1e-5

    @classmethod
    def examples(cls) -> list[Self]:
        """As published, with narrow heads; two groups, limits of the steps, biases, a convolution over one token."""
        limits: dict[str, Any] = {"step_floor": 0.3, "step_ceiling": 1.0}
        return [
            cls(head_dim=8, state=5),
            cls(expand=3, head_dim=6, state=3, groups=2, conv=1, bias=True, conv_bias=False, **limits),
        ]

    @model_validator(mode="after")
    def _limits_leave_room(self) -> Self:
        if self.step_ceiling is not None and self.step_ceiling <= self.step_floor:
            raise ValueError(f"step_ceiling: {self.step_ceiling}: must be above step_floor, {self.step_floor}")
        return self

    def check(self, width: int) -> None:
        channels = self.expand * width
        if channels % self.head_dim:
            raise ValueError(f"head_dim: {self.head_dim}: must divide {channels}, {self.expand} times the width")
        if channels // self.head_dim % self.groups:
            raise ValueError(f"groups: {self.groups}: must divide the number of heads, {channels // self.head_dim}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """The numbers of inner channels, of channels of the convolution, and of heads."""
        channels = self.expand * d_model
        return channels, channels + 2 * self.groups * self.state, channels // self.head_dim

    def build(self, place: Place) -> "Mamba2":
        return Mamba2(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution, pairs and states; the state is the inputs of the convolution and the states."""
        width, (channels, convolved, heads) = place.width, self.widths(place.width)

        def activation_memory(sequences: int, tokens: int) -> int:
            # For each token the joint projection, three tensors of the convolution, steps, the output, gate and norm;
            # for each segment a state.
            segments = -(-tokens // segment_length(sequences, elements_per_token(heads, self.head_dim), CHUNK))
            steps = (3 if self.limits else 2) * heads
            norm = channels * (1 if self.groups == 1 else 2) + self.groups
            per_token = channels + convolved + heads + 3 * convolved + steps + 2 * channels + norm
            states = segments * channels * self.state
            return sequences * (tokens * per_token + convolved * (self.conv - 1) + states)

        maps = linear_cost(width, channels + convolved + heads, self.bias) + linear_cost(channels, width, self.bias)
        flops = partial(state_space_dual_flops, groups=self.groups, heads=heads, width=self.head_dim, state=self.state)
        dual = Cost(
            parameters=3 * heads + channels,
            flops_by_length=(flops,),
            state_fixed_bytes=SUM_BYTES * channels * self.state,
            activations_per_token=width,
            activation_memory=(activation_memory,),
        )
        return maps + convolution_cost(convolved, self.conv, self.conv_bias) + dual

    @property
    def limits(self) -> tuple[float, float | None] | None:
        """The limits of the step sizes; None without any."""
        limited = self.step_floor > 0 or self.step_ceiling is not None
        return (self.step_floor, self.step_ceiling) if limited else None


@dataclass
class Mamba2State(State):
    """The convolution's last inputs `[B, F, W - 1]`, and the states `[B, N, P, S]`, float32 or wider."""

    inputs: Tensor
    states: Tensor


class Mamba2(RecurrentMixer):
    """A state-space model with a decay rate for each head, with the names of its published parameters.

    The maps have PyTorch's initialization, as in the published code, and not that of the model's description.
    """

    references: ClassVar[Mapping[str, Callable[..., Any]]] = {"dual": state_space_dual_reference}

    def __init__(self, spec: Mamba2Spec, d_model: int) -> None:
        super().__init__()
        channels, convolved, heads = spec.widths(d_model)
        self.parts = [channels, convolved, heads]
        self.shape = (heads, spec.head_dim, spec.groups, spec.state)
        self.limits = spec.limits
        self.in_proj = nn.Linear(d_model, sum(self.parts), bias=spec.bias)
        self.conv1d = CausalConvolution(convolved, spec.conv, spec.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.dual = state_space_dual
        self.norm = GroupedRmsNorm(channels, spec.groups, spec.eps)
        self.out_proj = nn.Linear(channels, d_model, bias=spec.bias)
        # Heads decay at random rates from 1 to 16; steps are spread between a tenth and a thousandth.
        with torch.no_grad():
            self.A_log.copy_(torch.empty_like(self.A_log).uniform_(MIN_RATE, MAX_RATE).log())
            self.dt_bias.copy_(step_biases(heads))

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> Mamba2State:
        heads, head_dim, _, state = self.shape
        inputs = torch.zeros(batch, self.parts[1], self.conv1d.before, device=device, dtype=dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return Mamba2State(inputs, torch.zeros(batch, heads, head_dim, state, device=device, dtype=wide))

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The maps from and to hidden vectors: gate, values, and B, C and steps separately."""
        channels = self.parts[0]
        yield MuonParameter(self.in_proj.weight, (channels, channels, sum(self.parts) - 2 * channels))
        yield muon_parameter_of(self.out_proj)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, Mamba2State)
        gate_BTE, convolved_BTF, dt_BTN = torch.split(self.in_proj(x_BTD), self.parts, dim=-1)
        convolved_BFT = F.silu(self.conv1d.advancing(convolved_BTF.transpose(1, 2), state))
        heads, head_dim, groups, numbers = self.shape
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(dt_BTN.dtype, torch.float32)
            parts = [heads * head_dim, groups * numbers, groups * numbers]
            x_BTE, b_BTF, c_BTF = torch.split(convolved_BFT.transpose(1, 2).to(wide), parts, dim=-1)
            b_BTGS, c_BTGS = (part.view(*part.shape[:2], groups, numbers) for part in (b_BTF, c_BTF))
            dt_BTN = F.softplus(dt_BTN.to(wide) + self.dt_bias.to(wide))
            if self.limits is not None:
                dt_BTN = dt_BTN.clamp(*self.limits)
            x_BTNP = x_BTE.view(*x_BTE.shape[:2], heads, head_dim)
            states = None if state is None else state.states
            a_N, d_N = -self.A_log.to(wide).exp(), self.D.to(wide)
            out_BTNP, states = self.dual(x_BTNP, dt_BTN, a_N, b_BTGS, c_BTGS, d_N, states)
            if state is not None:
                state.states = states.detach()
            out_BTE = out_BTNP.flatten(2)
            normed_BTE = self.norm(out_BTE * F.silu(gate_BTE.to(out_BTE.dtype)))
        out_BTD: Tensor = self.out_proj(normed_BTE.to(gate_BTE.dtype))
        return out_BTD
