"""MeRino's search (arXiv 2403.07921, Algorithms 1 and 2): a population of models that mutate within the budgets.

Candidates are judged one after another from plain lists: for single ones that is faster than arrays.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import NonNegativeInt, PositiveInt, model_validator

from linnet.core.spec import Spec
from linnet.design.scores import penalty
from linnet.design.space import Candidate, Coordinates, Space
from linnet.design.tables import Numbers, Tables
from linnet.present.progress import Advance


class EvolutionSettings(Spec):
    """population: models before the worst are dropped (M). parents: those that stay (K). iterations: how often (T).

    reach: a mutated number moves by so many of its choices at most. Everything follows from the seed.
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


class Judge:
    """Score and metrics of one candidate at a time: `Tables.judge` in plain numbers."""

    def __init__(self, tables: Tables, limits_M: Numbers) -> None:
        self.beta, self.definition, self.outer = tables.beta, tables.settings.width, tables.outer
        self.put_terms_together = min if self.definition == "minimum" else sum
        limited = [index for index, most in enumerate(limits_M) if most < float("inf")]
        self.limits = [float(limits_M[index]) for index in limited]
        self.fixed = [float(tables.fixed_metrics_M[index]) for index in limited]
        self.metrics = [tables.metrics_BM[:, index].tolist() for index in limited]
        self.joins = [tables.join_metrics_WWM[:, :, index].tolist() for index in limited]
        self.widths, self.depths = tables.width_B.tolist(), tables.depth_B.tolist()
        self.terms, self.scores = tables.term_B.tolist(), tables.score_B.tolist()
        self.join_scores, self.fixed_score = tables.join_score_WW.tolist(), tables.fixed_score

    def within(self, candidate: Candidate) -> bool:
        """Whether every budget holds."""
        pairs = self._pairs(candidate)
        for most, total, of_block, of_join in zip(self.limits, self.fixed, self.metrics, self.joins, strict=True):
            for block in candidate:
                total += of_block[block]  # noqa: PLW2901
            for before, after in pairs:
                total += of_join[before][after]  # noqa: PLW2901
            if total > most:
                return False
        return True

    def score(self, candidate: Candidate) -> float:
        """What the search maximises."""
        total = self.fixed_score + sum(self.scores[block] for block in candidate)
        total += sum(self.join_scores[before][after] for before, after in self._pairs(candidate))
        depth = sum(self.depths[block] for block in candidate)
        term = self.put_terms_together(self.terms[block] for block in candidate)
        value: float = total * penalty(depth, term, self.beta, self.definition)
        return value

    def _pairs(self, candidate: Candidate) -> list[tuple[int, int]]:
        return list(pairwise([self.outer, *(self.widths[block] for block in candidate), self.outer]))


class Mutation:
    """Algorithm 2: a random block's fields are moved to values near by."""

    def __init__(self, space: Space, reach: int, draw: random.Random) -> None:
        self.coordinates, self.numbers, self.choices = space.coordinates, space.numbers, space.choices
        self.reach, self.draw = reach, draw

    def __call__(self, parent: Candidate) -> Candidate:
        """A child: numbers move by at most `reach` choices, other fields become any of theirs.

        Coordinates that make no block are drawn again.
        """
        place = self.draw.randrange(len(parent))
        here = self.coordinates[parent[place]]
        block = None
        while block is None:
            block = self.numbers.get(self._moved(here))
        return (*parent[:place], block, *parent[place + 1 :])

    def _moved(self, here: Coordinates) -> Coordinates:
        moved = []
        for at, choice in zip(here, self.choices, strict=True):
            if choice.ordered:
                step = self.draw.randint(-self.reach, self.reach)
                moved.append(min(max(at + step, 0), choice.options - 1))
            else:
                moved.append(self.draw.randrange(choice.options))
        return tuple(moved)


@dataclass(frozen=True)
class Evolved:
    """The best model, its score, and how many candidates were drawn and how many of them were within the budgets."""

    candidate: Candidate
    score: float
    drawn: int
    kept: int


def evolve(
    tables: Tables, limits_M: Numbers, start: Candidate, settings: EvolutionSettings, advance: Advance
) -> Evolved:
    """Algorithm 1 from a population of `start` alone, which is within the limits; `advance` hears of each iteration."""
    judge, draw = Judge(tables, limits_M), random.Random(settings.seed)
    mutate = Mutation(tables.space, settings.reach, draw)
    assert judge.within(start)
    population, drawn, kept = [(judge.score(start), start)], 0, 0
    for _ in range(settings.iterations):
        while len(population) < settings.population:
            _, parent = draw.choice(population)
            child = mutate(parent)
            drawn += 1
            if judge.within(child):
                population.append((judge.score(child), child))
                kept += 1
        population = best(population, settings.parents)
        advance(1, f"{population[0][0]:,.6g}")
    return Evolved(population[0][1], population[0][0], drawn, kept)


def best(population: Sequence[tuple[float, Candidate]], count: int) -> list[tuple[float, Candidate]]:
    """The `count` of highest score, from the highest; of equal ones those that came first."""
    return sorted(population, key=lambda member: -member[0])[:count]
