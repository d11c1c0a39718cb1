"""A search: the best shape of a space within budgets, by evolution and, where it can be known, the true optimum."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from linnet.core.errors import UserError
from linnet.core.files import write_text
from linnet.core.spec import Spec
from linnet.design.budget import Budget, find_within_budgets, limits
from linnet.design.cost_tables import CostTables, build_cost_tables
from linnet.design.evolution import EvolutionResult, EvolutionSettings, evolve
from linnet.design.metrics import Metric
from linnet.design.optimum import Optimum, TooLargeError, optimum
from linnet.design.scores import ScoreSettings, find_score
from linnet.design.space import Space
from linnet.model.spec import ModelSpec
from linnet.present.progress import progress

Method = Literal["auto", "evolution", "exact"]


class DesignSettings(Spec):
    """Settings of a search: of its score and of the evolution."""

    score: ScoreSettings = ScoreSettings()
    search: EvolutionSettings = EvolutionSettings()


@dataclass(frozen=True)
class SearchTask:
    """What is wanted: budgets of metrics, a score by its name, how it is searched for."""

    space: Space
    budgets: Sequence[Budget]
    score: str
    settings: DesignSettings
    method: Method = "auto"

    def tables(self, goals: Sequence[Metric] = ()) -> CostTables:
        """Costs and scores of every block, the goals' metrics first; `UserError` where there is no such score."""
        names = {goal.name for goal in goals}
        metrics = [*goals, *(budget.metric for budget in self.budgets if budget.metric.name not in names)]
        return build_cost_tables(self.space, metrics, find_score(self.score), self.settings.score)


@dataclass(frozen=True)
class SearchResult:
    """The best model that is known, within all budgets, and how it was found.

    evolution: what evolution found; None where it was not asked. optimum: the proven best; None where it is not known
    (`too_large`: its proof was given up) or was not asked for. values: of each budget's metric.
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
        """By how much of the optimum's score evolution fell short of it; None where one of both is not known."""
        if self.evolution is None or self.optimum is None or self.optimum.score == 0:
            return None
        return max(0.0, 1 - self.evolution.score / self.optimum.score)


def search(task: SearchTask, name: str | None = None) -> SearchResult:
    """Look for the model of the highest score within all budgets.

    `UserError` where nothing meets them, with the smallest that could be met.
    """
    tables, settings = task.tables(), task.settings.search
    limits_M, start = limits(task.budgets, tables), find_within_budgets(task.budgets, tables)
    evolution, proven, too_large = None, None, False
    if task.method != "exact":
        with progress("searching", settings.iterations, "iterations") as advance:
            evolution = evolve(tables, limits_M, start, settings, advance)
    if task.method != "evolution":
        try:
            with progress("proving", None, "beginnings") as advance:
                proven = optimum(tables, limits_M, evolution.score if evolution else -np.inf, advance)
        except TooLargeError:
            too_large = True
            if evolution is None:
                raise _too_large(task.space) from None
    best = proven or evolution
    candidate = best.candidate if best is not None else start
    evaluation = tables.evaluate(np.array([candidate]))
    values = [float(value) for value in evaluation.metrics_CM[0]]
    assert all(value <= budget.limit for value, budget in zip(values, task.budgets, strict=True))
    plain, model = task.space.describe(candidate, name), task.space.model(candidate, name)
    return SearchResult(plain, model, float(evaluation.score_C[0]), values, evolution, proven, too_large)


def _too_large(space: Space) -> UserError:
    return UserError(
        f"of the {space.size:.2g} models of the space {space.spec.name} too many could be the optimum, so its proof was"
        " given up",
        field="method",
        value="exact",
        accepted="auto or evolution",
    )


def write_description(plain: dict[str, Any], path: str | Path, remarks: Sequence[str]) -> None:
    """A model's description as YAML that `linnet train` takes, with remarks above it."""
    head = "".join(f"# {' '.join(remark.split())}\n" for remark in remarks)
    apart = {**plain, "blocks": [copy.deepcopy(block) for block in plain["blocks"]]}  # equal ones, but no YAML aliases
    text = yaml.safe_dump(apart, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    write_text(path, head + text)
