"""Finished models that were measured on a text, or asked tasks, on the page that comparisons have."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from linnet.evaluation.comparison import PairedComparison
from linnet.evaluation.pictures import positions_panel
from linnet.evaluation.tables import comparison_tables
from linnet.evaluation.tasks.interface import TaskFindings
from linnet.experiments.side_by_side.measure import measure_beside, task_scores
from linnet.experiments.side_by_side.record import Beside, MemoryFigures
from linnet.experiments.side_by_side.report import SideBySide
from linnet.experiments.side_by_side.tables import chart
from linnet.experiments.side_by_side.wanted import Wanted
from linnet.model.spec import ModelSpec
from linnet.model.store import model_folder, read_description
from linnet.present.report import Picture


def of_text(
    found: PairedComparison, text: str, wanted: Wanted | None, device: str = "auto", weights: str | None = None
) -> SideBySide:
    """From models that read the same documents of `text`, and what else is wanted of them, all in that precision."""
    quality, differences = comparison_tables(found)
    folders = _folders(found.names)
    caption = "Bits per byte by the tokens of the window before, with a band of the standard error."
    panel = positions_panel(found.names, found.measured)
    return SideBySide(
        "Models compared",
        [quality],
        [Picture("positions", "Loss by position", chart(panel), caption)],
        _memory(folders),
        _beside(folders, wanted, device, weights),
        further=[differences],
        facts={"text": text, **_facts(weights)},
    )


def of_tasks(
    found: TaskFindings, wanted: Wanted | None, device: str = "auto", weights: str | None = None
) -> SideBySide:
    """From models that were asked the same tasks, and what else is wanted of them, all in that precision."""
    folders = _folders([result.model for result in found.results])
    beside = _beside(folders, wanted, device, weights)
    asked = {
        result.model: beside[result.model].model_copy(
            update={"tasks": [*task_scores(result), *beside[result.model].tasks]}
        )
        for result in found.results
    }
    differences = found.difference_tables()
    return SideBySide("Models compared", [], [], _memory(folders), asked, further=differences, facts=_facts(weights))


def _beside(folders: Mapping[str, Path], wanted: Wanted | None, device: str, weights: str | None) -> dict[str, Beside]:
    if wanted is None:
        return {name: Beside() for name in folders}
    return measure_beside(folders, wanted, device, weights)


def _facts(weights: str | None) -> dict[str, str]:
    return {} if weights is None else {"weights": f"brought to {weights}"}


def _folders(names: Sequence[str]) -> dict[str, Path]:
    return {name: Path(name) for name in names}


def _memory(folders: Mapping[str, Path]) -> dict[str, MemoryFigures]:
    """From the descriptions in the model folders."""
    specs = {
        name: ModelSpec.parse(read_description(model_folder(folder)), str(folder)) for name, folder in folders.items()
    }
    return {name: MemoryFigures.of(spec) for name, spec in specs.items()}
