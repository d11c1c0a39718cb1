"""What laws are fitted to: runs with their curves, and the points where they end.

Legend: `T` points along one run's curve, `P` points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from linnet.core.arrays import Numbers
from linnet.core.errors import UserError
from linnet.scaling.counts import COUNTINGS, NGRAM, Counting


@dataclass(frozen=True)
class Run:
    """One model and its loss, nats per token, after `tokens_T` tokens and `flops_T` training FLOPs, ascending.

    The last is where training ended; of many runs only that is known. `parameters` by the way of counting.
    """

    name: str
    parameters: dict[Counting, float]
    tokens_T: Numbers
    flops_T: Numbers
    loss_T: Numbers


@dataclass(frozen=True)
class Points:
    """Size, training tokens, training FLOPs and loss at the end of each run, `[P]` each."""

    parameters: Numbers
    tokens: Numbers
    flops: Numbers
    loss: Numbers

    @classmethod
    def of(cls, runs: Sequence[Run], counted: Counting) -> Self:
        """The ends of the runs."""
        parameters = np.array([run.parameters[counted] for run in runs])
        curves = ([run.tokens_T for run in runs], [run.flops_T for run in runs], [run.loss_T for run in runs])
        return cls(parameters, *(np.array([curve[-1] for curve in one]) for one in curves))

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> "Points":
        return Points(self.parameters[chosen], self.tokens[chosen], self.flops[chosen], self.loss[chosen])


def countings(runs: Sequence[Run]) -> list[Counting]:
    """The ways of counting that are known of all runs."""
    return [counted for counted in COUNTINGS if all(counted in run.parameters for run in runs)]


def check_counting(runs: Sequence[Run], counted: Counting) -> None:
    """`UserError` where one of the runs does not say how many parameters it has, counted so."""
    missing = next((run.name for run in runs if counted not in run.parameters), None)
    if missing is not None:
        known = ", ".join(countings(runs))
        raise UserError(
            f"{missing} does not tell its parameters {NGRAM[counted]}; known of all: {known}",
            field="counted",
            value=counted,
        )


def without_highest(runs: Sequence[Run], count: int) -> list[Run]:
    """All but the `count` runs that ended with the highest losses, in the order they had."""
    if not 0 <= count < len(runs):
        raise UserError(f"must be less than the number of runs, {len(runs)}", field="drop_highest", value=count)
    dropped = sorted(range(len(runs)), key=lambda index: runs[index].loss_T[-1])[len(runs) - count :]
    return [run for index, run in enumerate(runs) if index not in dropped]
