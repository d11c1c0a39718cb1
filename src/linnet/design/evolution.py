"""Evolutionary search of MeRino (arXiv 2403.07921, Algorithms 1 and 2): a population that mutates within the budgets.

Legend: `B` blocks of the space, `N` blocks of a model, `C` candidates, `K` choices of a block.
"""

from dataclasses import dataclass

import numpy as np
from pydantic import NonNegativeInt, PositiveInt, model_validator

from linnet.core.arrays import Indices, Numbers
from linnet.core.spec import Spec
from linnet.design.cost_tables import CostTables
from linnet.design.space import Candidate, Space
from linnet.present.progress import Advance

BROOD = 32
"""Children drawn at once; children can be parents of the next draw."""


class EvolutionSettings(Spec):
    """population: models before the worst are dropped (M). parents: models that stay (K). iterations: rounds (T).

    reach: a mutated number moves by at most this many of its choices. The seed determines the result.
    """

    population: PositiveInt = 512
    parents: PositiveInt = 256
    iterations: PositiveInt = 200
    reach: PositiveInt = 2
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _fewer_parents_than_population(self) -> "EvolutionSettings":
        if self.parents >= self.population:
            raise ValueError(f"parents: {self.parents}: must be fewer than population, which is {self.population}")
        return self


class Mutation:
    """Algorithm 2: the fields of a random block move to nearby values."""

    def __init__(self, space: Space, reach: int, draw: np.random.Generator) -> None:
        self.reach, self.draw = reach, draw
        self.options_K = np.array([choice.options for choice in space.choices], dtype=np.int64)
        self.ordered_K = np.array([choice.ordered for choice in space.choices], dtype=bool)
        self.strides_K = np.append(1, np.cumprod(self.options_K))[:-1]
        self.coordinates_BK = np.array(space.coordinates, dtype=np.int64)
        self.number = np.full(self.options_K.prod(), -1)
        for where, number in space.numbers.items():
            self.number[np.array(where, dtype=np.int64) @ self.strides_K] = number

    def __call__(self, parents_CN: Indices) -> Indices:
        """Return a child of each parent: numbers move by at most `reach` choices, other fields take any option.

        Coordinates that make no valid block are drawn again.
        """
        rows, places = np.arange(len(parents_CN)), self.draw.integers(parents_CN.shape[1], size=len(parents_CN))
        here_CK = self.coordinates_BK[parents_CN[rows, places]]
        block_C = np.full(len(parents_CN), -1)
        while (left := np.flatnonzero(block_C < 0)).size:
            steps = self.draw.integers(-self.reach, self.reach, here_CK[left].shape, endpoint=True)
            near = np.clip(here_CK[left] + steps, 0, self.options_K - 1)
            moved = np.where(self.ordered_K, near, self.draw.integers(self.options_K, size=near.shape))
            block_C[left] = self.number[moved @ self.strides_K]
        children_CN = parents_CN.copy()
        children_CN[rows, places] = block_C
        return children_CN


@dataclass(frozen=True)
class EvolutionResult:
    """The best model, its score, the number of candidates drawn, and how many of them were within the budgets."""

    candidate: Candidate
    score: float
    drawn: int
    kept: int


def evolve(
    tables: CostTables, limits_M: Numbers, start: Candidate, settings: EvolutionSettings, advance: Advance
) -> EvolutionResult:
    """Run Algorithm 1 from a population of `start` alone, which is within the limits; `advance` counts iterations."""
    draw = np.random.default_rng(settings.seed)
    mutate = Mutation(tables.space, settings.reach, draw)
    models_CN, drawn, kept = np.array([start]), 0, 0
    score_C = tables.evaluate(models_CN).score_C
    for _ in range(settings.iterations):
        while (missing := settings.population - len(models_CN)) > 0:
            brood = min(missing, BROOD)
            children_CN = mutate(models_CN[draw.integers(len(models_CN), size=brood)])
            evaluation = tables.evaluate(children_CN)
            within = np.flatnonzero((evaluation.metrics_CM <= limits_M).all(1))
            models_CN = np.concatenate([models_CN, children_CN[within]])
            score_C = np.concatenate([score_C, evaluation.score_C[within]])
            drawn, kept = drawn + brood, kept + len(within)
        best = np.argsort(-score_C, kind="stable")[: settings.parents]  # of equal scores the earlier models stay
        models_CN, score_C = models_CN[best], score_C[best]
        advance(1, f"{score_C[0]:,.6g}")
    return EvolutionResult(tuple(map(int, models_CN[0])), float(score_C[0]), drawn, kept)
