"""Several models on one page, and in Markdown: quality, memory against context, speed, tasks, abilities, samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from linnet.core.files import write_text
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.results import POSITIONS_CAPTION, ModelComparison, positions_panel
from linnet.evaluation.statistics import NOT_ABOVE_CHANCE
from linnet.evaluation.tasks.measure import SuiteReport, percent
from linnet.experiments.measures import (
    CONTEXTS,
    AbilityScore,
    InstructionScore,
    Measures,
    MemoryFigures,
    ModelMeasures,
    TaskScore,
    WrittenText,
    measure_models,
    task_scores,
)
from linnet.model.calibration import stored_spec
from linnet.model.folder import model_folder, read_description
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.present.page import timestamp, write_page
from linnet.present.plot import Axis, Panel, Plot, Series, line_style
from linnet.present.result import Paragraph, Part, Passage, Picture, Result
from linnet.present.table import MISSING, Table, cell_markdown, table_markdown

MARKDOWN = "report.md"
CHANCE = "chance, %"
TABLE_CONTEXTS = CONTEXTS[::2]
"""Lengths of text that the memory table has a row for."""

CHART_INCHES = (4.9, 3.9)
"""Readable on a telephone, two in a row on a desk."""

MAX_NAMES_AT_ENDS = 8
"""With more lines than that, names stand in a legend: at the ends of the lines they would be hard to follow."""

Extras = Mapping[str, ModelMeasures]


@dataclass(frozen=True)
class SideBySide(Result):
    """Several models on one page; empty parts are left out.

    quality: tables with a row for each model; differences: with models as columns; further: tables about other things.
    memory, extras: by model, in the order of columns.
    """

    heading: str
    quality: Sequence[Table]
    pictures: Sequence[Picture]
    memory: Mapping[str, MemoryFigures]
    extras: Extras
    differences: Sequence[Table] = ()
    further: Sequence[Table] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    def title(self) -> str:
        return self.heading

    def facts(self) -> Mapping[str, str]:
        return self.about

    def conclusion(self) -> str:
        return self.remark

    def to_dict(self) -> dict[str, Any]:
        """The figures of each model that are not in a table of the caller."""
        measures = {name: one.model_dump(mode="json", exclude_defaults=True) for name, one in self.extras.items()}
        return {"memory": {name: one.to_dict() for name, one in self.memory.items()}, "measures": measures}

    def tables(self) -> list[Part]:
        memory: list[Part] = [memory_picture(self.memory), memory_table(self.memory)] if self.memory else []
        heading: list[Part] = [Paragraph("In pictures", "")] if self.pictures or memory else []
        measured = [*speed_table(self.extras), *task_table(self.extras), *ability_table(self.extras)]
        measured += instruction_table(self.extras)
        return [
            *self.quality,
            *self.differences,
            *heading,
            *self.pictures,
            *memory,
            *measured,
            *self.further,
            *sample_parts(self.extras)[0],
        ]

    def page(self) -> list[Part]:
        return self.tables()

    def summary(self) -> Table:
        """All tables about models joined into one, models as columns."""
        quality = []
        for table in self.quality:  # rows that are parts of the row above are left out
            names, *columns = zip(*(row for row in table.rows if not row[0].startswith(" ")), strict=True)
            rows = [[name, *cells] for name, cells in zip(table.columns[1:], columns, strict=True)]
            quality.append(Table(table.title, ("", *names), rows, table.meaning))
        tables = [
            *quality,
            *self.differences,
            *speed_table(self.extras),
            *([memory_table(self.memory)] if self.memory else []),
            *task_table(self.extras),
            *ability_table(self.extras),
            *instruction_table(self.extras),
            *sample_parts(self.extras)[1],
        ]
        models = list(dict.fromkeys(name for table in tables for name in table.columns[table.leading :]))
        rows = []
        for table in tables:
            for row in table.rows:
                by_model = dict(zip(table.columns[table.leading :], row[table.leading :], strict=True))
                # The kind of row, its name, and what holds for all models: `task arc_easy (chance 25.0 %)`.
                kind, *headings = table.columns[: table.leading]
                shared = [
                    (*heading.partition(", ")[::2], cell) for heading, cell in zip(headings, row[1:], strict=False)
                ]
                notes = "".join(f" ({heading} {cell} {unit})" for heading, unit, cell in shared)
                name = f"{kind} {row[0]}{notes}".strip()
                rows.append([name, *(by_model.get(model, MISSING) for model in models)])
        return Table(self.heading, ("", *models), rows)

    def notes(self) -> list[str]:
        """The meaning of the rows of the summary."""
        tables = [part for part in self.tables() if isinstance(part, Table)]
        explained = [table for table in tables if table.meaning and table not in self.further]
        return [": ".join(part for part in (table.title, table.meaning) if part) for table in explained]

    def markdown(self, command: str, made: str) -> str:
        """One table, the meaning of its rows, then the tables that are not about models."""
        summary, notes = self.summary(), [*self.notes(), *([self.remark] if self.remark else [])]
        lists = [[f"{name}: {fact}" for name, fact in self.about.items()], notes]
        facts, remarks = ["".join(f"- {cell_markdown(line)}\n" for line in lines) for lines in lists]
        parts = [f"# {cell_markdown(self.heading)}\n", f"Made by {cell_markdown(command)}, {made}.\n"]
        parts += [part for part in (facts, table_markdown(summary) if summary.rows else "", remarks) if part]
        for table in self.further:
            parts += [f"## {cell_markdown(table.title)}\n", table_markdown(table)]
            parts += [f"{cell_markdown(table.meaning)}\n"] if table.meaning else []
        return "\n".join(parts)


def write_report(found: SideBySide, folder: Path, command: str) -> Path:
    """Write `report.html` with its pictures, and `report.md`; returns the path of the page."""
    made = timestamp()
    path = write_page(found, folder, command, made)
    write_text(folder / MARKDOWN, found.markdown(command, made))
    return path


def chart(panel: Panel) -> Plot:
    """A picture whose lines differ in marks and dashes, not only in color, with names at their ends."""
    named = sum(1 for series in panel.series if series.name)
    return Plot([panel], CHART_INCHES, names="ends" if named <= MAX_NAMES_AT_ENDS else "legend")


def memory_table(memory: Mapping[str, MemoryFigures]) -> Table:
    """Bytes of weights and state together, with the state's below."""
    rows = [("weights alone", *(numbers.binary(one.weights_bytes) for one in memory.values()))]
    for tokens in TABLE_CONTEXTS:
        cells = []
        for one in memory.values():
            cell = f"{numbers.binary(one.total(tokens))}\n{numbers.binary(one.state_bytes[tokens])} of state"
            for label, sizes in one.policy_state_bytes.items():
                cell += f"\n{numbers.binary(sizes[tokens])} with {label}"
            cells.append(cell)
        rows.append((f"at {numbers.tokens(tokens)}", *cells))
    meaning = (
        "Bytes of the weights and of the state of one stream with room for so many tokens of text, both in float32,"
        " exact, computed from the descriptions; below, the state alone, with every token kept and with a cache policy"
        " of the model that sums or drops old tokens. A model may not have been trained to read text of that length."
    )
    return Table("Memory against context", ("memory", *memory), rows, meaning)


def memory_picture(memory: Mapping[str, MemoryFigures]) -> Picture:
    """Weights and state over the tokens of text, both axes logarithmic.

    Each line has its marks at other lengths, so that overlapping lines can be distinguished.
    """
    turns = min(len(memory), len(CONTEXTS))
    series = [
        Series(CONTEXTS, [one.total(tokens) for tokens in CONTEXTS], name, line_style(number), number, dots=dots)
        for number, (name, one) in enumerate(memory.items())
        for dots in [range(number % turns, len(CONTEXTS), turns)]
    ]
    series += [
        Series(CONTEXTS, [one.weights_bytes + sizes[tokens] for tokens in CONTEXTS], f"{name}, {label}", ":", number)
        for number, (name, one) in enumerate(memory.items())
        for label, sizes in one.policy_state_bytes.items()
    ]
    x = Axis("tokens of text", "log2", places={tokens: numbers.tokens(tokens) for tokens in TABLE_CONTEXTS})
    caption = (
        "Weights and state of one stream, both axes logarithmic. A rising line has a state that grows with the text; a"
        " level line has a state that does not grow, or that is small beside the weights. Dotted: with a cache"
        " policy of the model."
    )
    panel = Panel(x, Axis("bytes", "log2", numbers.binary), series)
    return Picture("memory", "Memory against context", chart(panel), caption)


def speed_table(extras: Extras) -> list[Table]:
    """Decoding speed, if it was measured."""
    speeds = {name: one.speed for name, one in extras.items()}
    first = next((speed for speed in speeds.values() if speed is not None), None)
    if first is None:
        return []
    cells = (MISSING if speed is None else numbers.grouped(speed.tokens_per_s) for speed in speeds.values())
    machine = ", ".join(f"{name} {fact}" for name, fact in first.machine.items())
    meaning = (
        f"One stream: the median of {first.runs} runs of {first.tokens} tokens, the models taking turns. Measured on"
        f" this machine: {machine}."
    )
    return [Table("Speed of decoding", ("", *speeds), [["decoding, tokens/s", *cells]], meaning)]


def task_table(extras: Extras) -> list[Table]:
    """A row for each task that any model was asked: chance, then score with standard error and verdict."""
    by_model = {name: {score.task: score for score in one.tasks} for name, one in extras.items()}
    asked = {task: score for scores in by_model.values() for task, score in scores.items()}
    if not asked:
        return []

    def shown(score: TaskScore | None) -> str:
        if score is None:
            return MISSING
        error = "" if score.standard_error is None else f" ± {percent(score.standard_error)}"
        return f"{percent(score.value)}{error}\n{score.verdict}".rstrip("\n")

    rows = [
        [task, percent(score.chance), *(shown(scores.get(task)) for scores in by_model.values())]
        for task, score in asked.items()
    ]
    items = sum(score.items for score in asked.values() if not score.averaged)
    meaning = (
        f"Per cent, ± standard error, {numbers.grouped(items)} items in all; chance: what guessing gives; below each"
        " score whether it differs from chance (two-sided, 5 % for all tasks together, Holm)."
    )
    return [Table("Tasks", ("task", CHANCE, *by_model), rows, meaning, leading=2)]


def ability_table(extras: Extras) -> list[Table]:
    """A row for each ability that could be measured of any model."""
    by_model = {name: {score.ability: score for score in one.abilities} for name, one in extras.items()}
    every = [score for scores in by_model.values() for score in scores.values()]
    asked = {score.ability: score for score in every if score.right is not None}
    if not asked:
        return []

    def shown(score: AbilityScore | None) -> str:
        if score is None or score.right is None:
            return MISSING if score is None else f"{MISSING}\n{score.missing}"
        verdict = "above chance" if score.above_chance else NOT_ABOVE_CHANCE
        return f"{percent(score.right)} ± {percent(score.standard_error)}\n{verdict}"

    rows = [
        [name, numbers.percent_of(score.chance), *(shown(scores.get(name)) for scores in by_model.values())]
        for name, score in asked.items()
    ]
    meaning = (
        f"Whole answers that are right, greedily, per cent ± standard error, of"
        f" {numbers.grouped(max(score.items for score in asked.values()))} questions each; below each whether it is"
        " above chance (exact, 5 % for all abilities together, Holm)."
    )
    # Abilities that no model could be asked, by kind and reason.
    left_out = []
    for reason, mark in (("too long for the context", "tokens or more"), ("of symbols that are no tokens", "symbols")):
        missing = [score for score in every if score.ability not in asked and mark in score.missing]
        kinds = dict.fromkeys(score.ability.split()[0] for score in missing)
        left_out += [f"{reason}: {', '.join(kinds)}"] if kinds else []
    meaning += f" Not asked of any model: {'; '.join(left_out)}." if left_out else ""
    return [Table("Abilities", ("ability", CHANCE, *by_model), rows, meaning, leading=2)]


def instruction_table(extras: Extras) -> list[Table]:
    """A row for each group of prompts: types, several turns, splits, and all."""
    by_model = {name: {score.group: score for score in one.instructions} for name, one in extras.items()}
    groups = {score.group: score for scores in by_model.values() for score in scores.values()}
    if not groups:
        return []

    def shown(score: InstructionScore | None) -> str:
        if score is None:
            return MISSING
        verdict = "" if score.chance is None else "above chance" if score.above_chance else NOT_ABOVE_CHANCE
        error = "" if score.standard_error is None else f" ± {percent(score.standard_error)}"
        return f"{percent(score.followed)}{error}" + (verdict and f"\n{verdict}")

    rows = []
    for name, first in groups.items():
        chance = MISSING if first.chance is None else numbers.percent_of(first.chance)
        rows.append([name, chance, *(shown(scores.get(name)) for scores in by_model.values())])
    meaning = (
        "Greedy answers that pass their checkers, per cent ± standard error; below each, where answers to guess from"
        " are given, whether it is above chance (exact, 5 % for all rows together, Holm)."
    )
    return [Table("Instructions", ("prompts", CHANCE, *by_model), rows, meaning, leading=2)]


def sample_parts(extras: Extras) -> tuple[list[Part], list[Table]]:
    """The texts that all models wrote, for each prompt side by side; and the same as the rows of a table."""
    by_prompt: dict[str, list[tuple[str, int, WrittenText]]] = {}
    for number, (name, one) in enumerate(extras.items()):
        for sample in one.samples:
            by_prompt.setdefault(sample.prompt, []).append((name, number, sample))
    parts: list[Part] = []
    rows = []
    for prompt, samples in by_prompt.items():
        parts.append(Paragraph(f"Continuations of “{prompt}”" if prompt else "Samples", ""))
        for name, number, sample in samples:
            end, note = ("", "") if sample.complete else (" …", "Cut here.")
            parts.append(Passage(name, sample.prompt, sample.text + end, number, note))
        texts = {name: sample.text.strip() + ("" if sample.complete else " …") for name, _, sample in samples}
        rows.append([f"continuation of “{prompt}”", *(texts.get(name, MISSING) for name in extras)])
    return parts, [Table("Samples", ("", *extras), rows, text=True)] if rows else []


def page_of_text(found: ModelComparison, text: str, measures: Measures | None, options: ModelOptions) -> SideBySide:
    """A page about finished models that were measured on the same documents of `text`."""
    quality, differences = found.tables()
    panel = positions_panel(found.names, found.evaluations)
    pictures = [Picture("positions", "Loss by position", chart(panel), POSITIONS_CAPTION)]
    page = _page_of_models(found.names, measures, options)
    about = {"text": text, **page.about}
    return replace(page, quality=[quality], pictures=pictures, further=[differences], about=about)


def page_of_tasks(found: SuiteReport, measures: Measures | None, options: ModelOptions) -> SideBySide:
    """A page about finished models that were asked the same tasks."""
    page = _page_of_models([result.model for result in found.results], measures, options)
    extras = dict(page.extras)
    for result in found.results:
        scores = task_scores(result)
        names = {score.task for score in scores}
        # A task of `measures` that has the same name was asked in another way.
        also = [
            score.model_copy(update={"task": f"{score.task} (also)"}) if score.task in names else score
            for score in extras[result.model].tasks
        ]
        extras[result.model] = extras[result.model].model_copy(update={"tasks": [*scores, *also]})
    return replace(page, extras=extras, further=found.difference_tables())


def _page_of_models(names: Sequence[str], measures: Measures | None, options: ModelOptions) -> SideBySide:
    """Memory, further measures and the way of loading of model folders or run folders."""
    extras, memory, about = {name: ModelMeasures() for name in names}, {}, {}
    if measures is not None:
        extras = measure_models({name: options.load(name) for name in names}, measures, options.precision)
    for name in names:  # with fixed calibrations if those are measured
        spec = ModelSpec.parse(read_description(model_folder(name)), name)
        memory[name] = MemoryFigures.from_spec(spec if options.calibration is None else stored_spec(spec))
    if options.calibration is not None:
        drawn = f", drawn from seed {options.seed}" if options.calibration == "random" else ""
        about["calibration"] = f"{options.calibration}, in place of the models' own{drawn}"
    if options.precision is not None:
        about["precision"] = f"weights converted to {options.precision}"
    return SideBySide("Models compared", [], [], memory, extras, about=about)
