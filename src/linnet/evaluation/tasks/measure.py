"""Models on tasks: scores with errors, chance, baselines, verdicts, and differences between models.

A score alone says little about a small model, so each is tested against guessing and shown beside the scores of
choosing without reading; several tasks are corrected for their number (Holm). Shapes: `N` items of a task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.core.files import json_safe
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.statistics import (
    SIGNIFICANT,
    Estimate,
    Floats,
    holm_correction,
    mean,
    mean_of,
    p_value_against_chance,
    paired_difference,
)
from linnet.evaluation.tasks.contamination import Overlap, overlaps_with
from linnet.evaluation.tasks.items import ScoreName, baselines
from linnet.evaluation.tasks.scorer import Advance, LoglikelihoodScorer, StateFactory, encode_requests
from linnet.evaluation.tasks.suite import SuiteTask, TaskSuite, load_tasks
from linnet.inference.language_model import LanguageModel
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.present.result import Result
from linnet.present.table import MISSING, Table

NO_CHANCE_LEVEL = "no chance known"
CHANCE = "not distinguishable from chance"
BASELINES = {"longest": "taking the longest", "shortest": "taking the shortest", "letter": "the commonest letter"}
PERCENT = "Scores and errors in per cent."


@dataclass(frozen=True)
class TaskResult:
    """The score of each item of a task, float64 `[N]`. other_scores: the means of the other scores.

    ties: items whose score the order of equally likely choices decides. in_windows: items with a choice that is longer
    than the model's context and was read in windows.
    """

    task: SuiteTask
    values_N: Floats
    other_scores: dict[str, float]
    ties: int = 0
    in_windows: int = 0

    @cached_property
    def mean(self) -> Estimate:
        """The score, with its standard error over the items."""
        return mean(self.values_N)

    @cached_property
    def chances_N(self) -> Floats | None:
        """The mean score of guessing for each item; None if there are no choices to guess among."""
        if not all(item.labels for item in self.task.items):
            return None
        return np.array([item.chance for item in self.task.items])

    @property
    def chance(self) -> float | None:
        """The mean score of guessing."""
        return None if self.chances_N is None else float(self.chances_N.mean())

    @cached_property
    def p_value(self) -> float | None:
        """Of the hypothesis that the score is chance (`p_value_against_chance`); not corrected for several tasks."""
        return None if self.chances_N is None else p_value_against_chance(self.values_N, self.chances_N)

    @cached_property
    def baselines(self) -> dict[str, float]:
        """The scores of choosing without reading the question; empty if there are no choices."""
        return {} if self.chances_N is None else baselines(self.task.items)

    def subset(self, keep_N: NDArray[np.bool_]) -> Estimate | None:
        """The score of some of the items; None without items."""
        return mean(self.values_N[keep_N]) if keep_N.any() else None


@dataclass(frozen=True)
class AveragedScore:
    """A mean of the scores of tasks, each with the same weight. chance: the mean of theirs; None if one is unknown."""

    name: str
    mean: Estimate
    chance: float | None
    items: int


@dataclass(frozen=True)
class TaskSuiteResult:
    """The results of one model on the tasks of a suite."""

    model: str
    suite: TaskSuite
    tasks: Sequence[TaskResult]

    def average(self, name: str) -> AveragedScore:
        """One of the suite's averages."""
        tasks = [task for task in self.tasks if task.task.name in self.suite.averages[name]]
        chances = [task.chance for task in tasks if task.chance is not None]
        chance = sum(chances) / len(tasks) if len(chances) == len(tasks) else None
        return AveragedScore(name, mean_of([task.mean for task in tasks]), chance, sum(t.mean.count for t in tasks))

    def to_dict(self, overlaps: Sequence[Overlap] | None = None) -> dict[str, Any]:
        """The figures for JSON: null for what is not finite or unknown; shares, not per cent."""
        tasks: dict[str, Any] = {}
        for number, (result, (corrected, verdict)) in enumerate(zip(self.tasks, verdicts(self.tasks), strict=True)):
            task = result.task
            figures: dict[str, Any] = {
                task.score: result.mean.value,
                "score": task.score,
                "value": result.mean.value,
                "standard_error": result.mean.standard_error,
                "other_scores": result.other_scores,
                "chance": result.chance,
                "baselines": result.baselines,
                "items": len(task.items),
                "ties": result.ties,
                "in_windows": result.in_windows,
                "shots": task.shots,
                "shots_from": task.shots_from,
                "p_value": result.p_value,
                "p_value_holm": corrected,
                "verdict": verdict,
            }
            if overlaps is not None:
                overlap = overlaps[number]
                shared, others = result.subset(overlap.shared_N), result.subset(~overlap.shared_N)
                figures["overlap"] = {
                    "shared": int(overlap.shared_N.sum()),
                    "too_short": int(overlap.short_N.sum()),
                    "of_shared": None if shared is None else shared.value,
                    "of_others": None if others is None else others.value,
                    "standard_error_of_others": None if others is None else others.standard_error,
                }
            tasks[task.name] = json_safe(figures)
        averages = {
            one.name: json_safe({"mean": one.mean.value, "standard_error": one.mean.standard_error})
            for one in map(self.average, self.suite.averages)
        }
        return {
            "model": self.model,
            "suite": self.suite.name,
            "tasks": tasks,
            "averages": averages,
            "missing": list(self.suite.missing),
        }


def verdicts(tasks: Sequence[TaskResult]) -> list[tuple[float | None, str]]:
    """For each task, the p-value against guessing, corrected for their number (Holm), and a verdict in words.

    A score above chance that a baseline reaches as well is not above that baseline.
    """
    found = []
    for task, p_value in zip(tasks, holm_correction([task.p_value for task in tasks]), strict=True):
        if lost := int(np.isnan(task.values_N).sum()):
            verdict = f"no score: of {lost:,} of {len(task.values_N):,} items the model gave no number"
        elif task.chance is None:
            verdict = NO_CHANCE_LEVEL
        elif p_value is None or p_value >= SIGNIFICANT:
            verdict = CHANCE
        elif task.mean.value < task.chance:
            verdict = "below chance"
        else:
            name, best = max(task.baselines.items(), key=lambda named: named[1])
            reached = task.mean.value <= best
            verdict = f"above chance, not above {BASELINES[name]}" if reached else "above chance"
        found.append((p_value, verdict))
    return found


@dataclass(frozen=True)
class ScoreDifference:
    """The difference of two models on a task or average; corrected: its p-value, corrected for the number of tasks."""

    name: str
    difference: Estimate
    corrected: float | None

    @property
    def verdict(self) -> str:
        if not math.isfinite(self.difference.value):
            return "no score of one"
        if self.corrected is None or self.corrected >= SIGNIFICANT:
            return "no difference shown"
        return "better" if self.difference.value > 0 else "worse"


def compare_scores(first: TaskSuiteResult, second: TaskSuiteResult) -> list[ScoreDifference]:
    """`second - first` on the same items: each task, then the averages, whose p-values are not corrected."""
    differences = [paired_difference(a.values_N, b.values_N) for a, b in zip(first.tasks, second.tasks, strict=True)]
    corrected = holm_correction([difference.p_value() for difference in differences])
    names = [task.task.name for task in first.tasks]
    found = [ScoreDifference(*row) for row in zip(names, differences, corrected, strict=True)]
    by_name = dict(zip(names, differences, strict=True))
    for average, tasks in first.suite.averages.items():
        difference = mean_of([by_name[name] for name in tasks])
        found.append(ScoreDifference(average, difference, difference.p_value()))
    return found


@dataclass(frozen=True)
class SuiteReport(Result):
    """The results of several models on one suite; the others are compared with the first.

    overlaps: for each task, the overlap of its items with the training text `train_text`, if one was given.
    """

    results: Sequence[TaskSuiteResult]
    overlaps: Sequence[Overlap] | None = None
    train_text: str = ""

    def tables(self) -> list[Table]:
        """The scores of each model, the differences from the first, and the overlap with the training text."""
        found = [*map(score_table, self.results), *self.difference_tables()]
        if self.overlaps is not None:
            found += [overlap_table(result, self.overlaps, self.train_text) for result in self.results]
        return found

    def difference_tables(self) -> list[Table]:
        first, *others = self.results
        return [difference_table(first.model, other.model, compare_scores(first, other)) for other in others]

    def to_dict(self) -> dict[str, Any]:
        first, *others = self.results
        differences = []
        for other in others:
            tasks = {
                row.name: json_safe(
                    {
                        "difference": row.difference.value,
                        "standard_error": row.difference.standard_error,
                        "interval": None if (interval := row.difference.interval()) is None else list(interval),
                        "p_value": row.difference.p_value(),
                        "p_value_holm": row.corrected,
                        "verdict": row.verdict,
                    }
                )
                for row in compare_scores(first, other)
            }
            differences.append({"first": first.model, "second": other.model, "tasks": tasks})
        models = [result.to_dict(self.overlaps) for result in self.results]
        return {"models": models, "differences": differences, "train_text": self.train_text or None}


def score_table(result: TaskSuiteResult) -> Table:
    """For each task and average: score, standard error, chance, baselines and verdict."""
    columns = ("task", "score", "is", "±", "chance", "longest", "shortest", "letter", "items", "verdict")
    rows = [
        (
            task.task.name,
            task.task.score,
            percent(task.mean.value),
            percent(task.mean.standard_error),
            percent(task.chance),
            *(percent(task.baselines.get(name)) for name in ("longest", "shortest", "letter")),
            numbers.grouped(len(task.task.items)),
            verdict,
        )
        for task, (_, verdict) in zip(result.tasks, verdicts(result.tasks), strict=True)
    ]
    for one in map(result.average, result.suite.averages):
        shares = (one.mean.value, one.mean.standard_error, one.chance)
        rows.append((one.name, "mean", *map(percent, shares), "", "", "", numbers.grouped(one.items), ""))
    rows += [(Path(file).stem, *[""] * 8, f"no {file}") for file in result.suite.missing]
    note = (
        f"{PERCENT} Verdicts: two-sided, 5 % for all tasks together (Holm). longest, shortest, letter: taking the "
        "longest choice, the shortest, the commonest place."
    )
    shots = max((task.task.shots for task in result.tasks), default=0)
    own = [task.task.name for task in result.tasks if task.task.shots_from == f"{task.task.name}.jsonl"]
    splits = [f"{task.task.name}: {task.task.shots_from}" for task in result.tasks if task.task.shots_of_harness]
    if shots:
        source = "; ".join(splits) or "from NAME_train.jsonl"
        note += f" Each item follows {shots} examples with their answers, {source}"
        note += f"; {', '.join(own)}, which have none, use other items." if own else "."
    for count, remark in (
        ("ties", "Right and wrong choices are equally likely, and the first counts"),
        ("in_windows", "A choice is longer than the model's context and was read in windows"),
    ):
        found = [(task.task, number) for task in result.tasks if (number := getattr(task, count))]
        if found:
            note += f" {remark}: {', '.join(f'{task.name} {n} of {len(task.items)} items' for task, n in found)}."
    return Table(f"{result.model}: {result.suite.name}", columns, rows, note)


def difference_table(first: str, second: str, rows: Sequence[ScoreDifference]) -> Table:
    """`second - first` on the same items, with its 95 % interval."""
    columns = ("task", "difference", "from", "to", "p (Holm)", "verdict")
    cells = []
    for row in rows:
        ends = row.difference.interval() or (math.nan, math.nan)
        shares = (row.difference.value, *ends)
        signed = (numbers.signed(100 * share, 1) if math.isfinite(share) else MISSING for share in shares)
        p_value = MISSING if row.corrected is None else f"{row.corrected:.3f}"
        cells.append((row.name, *signed, p_value, row.verdict))
    note = f"{PERCENT} Paired: the same items; 95 % intervals; p corrected for the number of tasks, except averages."
    return Table(f"{second} against {first}", columns, cells, note)


def overlap_table(result: TaskSuiteResult, overlaps: Sequence[Overlap], text: str) -> Table:
    """The scores of the items that share a run of words with the training text, and of the others."""
    columns = ("task", "items", "too short", "shared", "score", "of shared", "of others", "± of others")
    rows = []
    for task, overlap in zip(result.tasks, overlaps, strict=True):
        shared, others = task.subset(overlap.shared_N), task.subset(~overlap.shared_N)
        counts = (len(task.task.items), overlap.short_N.sum(), overlap.shared_N.sum())
        scores = [task.mean.value, None if shared is None else shared.value]
        scores += [None, None] if others is None else [others.value, others.standard_error]
        rows.append((task.task.name, *map(numbers.grouped, counts), *map(percent, scores)))
    note = f"{PERCENT} shared: items with 13 consecutive words of the text (all words of shorter ones, at least 8)."
    return Table(f"{result.model}: overlap with {text}", columns, rows, note)


def percent(share: float | None) -> str:
    """`31.4`; a dash for what is unknown."""
    return MISSING if share is None or not math.isfinite(share) else f"{100 * share:.1f}"


SINGLE_RIGHT: tuple[ScoreName, ...] = ("acc", "acc_norm", "acc_bytes")
"""The scores of items with one right choice."""


def evaluate_suite(
    models: Sequence[str | Path],
    suite: str | None = None,
    files: str | Path | None = None,
    *,
    task_file: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    train_text: str | Path | None = None,
    device: str = "auto",
    precision: str | None = None,
    calibration: str | None = None,
    seed: int = 0,
) -> SuiteReport:
    """Measure model folders, or runs, on every item of a suite whose files are in `files`, or of a `task_file`.

    suite: a suite of linnet, or `minimal-pairs`, whose `files` is one file. shots: examples before each item. limit:
    items of each task. train_text: a text, or a folder, whose overlap with the items is reported. calibration, seed:
    what replaces the model's own calibration. `UserError` for missing files and invalid rows.
    """
    loaded = load_tasks(suite, files, task_file, shots, limit)
    overlaps = None if train_text is None else overlaps_with(loaded.tasks, Path(train_text))
    options = ModelOptions(None, device, calibration, precision, seed)
    results = [measure_suite(options.load(name), str(name), loaded) for name in models]
    return SuiteReport(results, overlaps, "" if train_text is None else str(train_text))


def measure_suite(model: LanguageModel, name: str, suite: TaskSuite, fork: bool = True) -> TaskSuiteResult:
    """Measure a model, called `name` in the results, on all items. fork: see `LoglikelihoodScorer`."""
    scorer = LoglikelihoodScorer(StateFactory.of_model(model), fork)
    total = sum(len(item.pairs) for task in suite.tasks for item in task.items)
    with progress(f"{name}: {suite.name}", total, "choices") as advance:
        results = [measure_task(model, scorer, task, advance) for task in suite.tasks]
    return TaskSuiteResult(name, suite, results)


def measure_task(
    model: LanguageModel, scorer: LoglikelihoodScorer, task: SuiteTask, advance: Advance = lambda _: None
) -> TaskResult:
    """Measure a model on the items of one task."""
    requests = encode_requests(model.tokenizer, [pair for item in task.items for pair in item.pairs])
    log_likelihoods = iter(result.log_likelihood for result in scorer.score(requests, advance))
    by_item = [[next(log_likelihoods) for _ in item.pairs] for item in task.items]
    is_long = iter(len(request.continuation) > model.spec.context_length for request in requests)
    in_windows = sum(max(next(is_long) for _ in item.pairs) for item in task.items)
    ties = sum(item.is_tied(task.score, found) for item, found in zip(task.items, by_item, strict=True))
    single = all(sum(item.labels) == 1 for item in task.items)
    others = [name for name in SINGLE_RIGHT if single and name != task.score]
    values = {
        name: np.array([item.score(name, found) for item, found in zip(task.items, by_item, strict=True)])
        for name in (task.score, *others)
    }
    other_scores: dict[str, float] = {name: float(values[name].mean()) for name in others}
    return TaskResult(task, values[task.score], other_scores, ties, in_windows)
