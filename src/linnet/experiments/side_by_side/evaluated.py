"""Finished models that were measured on a text, or asked tasks, on the page that comparisons have."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from linnet.evaluation.models import ModelOptions
from linnet.evaluation.results import POSITIONS_CAPTION, ModelComparison, positions_panel
from linnet.evaluation.tasks.results import SuiteReport
from linnet.experiments.side_by_side.measure import measure_beside, task_scores
from linnet.experiments.side_by_side.record import Beside, MemoryFigures, TaskScore
from linnet.experiments.side_by_side.report import SideBySide
from linnet.experiments.side_by_side.tables import chart
from linnet.experiments.side_by_side.wanted import Wanted
from linnet.model.calibration import stored_spec
from linnet.model.spec import ModelSpec
from linnet.model.store import model_folder, read_description
from linnet.present.result import Picture


def of_text(found: ModelComparison, text: str, wanted: Wanted | None, read: ModelOptions) -> SideBySide:
    """From models that read the same documents of `text`, and what else is wanted of them, all `read` alike."""
    quality, differences = found.tables()
    folders = _folders(found.names)
    panel = positions_panel(found.names, found.evaluations)
    return SideBySide(
        "Models compared",
        [quality],
        [Picture("positions", "Loss by position", chart(panel), POSITIONS_CAPTION)],
        _memory(folders, read),
        _beside(folders, wanted, read),
        further=[differences],
        facts={"text": text, **_facts(read)},
    )


def of_tasks(found: SuiteReport, wanted: Wanted | None, read: ModelOptions) -> SideBySide:
    """From models that were asked the same tasks, and what else is wanted of them, all `read` alike."""
    folders = _folders([result.model for result in found.results])
    beside = _beside(folders, wanted, read)
    asked = {result.model: _with_tasks(beside[result.model], task_scores(result)) for result in found.results}
    differences = found.difference_tables()
    return SideBySide("Models compared", [], [], _memory(folders, read), asked, further=differences, facts=_facts(read))


def _with_tasks(beside: Beside, asked: Sequence[TaskScore]) -> Beside:
    """With these before its own tasks, of which one of the same name, asked in another way, is called another's."""
    names = {score.task for score in asked}
    own = [
        score.model_copy(update={"task": f"{score.task} (also)"}) if score.task in names else score
        for score in beside.tasks
    ]
    return beside.model_copy(update={"tasks": [*asked, *own]})


def _beside(folders: Mapping[str, Path], wanted: Wanted | None, read: ModelOptions) -> dict[str, Beside]:
    return {name: Beside() for name in folders} if wanted is None else measure_beside(folders, wanted, read)


def _facts(read: ModelOptions) -> dict[str, str]:
    drawn = f", drawn from seed {read.seed}" if read.calibration == "random" else ""
    calibration = {}
    if read.calibration is not None:
        calibration = {"calibration": f"{read.calibration}, in place of the models' own{drawn}"}
    return calibration | ({} if read.precision is None else {"precision": f"weights converted to {read.precision}"})


def _folders(names: Sequence[str]) -> dict[str, Path]:
    return {name: Path(name) for name in names}


def _memory(folders: Mapping[str, Path], read: ModelOptions) -> dict[str, MemoryFigures]:
    """From the descriptions in the model folders; with given calibrations where those are measured."""
    specs = {
        name: ModelSpec.parse(read_description(model_folder(folder)), str(folder)) for name, folder in folders.items()
    }
    given = {name: spec if read.calibration is None else stored_spec(spec) for name, spec in specs.items()}
    return {name: MemoryFigures.of(spec) for name, spec in given.items()}
