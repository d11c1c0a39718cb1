"""Scaling laws: the loss by size and text, and the size that a budget of FLOPs is best spent on.

`N` parameters, `D` training tokens, `C` training FLOPs. Every law here takes training to cost `C = 6 N D` (2 for a
multiply-add, forward once and backward twice) and its best size to be a power of the budget. Losses are nats per token
of the law's own text and tokenizer.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from linnet.core.spec import Spec
from linnet.scaling.counts import Counting

FLOPS_FACTOR = 6
"""Training FLOPs per parameter and token."""

PF_DAY_FLOPS = 1e15 * 24 * 3600


@dataclass(frozen=True)
class Allocation:
    """A size and a number of training tokens."""

    parameters: float
    tokens: float

    @property
    def flops(self) -> float:
        """What training costs, `6 N D`."""
        return FLOPS_FACTOR * self.parameters * self.tokens


class Law(Spec, ABC):
    """`counted`: which parameters `N` is. `source`: where the constants come from.

    `sizes`: the smallest and the largest model that it was fitted to; None where that is not known. `warnings`: what
    speaks against it, a line each (`determined.doubts`).
    """

    name: str = "law"
    source: str = ""
    counted: Counting = "total"
    sizes: tuple[PositiveFloat, PositiveFloat] | None = None
    warnings: tuple[str, ...] = ()

    def reaches(self, parameters: float) -> bool:
        """Whether a size lies within those that the law was fitted to, where they are known."""
        return self.sizes is None or self.sizes[0] <= parameters <= self.sizes[1]

    @abstractmethod
    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Of `N` parameters after `D` tokens; numbers, or arrays of one shape."""

    def loss_of_parameters(self, parameters: float) -> float:
        """Of `N` parameters, however much text there is."""
        return float(self.loss(parameters, math.inf))

    def loss_of_tokens(self, tokens: float) -> float:
        """Of `D` tokens, however large the model is."""
        return float(self.loss(math.inf, tokens))

    def loss_of_flops(self, flops: float) -> float:
        """The lowest that `C` training FLOPs buy."""
        best = self.of_flops(flops)
        return float(self.loss(best.parameters, best.tokens))

    @property
    @abstractmethod
    def optimum(self) -> tuple[float, float]:
        """`k` and `a` of the best size for a budget, `N = k C^a`."""

    def of_flops(self, flops: float) -> Allocation:
        """The best size and its tokens for `C` training FLOPs."""
        scale, exponent = self.optimum
        parameters = scale * flops**exponent
        return Allocation(parameters, flops / (FLOPS_FACTOR * parameters))

    def of_parameters(self, parameters: float) -> Allocation:
        """The tokens of the budget for which `N` is the best size."""
        scale, exponent = self.optimum
        return Allocation(parameters, (parameters / scale) ** (1 / exponent) / (FLOPS_FACTOR * parameters))

    def of_tokens(self, tokens: float) -> Allocation:
        """The best size of the budget for which `D` is the best number of tokens."""
        scale, exponent = self.optimum
        flops = (FLOPS_FACTOR * scale * tokens) ** (1 / (1 - exponent))
        return Allocation(flops / (FLOPS_FACTOR * tokens), tokens)


class ParametricLaw(Law):
    """`L = E + A / N^alpha + B / D^beta` (Hoffmann et al., arXiv 2203.15556, equation 2).

    Of a fitted law `objective` is the Huber loss that it comes to, `intervals` are of 95 % unless `fit` says otherwise,
    `fit` tells of the points and of the other approaches, and `bytes_per_token` is that of the text they saw.
    """

    form: Literal["parametric"] = "parametric"
    E: NonNegativeFloat
    A: PositiveFloat
    B: PositiveFloat
    alpha: PositiveFloat
    beta: PositiveFloat
    objective: NonNegativeFloat | None = None
    intervals: dict[str, tuple[float, float]] | None = None
    bytes_per_token: PositiveFloat | None = None
    fit: dict[str, Any] | None = None

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Equation 2."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    @property
    def optimum(self) -> tuple[float, float]:
        """Equation 4: `N = G (C / 6)^(beta / (alpha + beta))`, `G = (alpha A / (beta B))^(1 / (alpha + beta))`."""
        exponent = self.beta / (self.alpha + self.beta)
        g = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return g / FLOPS_FACTOR**exponent, exponent


class PowerTerm(Spec):
    """`(scale / x) ^ exponent`."""

    scale: PositiveFloat
    exponent: PositiveFloat

    def __call__(self, x: Any) -> Any:
        """Its value at x, a number or an array."""
        return (self.scale / x) ** self.exponent


class BothTerms(Spec):
    """The constants of the law in size and text together."""

    parameters: PowerTerm
    tokens: PowerTerm


class KaplanOptimum(Spec):
    """`N = parameters_of_a_pf_day * (C in PF-days) ^ exponent`."""

    parameters_of_a_pf_day: PositiveFloat
    exponent: PositiveFloat


class KaplanLaw(Law):
    """The laws of Kaplan et al. (arXiv 2001.08361), each fitted by itself, so they agree only roughly.

    `parameters`, `tokens`, `pf_days`: the loss where that alone sets the limit (equations 1.1 to 1.3). `both`: equation
    1.5. `optimum`: table 6. There `C` is the least compute, at small batches.
    """

    form: Literal["kaplan"]
    parameters: PowerTerm
    tokens: PowerTerm
    pf_days: PowerTerm
    both: BothTerms
    optimal: KaplanOptimum

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Equation 1.5: `((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D`."""
        of_size, of_text = self.both.parameters, self.both.tokens
        ratio = of_size.exponent / of_text.exponent
        return ((of_size.scale / parameters) ** ratio + of_text.scale / tokens) ** of_text.exponent

    def loss_of_parameters(self, parameters: float) -> float:
        """Equation 1.1."""
        return float(self.parameters(parameters))

    def loss_of_tokens(self, tokens: float) -> float:
        """Equation 1.2."""
        return float(self.tokens(tokens))

    def loss_of_flops(self, flops: float) -> float:
        """Equation 1.3."""
        return float(self.pf_days(flops / PF_DAY_FLOPS))

    @property
    def optimum(self) -> tuple[float, float]:
        """Table 6."""
        exponent = self.optimal.exponent
        return self.optimal.parameters_of_a_pf_day / PF_DAY_FLOPS**exponent, exponent
