"""All that a protocol asks of models, as tables, a page and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from linnet.core.errors import UserError
from linnet.evaluation.tasks.suite import load_tasks
from linnet.experiments.protocol.scores import (
    ModelScores,
    difference_tables,
    measure_scores,
    scores_figures,
    scores_table,
)
from linnet.experiments.protocol.spec import OtherModel, Protocol, TimesSpec
from linnet.experiments.protocol.times import (
    Contestant,
    Timed,
    contestants,
    time_in_turn,
    times_figures,
    times_table,
)
from linnet.experiments.side_by_side.report import SideBySide
from linnet.inference.device import resolve_device
from linnet.inference.language_model import LanguageModel, load
from linnet.inspection.text_model import Target, TextModel, inspect_model
from linnet.layers.registry import inspections
from linnet.present.result import Result
from linnet.present.table import Table

Opponents = Callable[[OtherModel, TimesSpec, torch.device], list[Contestant]]
"""How a model of another library becomes one that can be timed: `interop.contestants`."""


@dataclass(frozen=True)
class ProtocolFindings:
    """What was found; a section that was not asked for is empty. inspected: by model, then inspection."""

    protocol: Protocol
    scores: Sequence[ModelScores]
    inspected: Mapping[str, Mapping[str, Result]]
    timed: Sequence[Timed]
    device: torch.device

    def tables(self) -> list[Table]:
        """In the order of the protocol's sections."""
        tables: list[Table] = []
        if self.protocol.scores is not None:
            tables += [scores_table(self.scores, self.protocol.scores), *difference_tables(self.scores)]
        for name, results in self.inspected.items():
            every = [part for result in results.values() for part in result.tables() if isinstance(part, Table)]
            tables += [replace(table, title=f"{name}: {table.title}") for table in every]
        if self.protocol.times is not None:
            tables.append(times_table(self.timed, self.protocol.times, self.device))
        return tables

    def page(self) -> SideBySide:
        """The same as a report."""
        facts = {"protocol": self.protocol.source}
        return SideBySide(self.protocol.title, [], [], {}, {}, further=self.tables(), facts=facts)

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return {
            "title": self.protocol.title,
            "source": self.protocol.source,
            "scores": scores_figures(self.scores) if self.scores else None,
            "inspections": {
                name: {one: result.to_dict() for one, result in results.items()}
                for name, results in self.inspected.items()
            },
            "times": times_figures(self.timed, self.device) if self.timed else None,
        }


def run_protocol(
    protocol: Protocol,
    models: Sequence[str | Path],
    opponents: Opponents,
    files: str | Path | None = None,
    limit: int | None = None,
    device: str = "auto",
) -> ProtocolFindings:
    """Measure model folders, or runs'. files: the folder of the suite's questions, of which `limit` are asked.

    opponents: makes those that a protocol times models against.

    `UserError` for questions that are missing or not asked for, and for models that cannot be measured so.
    """
    wanted = protocol.scores
    for field, value in (("files", files), ("limit", limit)):
        if wanted is None and value is not None:
            raise UserError("the protocol asks no questions; leave it out", field=field, value=value)
    suite = None if wanted is None else load_tasks(wanted.suite, files, limit=limit)
    on = resolve_device(device)
    others = [] if protocol.times is None else _others(protocol.times, opponents, on, models)
    loaded = {str(model): load(model, device) for model in models}
    inspected = _inspected(loaded, protocol.inspections, device)
    scores = [] if wanted is None or suite is None else measure_scores(loaded, wanted, suite)
    timed = [] if protocol.times is None else _timed(loaded, protocol.times, others)
    return ProtocolFindings(protocol, scores, inspected, timed, on)


def _others(
    spec: TimesSpec, opponents: Opponents, device: torch.device, models: Sequence[str | Path]
) -> list[Contestant]:
    """`UserError` before anything is measured where one cannot be made, or has the name of a model."""
    for other in spec.against:
        if other.name in map(str, models):
            raise UserError(f"times.against: {other.name}: a model has that name too; expected another")
    return [one for other in spec.against for one in opponents(other, spec, device)]


def _timed(models: Mapping[str, LanguageModel], spec: TimesSpec, others: Sequence[Contestant]) -> list[Timed]:
    own = [one for name, model in models.items() for one in contestants(model, name, spec)]
    return time_in_turn([*own, *others], spec)


def _inspected(
    models: Mapping[str, LanguageModel], wanted: Mapping[str, Mapping[str, Any]], device: str
) -> dict[str, dict[str, Result]]:
    """Of the models that have what is inspected; the others have none to show."""
    found: dict[str, dict[str, Result]] = {}
    for name, model in models.items():
        for inspection, options in wanted.items():
            if inspections()[inspection].applies(TextModel(model)):
                target = Target(name, device=device)
                found.setdefault(name, {})[inspection] = inspect_model(inspection, target, **options)
    return found
