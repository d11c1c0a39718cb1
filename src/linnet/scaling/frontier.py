"""The best size and its tokens for a budget, as powers of the budget: what approaches 1 and 2 find.

Legend: `M` budgets.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from linnet.core.arrays import Numbers


@dataclass(frozen=True)
class PowerLaw:
    """`y = scale * x ^ exponent`."""

    scale: float
    exponent: float

    @classmethod
    def through(cls, x: Numbers, y: Numbers) -> Self:
        """By least squares of the logarithms."""
        exponent, intercept = np.polyfit(np.log(x), np.log(y), 1)
        return cls(float(np.exp(intercept)), float(exponent))

    def __call__(self, x: Numbers) -> Numbers:
        """Its values."""
        return self.scale * x**self.exponent


@dataclass(frozen=True)
class Frontier:
    """At each of `flops_M` training FLOPs, ascending, the best size, its tokens, and the loss there."""

    flops_M: Numbers
    parameters_M: Numbers
    tokens_M: Numbers
    loss_M: Numbers

    @property
    def parameters(self) -> PowerLaw:
        """`N = k C^a`."""
        return PowerLaw.through(self.flops_M, self.parameters_M)

    @property
    def tokens(self) -> PowerLaw:
        """`D = k C^b`."""
        return PowerLaw.through(self.flops_M, self.tokens_M)


class NotPossibleError(ValueError):
    """The runs do not allow an approach; one line says why."""
