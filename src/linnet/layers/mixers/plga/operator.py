"""The deep network of power-law graph attention, from a density matrix to the operator `G`.

Shapes: `B` batch, `H` heads, `K` head width, `M` metric hidden width, `R` residual units, `U` gated units in each.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from linnet.layers.feed_forwards.glu import GatedFeedForward
from linnet.nn.cost import Cost, linear_cost
from linnet.ops.power_law import log_trace_exponential, operator_tensors
from linnet.ops.support import widen

NORM_EPS = 1e-6
IDENTITY_START_SCALE = 0.1

Start = Literal["paper", "identity"]
"""The initialization of the operator; see `PowerLawOperator.reset_parameters`."""


OUTPUTS = ("A", "A_LM", "A_P", "G")
"""The names of the deductive outputs in tables and files."""


class DeductiveOutputs(NamedTuple):
    """The four tensors that power-law graph attention deduces from a text, each `[B, H, K, K]`."""

    a: Tensor
    a_lm: Tensor
    a_p: Tensor
    g: Tensor


class ResidualUnit(nn.Module):
    """`LN_K(A + GLU_U(... GLU_1(A)))`, acting on the rows of A."""

    def __init__(self, head_dim: int, hidden: int, gated_units: int) -> None:
        super().__init__()
        # Its activations would take a fifth of a training step's memory; computing them again takes 1 % of its time.
        units = (GatedFeedForward(head_dim, hidden, bias=True, recompute=True) for _ in range(gated_units))
        self.gated = nn.Sequential(*units)
        self.norm = nn.LayerNorm(head_dim, eps=NORM_EPS)

    def forward(self, a: Tensor) -> Tensor:
        """`[..., K] -> [..., K]`."""
        normed: Tensor = self.norm(a + self.gated(a))
        return normed


class PowerLawOperator(nn.Module):
    """From the density matrix to the four deductive outputs. The heads of the layer share the metric net."""

    def __init__(
        self, heads: int, head_dim: int, hidden: int, residual_units: int, gated_units: int, start: Start = "paper"
    ) -> None:
        super().__init__()
        self.start = start
        self.norm = nn.LayerNorm(head_dim, eps=NORM_EPS)
        self.metric_net = nn.Sequential(*(ResidualUnit(head_dim, hidden, gated_units) for _ in range(residual_units)))
        shape = (heads, head_dim, head_dim)
        self.metric_weight, self.power, self.curvature_weight = (nn.Parameter(torch.empty(shape)) for _ in "WPa")
        self.metric_bias, self.curvature_bias = (nn.Parameter(torch.zeros(shape)) for _ in "bb")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """`start: paper`: Xavier-normal per head for `W, P, a`; zero for `b, b_a`.

        Negative powers of numbers near zero make that operator and its gradients large (1e7 instead of 1 for plain
        attention). `start: identity` has `P = 0`, `b_a = I` and `a` scaled by a tenth: `G` is the identity plus a small
        rank-one term at first, and the model learns like plain attention while the operator grows.
        """
        for parameter in (self.metric_weight, self.power, self.curvature_weight):
            for head in parameter:
                nn.init.xavier_normal_(head)
        nn.init.zeros_(self.metric_bias)
        nn.init.zeros_(self.curvature_bias)
        if self.start == "identity":
            nn.init.zeros_(self.power)
            with torch.no_grad():
                self.curvature_weight.mul_(IDENTITY_START_SCALE)
                self.curvature_bias.add_(torch.eye(self.power.shape[-1]))

    def forward(self, input_BHKK: Tensor, metric_known: bool = False) -> DeductiveOutputs:
        """`[B, H, K, K] -> A, A_LM, A_P, G`, computed and returned in float32 or wider, with autocast too.

        Powers of numbers near zero amplify the rounding of all earlier steps; the network runs once per text.
        metric_known: the input is a stored `A` instead of a density matrix, and the metric net is not run.
        """
        wide = torch.promote_types(input_BHKK.dtype, torch.float32)
        with torch.autocast(device_type=input_BHKK.device.type, enabled=False):
            if self.power.dtype != wide:
                widened = {name: parameter.to(wide) for name, parameter in self.named_parameters()}
                outputs: DeductiveOutputs = functional_call(self, widened, (input_BHKK.to(wide), metric_known))
                return outputs
            a = input_BHKK.to(wide)
            a = a if metric_known else self.metric_net(self.norm(a))
            metric, curvature = (self.metric_weight, self.metric_bias), (self.curvature_weight, self.curvature_bias)
            return DeductiveOutputs(a, *operator_tensors(a, *metric, self.power, *curvature))


def acyclicity(x_BHKK: Tensor) -> Tensor:
    """The mean over batch and heads of `| log(trace(exp(X * X)) / K) |`, a scalar: the regularizer of PLDR-LLM.

    It favors deductive outputs that are graphs without cycles (Gokden, arXiv 2410.16703 and 2502.13502). Never
    negative, as the trace is at least K. Computed in float64.
    """
    return log_trace_exponential(widen(x_BHKK).square()).mean()


class FixedOperator(nn.Module):
    """A fixed operator, which is a buffer and not trained; initially the identity."""

    g: Tensor

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("g", torch.eye(head_dim).repeat(heads, 1, 1))


def operator_cost(heads: int, head_dim: int, hidden: int, residual_units: int, gated_units: int) -> Cost:
    """The network runs once per sequence, on the `H K` rows of the density matrices; `W A` and `a A_P` are per head."""
    gated = linear_cost(head_dim, hidden, bias=True).repeated(2) + linear_cost(hidden, head_dim, bias=True)
    net = gated.repeated(residual_units * gated_units)
    norms = 2 * head_dim * (residual_units + 1)
    copied = 2 if heads > 1 else 0
    saved_matrices = 7 + copied + residual_units * (gated_units + 1)
    return Cost(
        parameters=net.parameters + norms + 5 * heads * head_dim**2,
        flops_per_sequence=net.flops_per_token * heads * head_dim + 2 * 2 * heads * head_dim**3,
        calibrated_elements=heads * head_dim**2,
        activations_per_sequence=saved_matrices * heads * head_dim**2 + 2 * heads * head_dim * (residual_units + 1),
        activations_per_token=copied * heads * head_dim,
    )


def fixed_cost(heads: int, head_dim: int) -> Cost:
    """One stored matrix per head; with several heads they are copied for each row of a batch, like the queries."""
    matrices, copied = heads * head_dim**2, heads > 1
    return Cost(
        buffers=matrices,
        untrained_flops_per_token=2 * matrices,
        activations_per_sequence=matrices * copied,
        activations_per_token=heads * head_dim * copied,
    )
