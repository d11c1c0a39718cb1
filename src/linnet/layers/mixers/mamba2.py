"""Mamba-2: a short convolution and a state-space model with one rate for each head, behind a gate and a norm.

Dao and Gu, 2024 (arXiv 2405.21060), figure 6 and section 7: the maps to values, B, C and steps stand side by side.

Shapes: `B` batch, `T` tokens of the chunk, `D` model width, `E` channels within, `N` heads of `P` channels, `G` groups
of heads, `S` numbers of state of a channel, `W` inputs of the convolution, `F` what is convolved: `E + 2 G S`.
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
SLOWEST_RATE, FASTEST_RATE = 1.0, 16.0


class Mamba2Spec(MixerSpec):
    """`expand` times the width within, in heads of `head_dim`; `state` numbers for each channel, B and C by `groups`.

    conv: tokens that the convolution sees. step_floor, step_ceiling: limits of the steps. eps: of the norm.
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
        """Narrow heads, else as published; two groups, limits that act, biases, a convolution over one token alone."""
        limited = cls(
            expand=3,
            head_dim=6,
            state=3,
            groups=2,
            conv=1,
            step_floor=0.3,
            step_ceiling=1.0,
            bias=True,
            conv_bias=False,
        )
        return [cls(head_dim=8, state=5), limited]

    @model_validator(mode="after")
    def _limits_leave_room(self) -> Self:
        if self.step_ceiling is not None and self.step_ceiling <= self.step_floor:
            raise ValueError(f"step_ceiling: {self.step_ceiling}: must be above step_floor, {self.step_floor}")
        return self

    def check(self, width: int) -> None:
        """Heads must divide the channels, groups the heads."""
        channels = self.expand * width
        if channels % self.head_dim:
            raise ValueError(f"head_dim: {self.head_dim}: must divide {channels}, {self.expand} times the width")
        if channels // self.head_dim % self.groups:
            raise ValueError(f"groups: {self.groups}: must divide the number of heads, {channels // self.head_dim}")

    def widths(self, d_model: int) -> tuple[int, int, int]:
        """Channels within; what is convolved; heads."""
        channels = self.expand * d_model
        return channels, channels + 2 * self.groups * self.state, channels // self.head_dim

    def build(self, place: Place) -> "Mamba2":
        return Mamba2(self, place.width)

    def cost(self, place: Place) -> Cost:
        """Maps, convolution, pairs and states; inputs of the convolution and states as state."""
        width, (channels, convolved, heads) = place.width, self.widths(place.width)
        maps = linear_cost(width, channels + convolved + heads, self.bias) + linear_cost(channels, width, self.bias)
        flops = partial(state_space_dual_flops, groups=self.groups, heads=heads, width=self.head_dim, state=self.state)
        dual = Cost(
            parameters=3 * heads + channels,
            flops_by_length=(flops,),
            state_fixed_bytes=SUM_BYTES * channels * self.state,
            activations_per_token=width,
            activation_memory=(partial(self._kept, channels, convolved, heads),),
        )
        return maps + convolution_cost(convolved, self.conv, self.conv_bias) + dual

    def _kept(self, channels: int, convolved: int, heads: int, sequences: int, tokens: int) -> int:
        """Of a token the joint projection, three forms of what is convolved, steps, what is read, gate and norm; a
        state for each segment.
        """
        numbers = elements_per_token(heads, self.head_dim)
        segments = -(-tokens // segment_length(sequences, numbers, CHUNK))
        of_steps = (3 if self.limits else 2) * heads
        normed = channels * (1 if self.groups == 1 else 2) + self.groups
        of_token = channels + convolved + heads + 3 * convolved + of_steps + 2 * channels + normed
        states = segments * channels * self.state
        return sequences * (tokens * of_token + convolved * (self.conv - 1) + states)

    @property
    def limits(self) -> tuple[float, float | None] | None:
        """Of the steps; None for none."""
        limited = self.step_floor > 0 or self.step_ceiling is not None
        return (self.step_floor, self.step_ceiling) if limited else None


@dataclass
class Mamba2State(State):
    """The convolution's last inputs `[B, F, W - 1]`, and the states `[B, N, P, S]`, float32 or wider."""

    inputs: Tensor
    states: Tensor


class Mamba2(RecurrentMixer):
    """A state-space model with a rate for each head, with the names of its published parameters.

    The maps start as PyTorch's do and not as the model's description says, as in the published code.
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
        self.D = nn.Parameter(torch.empty(heads))
        self.dual = state_space_dual
        self.norm = GroupedRmsNorm(channels, spec.groups, spec.eps)
        self.out_proj = nn.Linear(channels, d_model, bias=spec.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Heads that forget 1 to 16 times as fast as their step; steps spread over a tenth to a thousandth."""
        with torch.no_grad():
            self.A_log.copy_(torch.empty_like(self.A_log).uniform_(SLOWEST_RATE, FASTEST_RATE).log())
            self.dt_bias.copy_(step_biases(len(self.dt_bias)))
            nn.init.ones_(self.D)

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> Mamba2State:
        heads, head_dim, _, state = self.shape
        inputs = torch.zeros(batch, self.parts[1], self.conv1d.before, device=device, dtype=dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return Mamba2State(inputs, torch.zeros(batch, heads, head_dim, state, device=device, dtype=wide))

    def muon_parameters(self) -> Iterator[MuonParameter]:
        """The maps from and to hidden vectors: that of the gate, that of the values, and those of B, C and steps."""
        channels = self.parts[0]
        yield MuonParameter(self.in_proj.weight, (channels, channels, sum(self.parts) - 2 * channels))
        yield muon_parameter_of(self.out_proj)

    def forward(self, x_BTD: Tensor, state: State | None = None, layout: BatchLayout = BatchLayout()) -> Tensor:
        assert state is None or isinstance(state, Mamba2State)
        gate_BTE, convolved_BTF, dt_BTN = torch.split(self.in_proj(x_BTD), self.parts, dim=-1)
        convolved_BFT = F.silu(self.conv1d.advancing(convolved_BTF.transpose(1, 2), state))
        with torch.autocast(x_BTD.device.type, enabled=False):
            read_BTE = self._read(convolved_BFT.transpose(1, 2), dt_BTN, state)
            normed_BTE = self.norm(read_BTE * F.silu(gate_BTE.to(read_BTE.dtype)))
        out_BTD: Tensor = self.out_proj(normed_BTE.to(gate_BTE.dtype))
        return out_BTD

    def _read(self, convolved_BTF: Tensor, dt_BTN: Tensor, state: Mamba2State | None) -> Tensor:
        """What is read of the states, `[B, T, E]`, in float32 or wider; advances them."""
        wide = torch.promote_types(dt_BTN.dtype, torch.float32)
        heads, head_dim, groups, numbers = self.shape
        of_group = groups * numbers
        x_BTE, b_BTF, c_BTF = torch.split(convolved_BTF.to(wide), [heads * head_dim, of_group, of_group], dim=-1)
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
        return out_BTNP.flatten(2)
