"""Scaling laws: the loss by size and training tokens, and the best size for a budget of FLOPs.

`N` parameters, `D` training tokens, `C` training FLOPs. Every law here assumes that training costs `C = 6 N D` (2 for a
multiply-add, once forward and twice backward) and that its best size is a power of the budget. Losses are nats per
token of the law's own text and tokenizer. The published laws are files in `laws/`, with their sources.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.scaling.candidate import Counting

FLOPS_FACTOR = 6
"""Training FLOPs per parameter and token."""

PF_DAY_FLOPS = 1e15 * 24 * 3600

LAWS = Path(__file__).parent / "laws"


@dataclass(frozen=True)
class Allocation:
    """A size and a number of training tokens."""

    parameters: float
    tokens: float

    @property
    def flops(self) -> float:
        """Training FLOPs, `6 N D`."""
        return FLOPS_FACTOR * self.parameters * self.tokens


class Law(Spec, ABC):
    """counted: which parameters `N` is. source: where the constants come from.

    sizes: the smallest and the largest model that the law was fitted to; None if unknown. warnings: reasons to doubt
    it, one line each (`reliability.law_warnings`).
    """

    name: str = "law"
    source: str = ""
    counted: Counting = "total"
    sizes: tuple[PositiveFloat, PositiveFloat] | None = None
    warnings: tuple[str, ...] = ()

    @property
    @abstractmethod
    def optimum(self) -> tuple[float, float]:
        """`k` and `a` of the best size for a budget, `N = k C^a`."""

    @abstractmethod
    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Return the loss of `N` parameters after `D` tokens; numbers, or arrays of one shape."""

    def lowest_loss(
        self, *, flops: float | None = None, parameters: float = math.inf, tokens: float = math.inf
    ) -> float:
        """Return the loss if one amount alone is limited: `C` training FLOPs, `N` parameters or `D` tokens."""
        if flops is None:
            return float(self.loss(parameters, tokens))
        best = self.best(flops=flops)
        return float(self.loss(best.parameters, best.tokens))

    def best(
        self, *, flops: float | None = None, parameters: float | None = None, tokens: float | None = None
    ) -> Allocation:
        """Return the best size and tokens for `C` training FLOPs, or for a budget with best size `N` or tokens `D`.

        `UserError` if they are beyond the range of floating-point numbers.
        """
        budget = {"training FLOPs": flops, "parameters": parameters, "tokens": tokens}
        try:
            scale, exponent = self.optimum
            if flops is not None:
                parameters = scale * flops**exponent
                found = Allocation(parameters, flops / (FLOPS_FACTOR * parameters))
            elif parameters is not None:
                tokens = (parameters / scale) ** (1 / exponent) / (FLOPS_FACTOR * parameters)
                found = Allocation(parameters, tokens)
            else:
                assert tokens is not None, "one amount"
                needed = (FLOPS_FACTOR * scale * tokens) ** (1 / (1 - exponent))
                found = Allocation(needed / (FLOPS_FACTOR * tokens), tokens)
        except (OverflowError, ZeroDivisionError):
            found = Allocation(math.inf, math.inf)
        if not (0 < found.parameters < math.inf and 0 < found.tokens < math.inf):
            amount = next(f"{value:.3g} {name}" for name, value in budget.items() if value is not None)
            problem = f"the best size and tokens for {amount} are beyond the range of floating-point numbers"
            accepted = "constants of the magnitude of published laws (plan --law chinchilla)"
            raise UserError(problem, field="law", value=self.name, accepted=accepted)
        return found


class ParametricLaw(Law):
    """`L = E + A / N^alpha + B / D^beta` (Hoffmann et al., arXiv 2203.15556, equation 2).

    Of a fitted law: objective is its Huber loss; intervals are 95 % intervals unless `fit` states another coverage; fit
    describes the runs and the other approaches; bytes_per_token is that of the runs' text.
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
        with np.errstate(over="ignore", divide="ignore"):  # a power that overflows leaves a term of 0
            size, text = np.float64(parameters), np.float64(tokens)
            return self.E + self.A / size**self.alpha + self.B / text**self.beta

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


class BothTerms(Spec):
    """Constants of the law in size and tokens together."""

    parameters: PowerTerm
    tokens: PowerTerm


class KaplanOptimum(Spec):
    """`N = parameters_of_a_pf_day * (C in PF-days) ^ exponent`."""

    parameters_of_a_pf_day: PositiveFloat
    exponent: PositiveFloat


class KaplanLaw(Law):
    """The laws of Kaplan et al. (arXiv 2001.08361), each fitted separately, so they agree only roughly.

    parameters, tokens, pf_days: the loss if that alone is the limit (equations 1.1 to 1.3). both: equation 1.5.
    optimal: table 6. There `C` is the least compute, at small batches.
    """

    form: Literal["kaplan"]
    parameters: PowerTerm
    tokens: PowerTerm
    pf_days: PowerTerm
    both: BothTerms
    optimal: KaplanOptimum

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Equation 1.5: `((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D`."""
        size, text = self.both.parameters, self.both.tokens
        ratio = size.exponent / text.exponent
        with np.errstate(over="ignore"):
            return ((size.scale / np.float64(parameters)) ** ratio + text.scale / np.float64(tokens)) ** text.exponent

    def lowest_loss(
        self, *, flops: float | None = None, parameters: float = math.inf, tokens: float = math.inf
    ) -> float:
        if flops is not None:
            term, amount = self.pf_days, flops / PF_DAY_FLOPS
        else:
            term, amount = (self.tokens, tokens) if math.isinf(parameters) else (self.parameters, parameters)
        with np.errstate(over="ignore"):
            return float(np.float64(term.scale / amount) ** term.exponent)

    @property
    def optimum(self) -> tuple[float, float]:
        exponent = self.optimal.exponent
        return self.optimal.parameters_of_a_pf_day / PF_DAY_FLOPS**exponent, exponent


FORMS: dict[str, type[Law]] = {"parametric": ParametricLaw, "kaplan": KaplanLaw}


def read_law(source: str | Path) -> Law:
    """Read a published law by its name, or a law from a file as `linnet plan fit` writes it.

    A file needs only `{"E", "A", "B", "alpha", "beta"}`. `UserError` names what is missing or wrong.
    """
    published = LAWS / f"{source}.json"
    path = published if published.parent == LAWS and published.is_file() else Path(source)
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in LAWS.glob("*.json")))
        raise UserError(f"no such file, and no law of that name; laws: {names}", field="law", value=source)
    plain = read_checked_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping with E, A, B, alpha, beta, found {type(plain).__name__}")
    form = plain.get("form", "parametric")
    if form not in FORMS:
        raise UserError(f"{path}: form: {form!r}: must be one of {', '.join(FORMS)}")
    return FORMS[form].parse({"name": path.stem, **plain}, str(path))


def published_laws() -> list[Law]:
    """Return the published laws in the order of their names."""
    return [read_law(path.stem) for path in sorted(LAWS.glob("*.json"))]


def laws_for_plan(source: str) -> tuple[Law, list[Law]]:
    """Return the law to plan with, and all laws to predict with: the published ones, after a user's own law."""
    published = published_laws()
    for law in published:
        if law.name == source:
            return law, published
    own = read_law(source).model_copy(update={"name": source})
    return own, [own, *published]
