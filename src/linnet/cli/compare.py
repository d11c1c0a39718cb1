"""`linnet compare`: train several models on the same text, or compare existing runs, with the spread of seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli.console import check_out_folder, interruptions_reported, invocation, note
from linnet.cli.options import AsJson, Changes, Fields, option, with_fields
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.experiments.comparison.figures import Findings
    from linnet.experiments.side_by_side.published import PublishedTable

COMMAND = with_fields("linnet.training.spec:RunSpec", "model.vocab_size", "data", "start_from", "training.seed")


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...",
            help="A YAML file: text, tokenizer, model, training, seeds, runs. Or folders of existing runs.",
        ),
    ],
    out: Annotated[
        Path | None,
        option("DIR", "The folder to make, or one to continue. Default: runs/NAME for a file NAME.yaml."),
    ] = None,
    changes: Changes = None,
    list_fields: Fields = False,
    against: Annotated[
        Path | None,
        option("FILE.json", "A published table to show beside the results, with the differences."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train several models on the same text, each with several seeds, and compare them; or compare runs that exist.

    Example: linnet compare experiments/ablations/pldr.yaml

    FILE describes what the models have in common and how each run differs; docs/comparison.md has every field, and
    experiments/ablations/pldr.yaml is an example. A field of model or training is also an option and changes all runs:
    --training.steps 100. All models are evaluated on the same held-out documents, and causally: no prediction depends
    on the text after it. A model whose training pass sees the future is evaluated with a frozen calibration; the
    leak is what its own pass would have claimed beyond that.

    Prints a table: bits per byte (lower is better) and accuracy, the mean over the seeds ± the standard deviation, and
    the cost of training. DIR gets all results as one page (report.html) and one Markdown table (report.md), with memory
    against context, and tasks, abilities, samples and speed if the file's section evaluate asks for them; the figures
    as comparison.json, the curves as curves.png, the prepared text (data), and every run (runs). Ctrl-C saves and
    stops; the same command continues, and trains nothing twice.

    A run that diverges with a seed is left out of the means. The table, the curves and the exit code (1) show it, and
    the other runs continue. The same command does not train it again; to try it again, remove its folder in DIR/runs.

    With folders of runs or of comparisons nothing is trained: the same table is made from what they recorded, and runs
    that differ only in their seed are one row. They must be finished, and trained on one data folder. --out DIR gets
    the page, the Markdown table, comparison.json and curves.png, and must be a new folder.

    --against FILE.json shows the results beside a paper's table; docs/comparison.md has its fields, and
    experiments/ablations/pldr-published.json is an example.

    Example: linnet compare experiments/ablations/pldr.yaml --out runs/ablation --json

    Example: linnet compare experiments/ablations/pldr.yaml --out runs/short --steps 100

    Example: linnet compare demo/attention demo/pldr demo/ted --out runs/demo

    Example: linnet compare demo/attention demo/pldr --against experiments/ablations/pldr-published.json
    """
    if not sources[0].exists():
        raise UserError(f"{sources[0]}: no such file or folder; expected a comparison's YAML file, or folders of runs")
    if len(sources) > 1 or sources[0].is_dir():
        _set_side_by_side(sources, out, changes or [], against, as_json)
    else:
        _train_and_compare(sources[0], out, changes or [], against, as_json)


def _train_and_compare(
    comparison: Path, out: Path | None, changes: list[str], against: Path | None, as_json: bool
) -> None:
    from linnet.core.system import keep_freed_memory
    from linnet.experiments.comparison.page import published_for
    from linnet.experiments.comparison.run import compare as run_comparison
    from linnet.experiments.comparison.spec import ComparisonSpec
    from linnet.experiments.runner import Runner

    folder = out or Path("runs") / comparison.stem
    spec = ComparisonSpec.load(comparison, changes)
    published = published_for(against, spec.evaluate)
    keep_freed_memory()
    with interruptions_reported():
        findings = run_comparison(spec, folder, Runner(note, invocation()), str(comparison))
    _write_page(findings, published, folder)
    _print(findings, published, folder, as_json)
    if findings.broken_down:
        note(f"error: {_said_lost(findings, len(spec.runs) * len(spec.seeds))}")
        raise typer.Exit(1)


def _set_side_by_side(
    sources: list[Path], out: Path | None, changes: list[str], against: Path | None, as_json: bool
) -> None:
    from linnet.core.atomic import atomic_directory
    from linnet.experiments.comparison.output import write_findings
    from linnet.experiments.comparison.recorded import recorded
    from linnet.experiments.side_by_side.published import PublishedTable
    from linnet.model.store import check_new_folder

    files = [source for source in sources if source.is_file()]
    if files:
        raise UserError(f"{files[0]}: one FILE, or folders of runs; not several and not both")
    if changes:
        raise UserError(f"--set {changes[0]}: these runs are trained already; expected a FILE to train from")
    check_out_folder(out, "--out")
    if out is not None:
        check_new_folder(out)
    findings = recorded(_each_once(sources))
    published = (
        None
        if against is None
        else PublishedTable.load(
            against, [score.task for run in findings.runs if run.beside for score in run.beside.tasks]
        )
    )
    if out is not None:
        with atomic_directory(out) as folder:
            write_findings(findings, folder)
            _write_page(findings, published, folder)
    _print(findings, published, out, as_json)


def _write_page(findings: "Findings", published: "PublishedTable | None", folder: Path) -> None:
    from linnet.experiments.comparison.page import side_by_side
    from linnet.experiments.side_by_side.report import write_report

    write_report(side_by_side(findings, published), folder, invocation())


def _each_once(folders: list[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        first = found.setdefault(folder.resolve(), folder)
        if first is not folder:
            note(f"note: {folder}: the same folder as {first}; it counts once")
    return list(found.values())


def _print(findings: "Findings", published: "PublishedTable | None", folder: Path | None, as_json: bool) -> None:
    from linnet.cli.console import show
    from linnet.experiments.comparison.output import findings_table
    from linnet.experiments.comparison.page import further
    from linnet.experiments.comparison.spec import CURVES
    from linnet.present.page import PAGE

    figures = {} if folder is None else {"folder": str(folder)}
    lost = [str(each) for each in findings.broken_down]
    written = [] if folder is None else [f"report: {folder / PAGE}", f"curves: {folder / CURVES}"]
    tables = [findings_table(findings), *further(findings, published)]
    conclusion = "\n".join([*lost, *written])
    show("Comparison", {"of": findings.name}, figures | findings.to_dict(), tables, list, None, as_json, conclusion)


def _said_lost(findings: "Findings", trained: int) -> str:
    lost = findings.broken_down
    diverged = ", ".join(f"{each.run} (seed {each.seed}, step {each.step})" for each in lost if each.step is not None)
    waiting = ", ".join(f"{each.run} (seed {each.seed})" for each in lost if each.step is None)
    also = f"; not trained for want of their calibration: {waiting}" if waiting else ""
    return f"{len(lost)} of {trained} trainings have no result: diverged: {diverged}{also}"
