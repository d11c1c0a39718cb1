"""The report: one page and one Markdown table of all that was found of several models, from the same tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from linnet.core.files import write_text
from linnet.experiments.side_by_side.record import Beside, MemoryFigures
from linnet.experiments.side_by_side.tables import (
    ability_table,
    memory_picture,
    memory_table,
    sample_parts,
    sample_table,
    speed_table,
    task_table,
)
from linnet.present.page import timestamp, write_page
from linnet.present.result import Answer, Paragraph, Part, Picture
from linnet.present.table import MISSING, Table, cell_markdown, table_markdown

MARKDOWN = "report.md"


@dataclass(frozen=True)
class SideBySide:
    """What a report is made of; whatever is empty has no place in it.

    quality: a row for each model. pictures: what belongs to it. differences: models as columns. further: tables that
    are no row or column of models. memory, beside: by model, in the order of columns.
    """

    title: str
    quality: Sequence[Table]
    pictures: Sequence[Picture]
    memory: Mapping[str, MemoryFigures]
    beside: Mapping[str, Beside]
    differences: Sequence[Table] = ()
    further: Sequence[Table] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    conclusion: str = ""

    def report(self) -> Answer:
        """For a page."""
        memory: list[Part] = [memory_picture(self.memory), memory_table(self.memory)] if self.memory else []
        drawn: list[Part] = [Paragraph("In pictures", ""), *self.pictures] if self.pictures or memory else []
        parts: list[Part] = [
            *self.quality,
            *self.differences,
            *drawn,
            *memory,
            *speed_table(self.beside),
            *task_table(self.beside),
            *ability_table(self.beside),
            *self.further,
            *sample_parts(self.beside),
        ]
        return Answer(self.title, self.facts, {}, parts, ending=self.conclusion)

    def summary(self) -> Table:
        """All of it as one table, models as columns."""
        memory = [memory_table(self.memory)] if self.memory else []
        tables = [
            *map(_transposed, self.quality),
            *self.differences,
            *speed_table(self.beside),
            *memory,
            *task_table(self.beside),
            *ability_table(self.beside),
            *sample_table(self.beside),
        ]
        models = list(dict.fromkeys(name for table in tables for name in _models(table)))
        rows = [row for table in tables for row in _rows(table, models)]
        return Table(self.title, ("", *models), rows)

    def notes(self) -> list[str]:
        """What the rows mean."""
        tables = [part for part in self.report().parts if isinstance(part, Table)]
        told = [table for table in tables if table.meaning and table not in self.further]
        return [": ".join(part for part in (table.title, table.meaning) if part) for table in told]


def write_report(found: SideBySide, folder: Path, command: str) -> Path:
    """Write `report.html` with its pictures, and `report.md`; the page's path."""
    made = timestamp()
    path = write_page(found.report(), folder, command, made)
    write_text(folder / MARKDOWN, markdown(found, command, made))
    return path


def markdown(found: SideBySide, command: str, made: str) -> str:
    """One table, what its rows mean, then the tables that have no place in it."""
    summary = found.summary()
    facts = [f"- {cell_markdown(f'{name}: {fact}')}" for name, fact in found.facts.items()]
    notes = [f"- {cell_markdown(note)}" for note in [*found.notes(), *([found.conclusion] if found.conclusion else [])]]
    parts = [f"# {cell_markdown(found.title)}\n", f"Made by {cell_markdown(command)}, {made}.\n"]
    parts += ["\n".join(facts) + "\n"] if facts else []
    parts += [table_markdown(summary)] if summary.rows else []
    parts += ["\n".join(notes) + "\n"] if notes else []
    for table in found.further:
        parts += [
            f"## {cell_markdown(table.title)}\n",
            table_markdown(table),
            *([f"{cell_markdown(table.meaning)}\n"] if table.meaning else []),
        ]
    return "\n".join(parts)


def _transposed(table: Table) -> Table:
    """Models as columns; rows that are parts of the one above are left out."""
    rows = [row for row in table.rows if not row[0].startswith(" ")]
    columns = [list(column) for column in zip(*rows, strict=True)]
    told = [[name, *cells] for name, cells in zip(table.columns[1:], columns[1:], strict=True)]
    return Table(table.title, ("", *columns[0]), told, table.meaning)


def _models(table: Table) -> Sequence[str]:
    return table.columns[table.leading :]


def _rows(table: Table, models: Sequence[str]) -> list[list[str]]:
    """With the kind of row before its name and what holds for all models behind it; a dash for one that is missing."""
    rows = []
    for row in table.rows:
        by_model = dict(zip(_models(table), row[table.leading :], strict=True))
        rows.append([_row_name(table, row), *(by_model.get(model, MISSING) for model in models)])
    return rows


def _row_name(table: Table, row: Sequence[str]) -> str:
    """`task arc_easy (chance 25.0 %)`."""
    kind, *headings = table.columns[: table.leading]
    parts = [(*heading.partition(", ")[::2], cell) for heading, cell in zip(headings, row[1:], strict=False)]
    told = [f" ({heading} {cell} {unit})" for heading, unit, cell in parts]
    return f"{kind} {row[0]}{''.join(told)}".strip()
