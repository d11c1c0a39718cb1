"""A paper's table as a JSON file, and own numbers beside it: `linnet compare --against`."""

from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import read_json
from linnet.core.spec import Spec
from linnet.evaluation.tasks.suite import suite_names, suite_spec
from linnet.present.table import MISSING, Table

METRICS = (
    "bits_per_byte", "accuracy", "parameters", "training_tokens", "training_tokens_per_s", "decode_tokens_per_s",
    "decode_100_tokens_ms", "weights_bytes", "state_bytes_1k", "state_bytes_64k", "state_bytes_1M",
)  # fmt: skip
"""What a column can be compared with, beside tasks and their averages; accuracy and tasks in per cent, as papers print
them; decode_100_tokens_ms: milliseconds for 100 tokens of one stream."""


class PublishedColumn(Spec):
    """`metric`: which of own numbers it is; without one the column is shown and nothing is set beside it."""

    name: str = Field(min_length=1)
    metric: str | None = None


class PublishedRow(Spec):
    """One of the paper's models, and its values by the names of the columns; those that are not told are left out."""

    model: str = Field(min_length=1)
    values: dict[str, float]


class PublishedTable(Spec):
    """A published table. reference: the row that differences are taken from; the first row that has the value if none.

    source: where it is from, as one cites it. note: what a reader has to know.
    """

    title: str
    source: str
    note: str = ""
    reference: str | None = None
    columns: list[PublishedColumn] = Field(min_length=1)
    rows: list[PublishedRow] = Field(min_length=1)

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise ValueError(f"columns: {', '.join(names)}: expected each name once")
        for index, row in enumerate(self.rows):
            for name in row.values:
                if name not in names:
                    raise ValueError(f"rows[{index}].values: {name}: expected names of columns: {', '.join(names)}")
        models = [row.model for row in self.rows]
        if self.reference is not None and self.reference not in models:
            raise ValueError(f"reference: {self.reference}: expected one of the rows: {', '.join(models)}")
        return self

    @classmethod
    def load(cls, path: str | Path, tasks: Collection[str] = ()) -> Self:
        """Read a JSON file; `tasks`: those that are asked beside the suites'. `UserError` names the field at fault."""
        found = cls.parse(read_json(path), str(path))
        known = [*METRICS, *dict.fromkeys([*_of_suites(), *tasks])]
        for index, column in enumerate(found.columns):
            if column.metric is not None and column.metric not in known:
                close = did_you_mean(column.metric, known, "")
                accepted = f"expected one of {', '.join(known)}"
                said = "; ".join(part for part in (close, accepted) if part)
                raise UserError(f"{path}: columns[{index}].metric: {column.metric}: {said}")
        return found

    def value_of_reference(self, column: str) -> float | None:
        """What own numbers of a column are compared with."""
        rows = [row for row in self.rows if self.reference in (None, row.model)]
        return next((row.values[column] for row in rows if column in row.values), None)


def _of_suites() -> list[str]:
    specs = [suite_spec(name) for name in suite_names()]
    return [name for spec in specs for name in (*(task.name for task in spec.tasks), *spec.averages)]


def against_table(published: PublishedTable, own: Mapping[str, Mapping[str, float]]) -> Table:
    """The paper's rows, then own models with the differences below. own: values by metric, of each model."""
    rows = [
        [row.model, *(_said(published, column, row.values.get(column.name)) for column in published.columns)]
        for row in published.rows
    ]
    rows += [
        [f"{name} (own)", *(_own(published, column, values) for column in published.columns)]
        for name, values in own.items()
    ]
    reference = published.reference or "the first row that has the value"
    meaning = " ".join(
        part
        for part in (
            f"Published: {published.source}.",
            f"Below own numbers: less those of {reference}.",
            published.note,
            _unmeasured(published, own),
        )
        if part
    )
    return Table(published.title, ("model", *(column.name for column in published.columns)), rows, meaning)


def _own(published: PublishedTable, column: PublishedColumn, values: Mapping[str, float]) -> str:
    value = None if column.metric is None else values.get(column.metric)
    reference = published.value_of_reference(column.name)
    if value is None or reference is None:
        return _said(published, column, value)
    return f"{_said(published, column, value)}\n{value - reference:+,.{_decimals(published, column)}f}"


def _said(published: PublishedTable, column: PublishedColumn, value: float | None) -> str:
    return MISSING if value is None else f"{value:,.{_decimals(published, column)}f}"


def _decimals(published: PublishedTable, column: PublishedColumn) -> int:
    """As many as the paper gives."""
    values = [row.values[column.name] for row in published.rows if column.name in row.values]
    exponents = [Decimal(repr(value)).normalize().as_tuple().exponent for value in values]
    return max((max(0, -exponent) for exponent in exponents if isinstance(exponent, int)), default=0)


def _unmeasured(published: PublishedTable, own: Mapping[str, Mapping[str, float]]) -> str:
    metrics = {column.metric for column in published.columns if column.metric is not None}
    missing = sorted(metrics - {metric for values in own.values() for metric in values})
    return f"Not measured here: {', '.join(missing)}." if missing else ""
