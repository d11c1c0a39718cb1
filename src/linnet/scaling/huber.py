"""What approach 3 minimises: Huber losses of the log loss, summed over the points (Hoffmann et al., section 3.3).

`sum_i w_i Huber_delta( LSE(a - alpha log N_i, b - beta log D_i, e) - log L_i )`, `A = exp a`, `B = exp b`, `E = exp e`.
It is a sum, not a mean: with a mean every tolerance of an optimiser is as many times looser as there are points, and it
stops too early (Besiroglu et al., arXiv 2404.10102).

Legend: `S` starts, `P` points, `5` unknowns: a, b, e, alpha, beta.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.scaling.points import Points

DELTA = 1e-3
"""Hoffmann et al., appendix D.3."""

ROWS_AT_ONCE = 64
"""Starts whose `[S, P]` arrays lie in the processor's cache together."""


def huber_sum_reference(x_5: Numbers, points: Points, delta: float = DELTA) -> float:
    """The objective as it is written, point by point."""
    a, b, e, alpha, beta = (float(value) for value in x_5)
    total = 0.0
    for parameters, tokens, loss in zip(points.parameters, points.tokens, points.loss, strict=True):
        of_size, of_text = a - alpha * math.log(parameters), b - beta * math.log(tokens)
        distance = abs(math.log(math.exp(of_size) + math.exp(of_text) + math.exp(e)) - math.log(loss))
        total += distance**2 / 2 if distance <= delta else delta * (distance - delta / 2)
    return total


@dataclass(frozen=True)
class HuberSum:
    """The objective of many starts at once, with its gradient, over centred logarithms.

    With `u = log N - mean` the unknown a becomes `a - alpha mean`, so the two hardly pull on each other. `centred` and
    `uncentred` lead there and back. `weights_SP`: how often each start counts each point; None for once.
    """

    u_P: Numbers
    v_P: Numbers
    log_loss_P: Numbers
    means: tuple[float, float]
    delta: float = DELTA
    weights_SP: Numbers | None = None

    @classmethod
    def of(cls, points: Points, delta: float = DELTA, weights_SP: Numbers | None = None) -> Self:
        """The objective of these points."""
        log_parameters_P, log_tokens_P = np.log(points.parameters), np.log(points.tokens)
        means = float(log_parameters_P.mean()), float(log_tokens_P.mean())
        return cls(log_parameters_P - means[0], log_tokens_P - means[1], np.log(points.loss), means, delta, weights_SP)

    def centred(self, x_S5: Numbers) -> Numbers:
        """The unknowns of this objective for a, b, e, alpha, beta."""
        return self._shifted(x_S5, -1)

    def uncentred(self, x_S5: Numbers) -> Numbers:
        """And back."""
        return self._shifted(x_S5, 1)

    def __call__(self, x_S5: Numbers, rows_S: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
        """Values `[S]` and gradients `[S, 5]`; `rows_S` are the starts' rows of `weights_SP`."""
        value_S, gradient_S5 = np.empty(len(x_S5)), np.empty_like(x_S5)
        for begin in range(0, len(x_S5), ROWS_AT_ONCE):
            part = slice(begin, begin + ROWS_AT_ONCE)
            value_S[part], gradient_S5[part] = self._some(x_S5[part], rows_S[part])
        return value_S, gradient_S5

    def _some(self, x_S5: Numbers, rows_S: NDArray[np.intp]) -> tuple[Numbers, Numbers]:
        a, b, e, alpha, beta = (column[:, None] for column in x_S5.T)
        of_size_SP, of_text_SP = a - alpha * self.u_P, b - beta * self.v_P
        top_SP = np.maximum(np.maximum(of_size_SP, of_text_SP), e)
        size_SP, text_SP, rest_SP = (np.exp(term - top_SP) for term in (of_size_SP, of_text_SP, e))
        sum_SP = size_SP + text_SP + rest_SP
        residual_SP = np.log(sum_SP) + top_SP - self.log_loss_P
        clipped_SP = np.clip(residual_SP, -self.delta, self.delta)  # Huber's derivative
        weighted_SP = clipped_SP if self.weights_SP is None else clipped_SP * self.weights_SP[rows_S]
        value_S = np.einsum("sp,sp->s", weighted_SP, residual_SP - clipped_SP / 2)
        share_SP = weighted_SP / sum_SP
        by_size_SP, by_text_SP, by_rest_SP = (share_SP * term for term in (size_SP, text_SP, rest_SP))
        gradient = (
            by_size_SP.sum(1), by_text_SP.sum(1), by_rest_SP.sum(1), -by_size_SP @ self.u_P, -by_text_SP @ self.v_P,
        )  # fmt: skip
        return value_S, np.stack(gradient, axis=1)

    def _shifted(self, x_S5: Numbers, sign: int) -> Numbers:
        shifted = x_S5.copy()
        shifted[:, :2] += sign * x_S5[:, 3:] * np.array(self.means)
        return shifted
