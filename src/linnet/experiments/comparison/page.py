"""The page and the Markdown table of a comparison, and its own numbers for the table of a paper."""

from collections.abc import Sequence
from pathlib import Path

from linnet.experiments.comparison.differences import difference_table
from linnet.experiments.comparison.figures import ComparedFigures, Findings, Spread
from linnet.experiments.comparison.output import findings_table, plot
from linnet.experiments.side_by_side.published import PublishedTable, against_table
from linnet.experiments.side_by_side.report import SideBySide
from linnet.experiments.side_by_side.tables import CHART_INCHES, chart
from linnet.experiments.side_by_side.wanted import Wanted
from linnet.present.plot import Plot
from linnet.present.result import Picture
from linnet.present.table import Table

CURVES_SAID = (
    "Bits per byte of held-out text over the steps of training, causal: the mean of the seeds, and a band from the"
    " lowest to the highest. Dotted: a seed that came to nothing."
)
STATE_SAID = "Right answers against bytes of state: the mean of the seeds, from the lowest to the highest."


def published_for(against: str | Path | None, wanted: Wanted | None) -> PublishedTable | None:
    """A paper's table, whose columns may be tasks that are wanted; `UserError` names the field at fault."""
    if against is None:
        return None
    tasks = None if wanted is None else wanted.tasks
    return PublishedTable.load(against, [] if tasks is None else tasks.load().names)


def side_by_side(findings: Findings, published: PublishedTable | None = None) -> SideBySide:
    """All of a comparison, ready to be written."""
    trained = [run for run in findings.runs if run.outcomes]
    seeds = sorted({run.beside.seed for run in trained if run.beside is not None and run.beside.seed is not None})
    said = {"measured beside the text": f"of the models of seed {', '.join(map(str, seeds))}"} if seeds else {}
    return SideBySide(
        findings.name,
        [findings_table(findings)],
        _pictures(findings.runs),
        {run.name: run.memory for run in trained if run.memory is not None},
        {run.name: run.beside for run in trained if run.beside is not None},
        difference_table(findings),
        further(findings, published),
        said,
        " ".join(f"{each}." for each in findings.broken_down),
    )


def further(findings: Findings, published: PublishedTable | None) -> list[Table]:
    """The table of a paper with own numbers, where there is one."""
    if published is None:
        return []
    return [against_table(published, {run.name: own_values(run) for run in findings.runs if run.outcomes})]


def _pictures(runs: Sequence[ComparedFigures]) -> list[Picture]:
    if not any(run.curve for run in runs if run.outcomes):
        return []
    curves, *others = plot(runs, "").panels
    found = [Picture("learning", "Learning curves", chart(curves), CURVES_SAID)]
    return found + [
        Picture("state", "Answers against state", Plot([panel], CHART_INCHES), STATE_SAID) for panel in others
    ]


def own_values(run: ComparedFigures) -> dict[str, float]:
    """What the columns of a published table are compared with, by metric; what was not measured is left out."""
    counts = {"parameters": run.parameters, "training_tokens": run.tokens}
    spreads = {"bits_per_byte": run.bits_per_byte, "training_tokens_per_s": run.tokens_per_s}
    found = {name: float(value) for name, value in counts.items() if value is not None}
    found |= {name: spread.mean for name, spread in spreads.items() if isinstance(spread, Spread)}
    if run.accuracy is not None:
        found["accuracy"] = 100 * run.accuracy.mean
    if run.memory is not None:
        state = run.memory.state_bytes
        found |= {"weights_bytes": run.memory.weights_bytes}
        found |= {"state_bytes_1k": state[1 << 10], "state_bytes_64k": state[1 << 16], "state_bytes_1M": state[1 << 20]}
    return _beside_values(run) | found


def _beside_values(run: ComparedFigures) -> dict[str, float]:
    if run.beside is None:
        return {}
    found = {score.task: 100 * score.value for score in run.beside.tasks if score.value is not None}
    if run.beside.decoding is not None:
        speed = run.beside.decoding.tokens_per_s
        found |= {"decode_tokens_per_s": speed, "decode_100_tokens_ms": 100_000 / speed}
    return found
