"""Search for the best shape of a space within budgets: by evolution and, where it can be proven, the true optimum.

The evolution is that of MeRino (arXiv 2403.07921, Algorithms 1 and 2): a population that mutates within the budgets.

Legend: `B` blocks of the space, `N` blocks of a model, `C` candidates, `K` choices of a block.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import NonNegativeInt, PositiveInt, model_validator

from linnet.core.arrays import Indices, Numbers
from linnet.core.errors import UserError
from linnet.core.files import write_text
from linnet.core.spec import Spec
from linnet.data.token_data import read_manifest
from linnet.design.cost_tables import CostTables, build_cost_tables
from linnet.design.feasibility import find_within_budgets, limits
from linnet.design.metrics import Budget, CostCounts, Metric
from linnet.design.optimum import Optimum, TooLargeError, optimum
from linnet.design.scores import ScoreSettings, find_score
from linnet.design.space import Candidate, Space, load_space
from linnet.model.cost import WeightType
from linnet.model.spec import ModelSpec
from linnet.present.progress import Advance, progress

Method = Literal["auto", "evolution", "exact"]

FLOPS_TOKENS = 1024
"""Default number of tokens over which FLOPs are counted; the models' context length if that is shorter."""

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
    """The best model, its score, the number of drawn candidates, and how many were accepted, within the budgets."""

    candidate: Candidate
    score: float
    drawn: int
    accepted: int


def evolve(
    tables: CostTables, limits_M: Numbers, start: Candidate, settings: EvolutionSettings, advance: Advance
) -> EvolutionResult:
    """Run Algorithm 1 from a population of `start` alone, which is within the limits; `advance` counts iterations."""
    draw = np.random.default_rng(settings.seed)
    mutate = Mutation(tables.space, settings.reach, draw)
    models_CN, drawn, accepted = np.array([start]), 0, 0
    score_C = tables.evaluate(models_CN).score_C
    for _ in range(settings.iterations):
        while (missing := settings.population - len(models_CN)) > 0:
            brood = min(missing, BROOD)
            children_CN = mutate(models_CN[draw.integers(len(models_CN), size=brood)])
            evaluation = tables.evaluate(children_CN)
            within = np.flatnonzero((evaluation.metrics_CM <= limits_M).all(1))
            models_CN = np.concatenate([models_CN, children_CN[within]])
            score_C = np.concatenate([score_C, evaluation.score_C[within]])
            drawn, accepted = drawn + brood, accepted + len(within)
        best = np.argsort(-score_C, kind="stable")[: settings.parents]  # of equal scores the earlier models stay
        models_CN, score_C = models_CN[best], score_C[best]
        advance(1, f"{score_C[0]:,.6g}")
    return EvolutionResult(tuple(map(int, models_CN[0])), float(score_C[0]), drawn, accepted)


class DesignSettings(Spec):
    """Settings of a search: of its score and of the evolution."""

    score: ScoreSettings = ScoreSettings()
    search: EvolutionSettings = EvolutionSettings()


@dataclass(frozen=True)
class SearchTask:
    """A space, budgets of metrics, a score by its name, and the search method."""

    space: Space
    budgets: Sequence[Budget]
    score: str
    settings: DesignSettings
    method: Method = "auto"

    def tables(self, goals: Sequence[Metric] = ()) -> CostTables:
        """Build cost tables, the goals' metrics first; `UserError` if there is no such score."""
        names = {goal.name for goal in goals}
        metrics = [*goals, *(budget.metric for budget in self.budgets if budget.metric.name not in names)]
        return build_cost_tables(self.space, metrics, find_score(self.score), self.settings.score)


@dataclass(frozen=True)
class SearchResult:
    """The best known model within all budgets, and how it was found.

    evolution: result of the evolution; None if it did not run. optimum: the proven best; None if it is not known
    (`too_large`: the proof was abandoned) or was not requested. values: value of each budget's metric.
    """

    plain: dict[str, Any]
    model: ModelSpec
    score: float
    values: list[float]
    evolution: EvolutionResult | None
    optimum: Optimum | None
    too_large: bool

    @property
    def gap(self) -> float | None:
        """Relative shortfall of evolution against the optimum; None if one of the two is not known."""
        if self.evolution is None or self.optimum is None or self.optimum.score == 0:
            return None
        return max(0.0, 1 - self.evolution.score / self.optimum.score)


def search(task: SearchTask, name: str | None = None) -> SearchResult:
    """Find the model with the highest score within all budgets.

    `UserError` if nothing meets them, with the smallest value that could be met.
    """
    tables, settings = task.tables(), task.settings.search
    limits_M, start = limits(task.budgets, tables), find_within_budgets(task.budgets, tables)
    evolution, proven, too_large = None, None, False
    if task.method != "exact":
        with progress("searching", settings.iterations, "iterations") as advance:
            evolution = evolve(tables, limits_M, start, settings, advance)
    if task.method != "evolution":
        try:
            with progress("proving", None, "partial models") as advance:
                proven = optimum(tables, limits_M, evolution.score if evolution else -np.inf, advance)
        except TooLargeError:
            too_large = True
            if evolution is None:
                raise UserError(
                    f"of the {task.space.size:.2g} models of the space {task.space.spec.name} too many could be the"
                    " optimum, so the proof was abandoned",
                    field="method",
                    value="exact",
                    accepted="auto or evolution",
                ) from None
    best = proven or evolution
    candidate = best.candidate if best is not None else start
    evaluation = tables.evaluate(np.array([candidate]))
    values = [float(value) for value in evaluation.metrics_CM[0]]
    assert all(value <= budget.limit for value, budget in zip(values, task.budgets, strict=True))
    plain, model = task.space.describe(candidate, name), task.space.model(candidate, name)
    return SearchResult(plain, model, float(evaluation.score_C[0]), values, evolution, proven, too_large)


def write_description(plain: dict[str, Any], path: str | Path, remarks: Sequence[str]) -> None:
    """Write a model's description as YAML for `linnet train`, with remarks as comments above it."""
    head = "".join(f"# {' '.join(remark.split())}\n" for remark in remarks)
    blocks = [copy.deepcopy(block) for block in plain["blocks"]]  # distinct objects, so that YAML writes no aliases
    text = yaml.safe_dump(
        {**plain, "blocks": blocks}, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    write_text(path, head + text)


def design(
    space: str | Path,
    *,
    max_flops: float | None = None,
    max_parameters: float | None = None,
    max_active_parameters: float | None = None,
    max_weights: float | None = None,
    max_state: Mapping[int, float] | None = None,
    max_training_memory: float | None = None,
    data: str | Path | None = None,
    vocab_size: int | None = None,
    score: str = "penalized_parameters",
    method: Method = "auto",
    tokens: int | None = None,
    with_head: bool = False,
    precision: WeightType = "float32",
    batch: int = 8,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> SearchResult:
    """Find the model with the highest score in a search space within every budget; `.model` of the result describes it.

    space: a built-in space (hybrid, merino, mixed, patterned, study) or a YAML file. max_flops: forward FLOPs of a
    sequence of `tokens` tokens. max_active_parameters: parameters that one token uses. max_weights,
    max_training_memory: bytes. max_state: bytes of decode state by the tokens of the stream, `{4096: 2e6}`. data: a
    data folder whose vocabulary the models get. settings: of the search and its score, as in
    `{"search": {"seed": 1}, "score": {"beta": 2}}`. Raises `UserError` if nothing meets the budgets, with the smallest
    value that could be met.
    """
    of_data = None if data is None else read_manifest(Path(data)).tokenizer.vocab_size
    found_space = load_space(space, (), vocab_size or of_data)
    context = found_space.model([0] * found_space.spec.blocks).context_length
    counts = CostCounts(tokens or min(FLOPS_TOKENS, context), with_head, precision, batch)
    upper = {"flops": max_flops, "parameters": max_parameters, "weights": max_weights}
    upper |= {"active_parameters": max_active_parameters, "training_memory": max_training_memory}
    upper |= {f"state@{length}": most for length, most in (max_state or {}).items()}
    budgets = []
    for metric_name, most in upper.items():
        metric = counts.metric(metric_name)
        if most is not None:
            assert metric is not None
            budgets.append(Budget(metric, most, f"max_{metric_name}: {most:g}"))
    return search(
        SearchTask(found_space, budgets, score, DesignSettings.parse(settings or {}, "settings"), method), name
    )
