"""All that a protocol asks of models, as tables, a page and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.evaluation.tasks.interface import chosen_suite
from linnet.experiments.protocol.scores import (
    ModelScores,
    difference_tables,
    measure_scores,
    scores_figures,
    scores_table,
)
from linnet.experiments.protocol.spec import DeducedSpec, Protocol
from linnet.experiments.side_by_side.report import SideBySide
from linnet.inference.language_model import LanguageModel, load
from linnet.inspection.caches import CacheComparison, compare_caches
from linnet.inspection.tables import caches_tables
from linnet.present.table import Table


@dataclass(frozen=True)
class ProtocolFindings:
    """What was found; a section that was not asked for is empty. deduced: by model."""

    protocol: Protocol
    scores: Sequence[ModelScores]
    deduced: Mapping[str, CacheComparison]

    def tables(self) -> list[Table]:
        """In the order of the protocol's sections."""
        tables: list[Table] = []
        if self.protocol.scores is not None:
            tables += [scores_table(self.scores, self.protocol.scores), *difference_tables(self.scores)]
        for name, found in self.deduced.items():
            tables += [replace(table, title=f"{name}: {table.title}") for table in caches_tables(found)]
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
            "deduced": {name: found.figures() for name, found in self.deduced.items()},
        }


def run_protocol(
    protocol: Protocol,
    models: Sequence[str | Path],
    files: str | Path | None = None,
    limit: int | None = None,
    device: str = "auto",
) -> ProtocolFindings:
    """Measure model folders, or runs'. files: the folder of the suite's questions, of which `limit` are asked.

    `UserError` for questions that are missing or not asked for, and for models that cannot be measured so.
    """
    wanted = protocol.scores
    for field, value in (("files", files), ("limit", limit)):
        if wanted is None and value is not None:
            raise UserError("the protocol asks no questions; leave it out", field=field, value=value)
    suite = None if wanted is None else chosen_suite(wanted.suite, files, limit=limit)
    loaded = {str(model): load(model, device) for model in models}
    deduced = {} if protocol.deduced is None else _deduced(loaded, protocol.deduced)
    scores = [] if wanted is None or suite is None else measure_scores(loaded, wanted, suite)
    return ProtocolFindings(protocol, scores, deduced)


def _deduced(models: Mapping[str, LanguageModel], spec: DeducedSpec) -> dict[str, CacheComparison]:
    """Of the models that deduce operators; the others have none to show."""
    deducing = {name: model for name, model in models.items() if any(m.traits.settles for m in model.decoder.mixers)}
    return {name: compare_caches(model, spec.prompt, spec.tokens) for name, model in deducing.items()}
