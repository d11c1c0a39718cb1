"""Diagonal state-space models, shared by several mixers: their fields, parameters and state.

Gu et al., 2022 (arXiv 2206.11893), with the names of the published parameters. A state of N real numbers is stored as
N / 2 complex ones: the other half would be their conjugates, which contribute the same to the output.

Shapes: `B` rows of a batch, `E` channels (or heads), `T` tokens of the chunk, `N` complex numbers of a state.
"""

import math
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from pydantic import PositiveFloat, model_validator
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from linnet.core.spec import Extent
from linnet.layers.contract import MixerSpec
from linnet.layers.state import State
from linnet.ops.diagonal_ssm import complex_div, complex_exp, complex_expm1, complex_mul, diagonal_ssm_real
from linnet.ops.support import is_exporting

SUM_BYTES = 4
START_RATE = 0.5
"""The initial decay rate of each element of a state, per unit of the step size."""


class DiagonalSpec(MixerSpec, ABC):
    """`state` real numbers for each channel, an even number.

    frequencies: the initial frequencies of the state, those of S4D-Lin or S4D-Inv. discretization: from continuous to
    discrete time by zero-order hold (`zoh`) or the bilinear rule. shortest_step, longest_step: the range of the initial
    step sizes of the channels.
    """

    state: Extent = 64
    frequencies: Literal["lin", "inv"] = "lin"
    discretization: Literal["zoh", "bilinear"] = "zoh"
    shortest_step: PositiveFloat = 0.001
    longest_step: PositiveFloat = 0.1

    @model_validator(mode="after")
    def _even_state_and_steps(self) -> Self:
        if self.state % 2:
            raise ValueError(f"state: {self.state}: must be even, as numbers of a state are pairs of conjugates")
        if self.longest_step < self.shortest_step:
            raise ValueError(f"longest_step: {self.longest_step}: must not be below shortest_step {self.shortest_step}")
        return self

    @property
    def kernel_parameters(self) -> int:
        """The parameters of one channel, with the direct term."""
        return 2 + 2 * self.state

    @property
    def kernel_kept(self) -> int:
        """float32 numbers per channel that the forward pass keeps between the parameters and a and c."""
        return 1 + 7 * self.state if self.discretization == "zoh" else 2 + 9 * self.state


@dataclass
class DiagonalState(State):
    """Real and imaginary parts of the states, `[B, ..., N, 2]`, float32 or wider."""

    hidden: Tensor


class DiagonalKernel(nn.Module):
    """The parameters of a diagonal state-space model, and the coefficients of a discrete step."""

    def __init__(self, spec: DiagonalSpec, channels: int) -> None:
        super().__init__()
        self.spec = spec
        pairs = spec.state // 2
        self.log_dt = nn.Parameter(torch.empty(channels))
        self.log_A_real = nn.Parameter(torch.empty(channels, pairs))
        self.A_imag = nn.Parameter(torch.empty(channels, pairs))
        self.C = nn.Parameter(torch.empty(channels, pairs, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Log-uniform step sizes, one decay rate, and the frequencies of S4D-Lin or S4D-Inv (eqs. 8 and 9)."""
        spec, order_N = self.spec, torch.arange(self.A_imag.shape[1])
        lin_N, inv_N = math.pi * order_N, spec.state / math.pi * (spec.state / (2 * order_N + 1) - 1)
        nn.init.uniform_(self.log_dt, math.log(spec.shortest_step), math.log(spec.longest_step))
        nn.init.constant_(self.log_A_real, math.log(START_RATE))
        nn.init.normal_(self.C, std=0.5**0.5)
        with torch.no_grad():
            self.A_imag.copy_(lin_N if spec.frequencies == "lin" else inv_N)

    @_disable_dynamo  # compilation does not support complex numbers, and takes long to detect them
    def forward(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """a and c of `ops.diagonal_ssm`, complex `[E, N]` each, computed in `dtype`, float32 or wider."""
        step_E1 = self.log_dt.to(dtype).exp()[:, None]
        rate_EN = torch.complex(-self.log_A_real.to(dtype).exp(), self.A_imag.to(dtype))
        c_EN = 2 * torch.view_as_complex(self.C.to(dtype))
        if self.spec.discretization == "zoh":
            exponent_EN = rate_EN * step_E1
            return exponent_EN.exp(), c_EN * (exponent_EN.expm1() / rate_EN)  # expm1 is accurate for short steps
        half_EN = 0.5 * step_E1 * rate_EN
        return (1 + half_EN) / (1 - half_EN), c_EN * (step_E1 / (1 - half_EN))

    def advancing(
        self, ssm: Callable[..., Any], x_BET: Tensor, d_E: Tensor, hidden_BEN2: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The outputs of `ssm` for x, `[B, E, T]`, and the states after the last token, as pairs without gradients."""
        if is_exporting():
            assert hidden_BEN2 is not None
            return diagonal_ssm_real(x_BET, *self.in_pairs(x_BET.dtype), d_E, hidden_BEN2)
        hidden_BEN = None if hidden_BEN2 is None else torch.view_as_complex(hidden_BEN2)
        y_BET, hidden_BEN = ssm(x_BET, *self(x_BET.dtype), d_E, hidden_BEN)
        return y_BET, torch.view_as_real(hidden_BEN.detach())

    def in_pairs(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same a and c as pairs of real numbers, `[E, N, 2]` each, for exported graphs."""
        step_E11 = self.log_dt.to(dtype).exp()[:, None, None]
        rate_EN2 = torch.stack([-self.log_A_real.to(dtype).exp(), self.A_imag.to(dtype)], dim=-1)
        c_EN2, one = 2 * self.C.to(dtype), 1 - torch.arange(2, dtype=dtype, device=step_E11.device)
        if self.spec.discretization == "zoh":
            exponent_EN2 = rate_EN2 * step_E11
            return complex_exp(exponent_EN2), complex_mul(c_EN2, complex_div(complex_expm1(exponent_EN2), rate_EN2))
        half_EN2 = 0.5 * step_E11 * rate_EN2
        return complex_div(one + half_EN2, one - half_EN2), complex_div(c_EN2 * step_E11, one - half_EN2)


SHORTEST_STEP, LONGEST_STEP, FLOOR = 0.001, 0.1, 1e-4


def step_biases(count: int) -> Tensor:
    """Biases `[count]` whose softplus is log-uniform between `SHORTEST_STEP` and `LONGEST_STEP`."""
    exponents = torch.rand(count) * math.log(LONGEST_STEP / SHORTEST_STEP)
    steps = (exponents.exp() * SHORTEST_STEP).clamp(min=FLOOR)
    return steps + (-torch.expm1(-steps)).log()
