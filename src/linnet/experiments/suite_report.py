"""The results of a suite as a table, learning curves, differences between runs, and own numbers for a paper's table."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from linnet.core.errors import UserError, did_you_mean
from linnet.core.files import read_json
from linnet.core.spec import Spec
from linnet.evaluation.statistics import SIGNIFICANT, holm_correction, paired_difference
from linnet.evaluation.tasks.suite import suite_names, suite_spec
from linnet.experiments.measures import METRICS, Measures
from linnet.experiments.report import CHART_INCHES, SideBySide, chart
from linnet.experiments.results import Findings, RunSummary, Spread
from linnet.experiments.suite import CURVES
from linnet.present import numbers
from linnet.present.page import PAGE
from linnet.present.plot import MARKS, Axis, Panel, Plot, Rule, Series, line_style
from linnet.present.result import Part, Picture, Result
from linnet.present.table import MISSING, Table

COLUMNS = (
    "run", "seeds", "bits per byte", "accuracy, %", "leak", "parameters", "training FLOPs", "tokens", "tokens/s",
)  # fmt: skip
ABILITY_COLUMNS = (
    "run", "seeds", "right, %", "whole answers, %", "above chance", "state, bytes", "parameters", "training FLOPs",
    "tokens/s",
)  # fmt: skip
FINAL_COLUMN, RECALL_COLUMN = 4, 5
"""Positions of the columns of final answers and of name recall, where these were measured."""

AXIS_MARGIN = 1.05
"""Room above and below the curves on their logarithmic axis."""


def results_table(findings: Findings) -> Table:
    """A row for each run that is shown: quality, then cost."""
    ability = measures_ability(findings.runs)
    results = [result for run in findings.runs for result in run.results]
    recall = any("name_recall" in result.evaluation for result in results)
    final = ability and all("final_right" in result.evaluation["ability"] for result in results)
    columns = list(ABILITY_COLUMNS if ability else COLUMNS)
    if final:
        columns.insert(FINAL_COLUMN, "final, %")
    elif recall:
        columns.insert(RECALL_COLUMN, "name recall, %")
    rows = []
    for run in findings.runs:
        if not run.results:
            rows.append([run.name, run.seeds, run.outcome, *[MISSING] * (len(columns) - 3)])
            continue
        speed = run.spread("tokens_per_s")
        tokens = [] if ability else [MISSING if run.tokens is None else numbers.grouped(run.tokens)]
        cost = [
            MISSING if run.parameters is None else numbers.grouped(run.parameters),
            MISSING if run.training_flops is None else numbers.scientific(run.training_flops),
            *tokens,
            MISSING if speed is None else numbers.grouped(speed.mean),
        ]
        if ability:
            names = ["symbols_right", "right", *(["final_right"] if final else [])]
            above, state = _ability_values(run, "above_chance"), run.results[0].evaluation["state_bytes"]
            quality = [_with_deviation(Spread.of(_ability_values(run, name)), 1, 100) for name in names]
            quality += [f"{sum(above)} of {len(above)}", numbers.grouped(state)]
        else:
            bits, accuracy, leak = (run.spread(name) for name in ("bits_per_byte", "accuracy", "leak"))
            measured = any("tokens" in result.evaluation for result in run.results)  # rows of a record may have less
            quality = [
                MISSING if bits is None else _with_deviation(bits, 4),
                MISSING if accuracy is None else _with_deviation(accuracy, 2, 100),
                numbers.signed(leak.mean, 4) if leak is not None else "none" if measured else MISSING,
            ]
        if recall and not ability:
            shares = [result.evaluation.get("name_recall", {}).get("share") for result in run.results]
            known = [share for share in shares if share is not None]
            quality.append(_with_deviation(Spread.of(known), 1, 100) if known else MISSING)
        rows.append([run.name, run.seeds, *quality, *cost])
    title = "Answers, and their cost" if ability else "Held-out text, and training"
    return Table(title, columns, rows, table_meaning(findings))


def _with_deviation(spread: Spread, decimals: int, scale: float = 1) -> str:
    mean = f"{scale * spread.mean:.{decimals}f}"
    return mean if spread.deviation is None else f"{mean} ± {scale * spread.deviation:.{decimals}f}"


def table_meaning(findings: Findings) -> str:
    """What the means are over, and which text or questions the runs were evaluated on."""
    counts = {len(run.results) + len(run.failures) for run in findings.runs}
    every = f"{max(counts)} seeds" if len(counts) == 1 else "the seeds of each run"
    over = "the seeds that were trained to the end" if findings.failures else every
    seeds = "one seed: the spread is not known" if counts == {1} else f"mean ± standard deviation over {over}"
    results = [result.evaluation for run in findings.runs for result in run.results]
    if measures_ability(findings.runs):
        measured = [one["ability"] for one in results]

        def chances(name: str) -> str:  # runs on different forms of a question have different chances
            values = sorted({one[name] for one in measured}, reverse=True)
            return f"{' or '.join(numbers.significant(100 * value) for value in values)} %"

        first, symbols, ends = measured[0], "", ""
        if first["symbols_chance"] is not None:
            symbols = f" of symbols, {100 * first['symbols_chance']:.2f} % by chance;"
        if all("final_right" in one for one in measured):
            ends = f" final: the end of what is written, {chances('final_chance')} by chance;"
        return (
            f"{seeds}; right:{symbols} whole answers: {chances('chance')} by chance,"
            f" {first['items']:,} held-out items;{ends} above chance: number of seeds whose whole answers are"
            " (binomial, 1 %); state: of one stream in float32, after the longest item"
        )
    tokens = sorted({one["tokens"] for one in results if "tokens" in one})
    if len(tokens) < 2:
        text = f"the same held-out documents{f', {numbers.grouped(tokens[0])} tokens' if tokens else ''}"
    else:
        fewest, most = numbers.grouped(tokens[0]), numbers.grouped(tokens[-1])
        text = f"{fewest} to {most} held-out tokens, not the same for all: linnet evaluate measures each on all of them"
    meaning = f"{seeds}; causal, on {text}; tokens/s: of the training steps"
    if findings.ngram is not None:
        order, ngram_bits = findings.ngram["order"], findings.ngram["bits_per_byte"]
        meaning += f"; an n-gram model of order {order}, which counts all of the training text: {ngram_bits:.4f}"
    return meaning


def measures_ability(runs: Sequence[RunSummary]) -> bool:
    """True if every result of these runs is of an ability, and there is one."""
    results = [result for run in runs for result in run.results]
    return bool(results) and all("ability" in result.evaluation for result in results)


def _ability_values(run: RunSummary, name: str) -> list[Any]:
    return [result.evaluation["ability"].get(name) for result in run.results]


def curves_plot(runs: Sequence[RunSummary], title: str) -> Plot:
    """Bits per byte over the steps: the mean of the seeds with a band from the lowest to the highest.

    A seed that diverged is not in its run's curve: its own is dotted, with a vertical line where it ended. The axis is
    that of the runs that finished, so that a diverging loss does not flatten them.
    """
    curves, dotted, ends, spreads = list[Series](), list[Series](), list[Rule](), list[Spread]()
    for number, run in enumerate(runs):
        if run.results:
            steps = [step for step, _ in run.curve]
            own = [spread for _, spread in run.curve]
            low, high = [spread.lowest for spread in own], [spread.highest for spread in own]
            mean = [spread.mean for spread in own]
            curves.append(Series(steps, mean, run.name, line_style(number), number, low, high))
            spreads += own
        for lost in run.failures:
            points = lost.curve
            dotted.append(Series([p.step for p in points], [p.bits_per_byte for p in points], "", ".:", number))
            ends += [] if lost.step is None else [Rule(lost.step, style=":", color=number, upright=True)]
        if run.failures:
            lost_count = len(run.failures)
            name = f"{run.name}: {run.outcome} with {lost_count} of {lost_count + len(run.results)} seeds"
            dotted.append(Series([], [], name, ":", number))
    low_end = min((spread.lowest / AXIS_MARGIN for spread in spreads), default=None)
    high_end = max((spread.highest * AXIS_MARGIN for spread in spreads), default=None)
    y = Axis("held-out text, causal, bits per byte", "log", low=low_end, high=high_end)
    panel = Panel(Axis("step"), y, [*curves, *dotted], title, ends)
    return Plot([panel, state_panel(runs)] if measures_ability(runs) else [panel], (9.0, 5.2))


def state_panel(runs: Sequence[RunSummary]) -> Panel:
    """Accuracy against bytes of state, a point for each run with a bar from the lowest seed to the highest."""
    series, trained = [], [(number, run) for number, run in enumerate(runs) if run.results]
    for number, run in trained:
        right = Spread.of(_ability_values(run, "symbols_right"))
        state = run.results[0].evaluation["state_bytes"]
        mark, hollow = line_style(number)[0], number // len(MARKS) % 2 == 1  # hollow when all marks are used
        ends = [right.lowest], [right.highest]
        series.append(Series([state], [right.mean], run.name, mark, number, *ends, large=hollow))
    chance = _ability_values(trained[0][1], "symbols_chance")[0]
    rules = [] if chance is None else [Rule(chance, "chance")]
    x, y = Axis("bytes of state", "log2", format=numbers.binary), Axis("share right", low=0.0, high=1.03)
    return Panel(x, y, series, "right answers against state", rules)


def difference_table(findings: Findings) -> list[Table]:
    """Mean difference of each run from the first over their common seeds; empty if no run has two in common.

    p-values are corrected for the number of runs (Holm).
    """
    first, *others = [run for run in findings.runs if run.results] or [RunSummary("", None, None, [])]
    bits = {run.name: {one.seed: one.value("bits_per_byte") for one in run.results} for run in (first, *others)}
    known = {}
    for run in others:
        both = [(bits[first.name].get(seed), own) for seed, own in bits[run.name].items()]
        pairs = [(theirs, own) for theirs, own in both if theirs is not None and own is not None]
        if pairs and (one := paired_difference(*zip(*pairs, strict=True))).standard_error is not None:
            known[run.name] = one
    if not known:
        return []
    corrected = dict(zip(known, holm_correction([one.p_value() for one in known.values()]), strict=True))
    columns = []
    for run in others:
        found, p_value = known.get(run.name), corrected.get(run.name)
        if found is None:
            columns.append([MISSING, MISSING])
            continue
        if p_value is None:
            verdict = "not known"
        elif p_value >= SIGNIFICANT:
            verdict = f"not significant, p = {p_value:.2g}"
        else:
            verdict = f"{'better' if found.value < 0 else 'worse'}, p = {p_value:.2g}"
        interval = found.interval()
        ends = MISSING if interval is None else " to ".join(numbers.signed(end, 4) for end in interval)
        columns.append([f"{numbers.signed(found.value, 4)} ± {found.standard_error:.4f}\n{verdict}", ends])
    labels = (f"less {first.name}", "95 % interval")
    rows = [[label, *cells] for label, *cells in zip(labels, *columns, strict=True)]
    meaning = (
        f"Bits per byte minus those of {first.name} with the same seed (same initial weights and order of the text):"
        " mean ± standard error over the seeds, and 95 % confidence interval (Student's t), wide for few seeds."
        " Significance: 5 % for all runs together (Holm)."
    )
    return [Table(f"Against {first.name}", ("", *(run.name for run in others)), rows, meaning)]


class PublishedColumn(Spec):
    """metric: the own figure that the column is compared with; without one the column is only shown."""

    name: str = Field(min_length=1)
    metric: str | None = None


class PublishedRow(Spec):
    """A model of the paper, and its values by column; values that the paper does not give are left out."""

    model: str = Field(min_length=1)
    values: dict[str, float]


class PublishedTable(Spec):
    """A published table. reference: the row that differences are taken from; without one the first that has the value.

    source: the citation. note: shown below the table.
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
        """Read a JSON file. tasks: further names allowed as metrics. `UserError` names the field."""
        table = cls.parse(read_json(path), str(path))
        specs = [suite_spec(name) for name in suite_names()]
        suites = [name for spec in specs for name in (*(task.name for task in spec.tasks), *spec.averages)]
        known = [*METRICS, *dict.fromkeys([*suites, *tasks])]
        for index, column in enumerate(table.columns):
            if column.metric is not None and column.metric not in known:
                hints = (did_you_mean(column.metric, known, ""), f"expected one of {', '.join(known)}")
                message = "; ".join(hint for hint in hints if hint)
                raise UserError(f"{path}: columns[{index}].metric: {column.metric}: {message}")
        return table

    def decimals(self, column: str) -> int:
        """Decimals of the column in the paper."""
        values = [row.values[column] for row in self.rows if column in row.values]
        exponents = [Decimal(repr(value)).normalize().as_tuple().exponent for value in values]
        return max((max(0, -exponent) for exponent in exponents if isinstance(exponent, int)), default=0)


def load_published(against: str | Path | None, measures: Measures) -> PublishedTable | None:
    """A paper's table, whose columns may be tasks that are measured; `UserError` names the field at fault."""
    if against is None:
        return None
    return PublishedTable.load(against, [] if measures.tasks is None else measures.tasks.load().names)


def published_table(published: PublishedTable, own: Mapping[str, Mapping[str, float]]) -> Table:
    """The paper's rows, then own models with the differences below. own: figures by metric, of each model."""

    def shown(column: PublishedColumn, value: float | None) -> str:
        return MISSING if value is None else f"{value:,.{published.decimals(column.name)}f}"

    rows = [
        [row.model, *(shown(column, row.values.get(column.name)) for column in published.columns)]
        for row in published.rows
    ]
    # Own figures are compared with the reference, or with the first row that has the value.
    compared = [row for row in published.rows if published.reference in (None, row.model)]
    for name, values in own.items():
        cells = []
        for column in published.columns:
            value = None if column.metric is None else values.get(column.metric)
            reference = next((row.values[column.name] for row in compared if column.name in row.values), None)
            text = shown(column, value)
            if value is not None and reference is not None:
                text += f"\n{value - reference:+,.{published.decimals(column.name)}f}"
            cells.append(text)
        rows.append([f"{name} (own)", *cells])
    metrics = {column.metric for column in published.columns if column.metric is not None}
    missing = sorted(metrics - {metric for values in own.values() for metric in values})
    row_name = published.reference or "the first row that has the value"
    remarks = [f"Published: {published.source}.", f"Below own numbers: minus those of {row_name}.", published.note]
    remarks += [f"Not measured here: {', '.join(missing)}."] if missing else []
    meaning = " ".join(remark for remark in remarks if remark)
    return Table(published.title, ("model", *(column.name for column in published.columns)), rows, meaning)


def own_values(run: RunSummary) -> dict[str, float]:
    """Figures of a run by metric, in the units of papers; what was not measured is left out."""
    found: dict[str, float] = {}
    if run.extra is not None:
        found |= {score.task: 100 * score.value for score in run.extra.tasks if score.value is not None}
        if run.extra.speed is not None:
            speed = run.extra.speed.tokens_per_s
            found |= {"decode_tokens_per_s": speed, "decode_100_tokens_ms": 100_000 / speed}
    counts = {"parameters": run.parameters, "training_tokens": run.tokens}
    found |= {name: float(value) for name, value in counts.items() if value is not None}
    figures = {"bits_per_byte": 1, "accuracy": 100, "tokens_per_s": 1}
    for name, scale in figures.items():
        if (spread := run.spread(name)) is not None:
            found["training_tokens_per_s" if name == "tokens_per_s" else name] = scale * spread.mean
    if run.memory is not None:
        found["weights_bytes"] = run.memory.weights_bytes
        lengths = {"1k": 1 << 10, "64k": 1 << 16, "1M": 1 << 20}
        found |= {f"state_bytes_{name}": run.memory.state_bytes[tokens] for name, tokens in lengths.items()}
    return found


def further_tables(findings: Findings, published: PublishedTable | None) -> list[Table]:
    """The table of a paper with own numbers, if there is one."""
    if published is None:
        return []
    return [published_table(published, {run.name: own_values(run) for run in findings.runs if run.results})]


def side_by_side(findings: Findings, published: PublishedTable | None = None) -> SideBySide:
    """The page of a suite."""
    trained = [run for run in findings.runs if run.results]
    pictures = []
    if any(run.curve for run in trained):
        curves, *others = curves_plot(findings.runs, "").panels
        caption = (
            "Bits per byte of held-out text over the steps of training, causal: the mean of the seeds, and a band from"
            " the lowest to the highest. Dotted: a seed that diverged."
        )
        pictures.append(Picture("learning", "Learning curves", chart(curves), caption))
        caption = "Right answers against bytes of state: the mean of the seeds, from the lowest to the highest."
        pictures += [Picture("state", "Answers against state", Plot([one], CHART_INCHES), caption) for one in others]
    seeds = sorted({run.extra.seed for run in trained if run.extra is not None and run.extra.seed is not None})
    return SideBySide(
        findings.name,
        [results_table(findings)],
        pictures,
        {run.name: run.memory for run in trained if run.memory is not None},
        {run.name: run.extra for run in trained if run.extra is not None},
        difference_table(findings),
        further_tables(findings, published),
        {"tasks, samples, speed": f"of the models of seed {', '.join(map(str, seeds))}"} if seeds else {},
        " ".join(f"{each}." for each in findings.failures),
    )


@dataclass(frozen=True)
class SuiteResult(Result):
    """The findings of a suite as the result of a verb. folder: where the page and the curves lie; None if nowhere."""

    findings: Findings
    published: PublishedTable | None
    folder: Path | None

    def title(self) -> str:
        return "Comparison"

    def facts(self) -> dict[str, str]:
        return {"of": self.findings.name}

    def to_dict(self) -> dict[str, Any]:
        folder = {} if self.folder is None else {"folder": str(self.folder)}
        return folder | self.findings.to_dict()

    def tables(self) -> list[Part]:
        return [results_table(self.findings), *further_tables(self.findings, self.published)]

    def conclusion(self) -> str:
        lines = [str(each) for each in self.findings.failures]
        if self.folder is not None:
            lines += [f"report: {self.folder / PAGE}", f"curves: {self.folder / CURVES}"]
        return "\n".join(lines)


@dataclass(frozen=True)
class SuitesResult(Result):
    """The results of the suites of one file, by name."""

    suites: Mapping[str, SuiteResult]

    def to_dict(self) -> dict[str, Any]:
        return {"suites": {name: result.to_dict() for name, result in self.suites.items()}}

    def tables(self) -> list[Part]:
        tables = [(name, part) for name, result in self.suites.items() for part in result.tables()]
        return [replace(part, title=f"{name}: {part.title}") for name, part in tables]

    def conclusion(self) -> str:
        return "\n".join(result.conclusion() for result in self.suites.values())
