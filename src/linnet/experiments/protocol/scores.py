"""A suite's scores as papers print them: models as rows, tasks as columns; below a model its other calibrations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linnet.evaluation.tasks.measure import measure_suite
from linnet.evaluation.tasks.results import AveragedScore, SuiteReport, SuiteResult, TaskResult, percent
from linnet.evaluation.tasks.suite import Suite
from linnet.experiments.protocol.spec import ScoresSpec
from linnet.inference.language_model import LanguageModel
from linnet.model.calibration import calibrated_layers
from linnet.present.table import MISSING, Table


@dataclass(frozen=True)
class ModelScores:
    """One model as it is, then with other calibrations, then read without a shared state."""

    own: SuiteResult
    operated: Sequence[SuiteResult]
    read_anew: SuiteResult | None

    @property
    def results(self) -> list[SuiteResult]:
        """All of them, as it is first."""
        return [self.own, *self.operated, *([] if self.read_anew is None else [self.read_anew])]

    @property
    def moved_by_caches(self) -> float | None:
        """The largest difference of a task's score without the KV-cache; None where that was not asked for."""
        if self.read_anew is None:
            return None
        pairs = zip(self.own.tasks, self.read_anew.tasks, strict=True)
        return max(abs(kept.mean.value - anew.mean.value) for kept, anew in pairs)


def measure_scores(models: Mapping[str, LanguageModel], spec: ScoresSpec, suite: Suite) -> list[ModelScores]:
    """Ask every model all items, once for each of its rows."""
    return [_of_model(model, name, spec, suite) for name, model in models.items()]


def _of_model(model: LanguageModel, name: str, spec: ScoresSpec, suite: Suite) -> ModelScores:
    sources = spec.calibrations if calibrated_layers(model.decoder) else []
    operated = [
        measure_suite(model.with_calibration(source, spec.seed), f"{name}, {source}", suite) for source in sources
    ]
    anew = measure_suite(model, f"{name}, no KV-cache", suite, fork=False) if spec.without_kv_cache else None
    return ModelScores(measure_suite(model, name, suite), operated, anew)


def scores_table(found: Sequence[ModelScores], spec: ScoresSpec) -> Table:
    """Chance, then the models, those with other calibrations below their own; `±` the standard error."""
    asked = [_score(found[0].own, task) for task in spec.columns.values()]
    rows = [["chance", *(percent(None if one is None else one.chance) for one in asked)]]
    for one in found:
        rows += [
            [_row_name(one, result), *(_cell(_score(result, task)) for task in spec.columns.values())]
            for result in one.results
        ]
    return Table("Zero-shot scores", ("model", *spec.columns), rows, _meaning(found, spec))


def _row_name(one: ModelScores, result: SuiteResult) -> str:
    return result.model if result is one.own else f"  {result.model.removeprefix(f'{one.own.model}, ')}"


def _meaning(found: Sequence[ModelScores], spec: ScoresSpec) -> str:
    said = "Per cent, ± standard error. A model calibrates on the empty prompt, the end token alone."
    if any(one.operated for one in found):
        said += f" {', '.join(spec.calibrations)}: other calibrations in its place (random: from seed {spec.seed})."
    moves = [one.moved_by_caches for one in found if one.moved_by_caches is not None]
    if moves:
        said += (
            " no KV-cache: every choice read with its whole context, calibrated alike; it moves a score by at most"
            f" {100 * max(moves):.2g}."
        )
    return said


def difference_tables(found: Sequence[ModelScores]) -> list[Table]:
    """Models against the first, then each with other calibrations against itself, item by item."""
    return [table for compared in _compared(found) for table in compared.difference_tables()]


def scores_figures(found: Sequence[ModelScores]) -> dict[str, Any]:
    """The numbers by name, ready for JSON."""
    return {
        "models": [
            {
                **one.own.to_dict(),
                "calibrations": [result.to_dict() for result in one.operated],
                "without_kv_cache": None if one.read_anew is None else one.read_anew.to_dict(),
                "moved_by_kv_cache": one.moved_by_caches,
            }
            for one in found
        ],
        "differences": [row for compared in _compared(found) for row in compared.to_dict()["differences"]],
    }


def _compared(found: Sequence[ModelScores]) -> Iterator[SuiteReport]:
    yield SuiteReport([one.own for one in found])
    for one in found:
        yield SuiteReport([one.own, *one.operated])


def _score(result: SuiteResult, task: str) -> TaskResult | AveragedScore | None:
    """Of a task or average; None for one whose files are not there."""
    if task in result.suite.averages:
        return result.average(task)
    return next((one for one in result.tasks if one.task.name == task), None)


def _cell(score: TaskResult | AveragedScore | None) -> str:
    return MISSING if score is None else f"{percent(score.mean.value)}\n± {percent(score.mean.standard_error)}"
