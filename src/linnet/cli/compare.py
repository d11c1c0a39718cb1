"""`linnet compare`: train several models on the same text, or compare existing runs, with the spread of seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.console import interruptions_reported, invocation, note, show_result
from linnet.cli.options import AsJson, Changes, ExecutorName, Fields, SlurmOptions, Workers, option, with_fields
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.experiments.results import Findings
    from linnet.experiments.suite_report import PublishedTable

COMMAND = with_fields("linnet.training.spec:RunSpec", "model.vocab_size", "data", "start_from", "training.seed")


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|MODEL...|DIR...",
            help="A YAML file: text, tokenizer, model, training, seeds, runs. Or a model for each run: presets, or "
            "files that describe one. Or folders of existing runs.",
        ),
    ],
    out: Annotated[
        Path | None,
        option("DIR", "The folder to make, or one to continue. Default: runs/NAME for a file NAME.yaml."),
    ] = None,
    data: Annotated[
        list[str] | None,
        option(
            "DIR|FILE", "With models: a data folder, or a file of text (repeatable). Default: the built-in stories."
        ),
    ] = None,
    seeds: Annotated[int | None, option("N", "Train every run with the seeds 0 to N - 1. Default: 3.", min=1)] = None,
    match: Annotated[
        Literal["parameters"] | None,
        typer.Option(help="Give every run as many parameters as the first, by the width of its feed-forwards."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        option("FIELD=A,B,...", "Train each run with each of these values of a field (repeatable: each combination)."),
    ] = None,
    changes: Changes = None,
    list_fields: Fields = False,
    against: Annotated[
        Path | None,
        option("FILE.json", "A published table to show beside the results, with the differences."),
    ] = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    slurm_options: SlurmOptions = None,
    record: Annotated[
        Path | None,
        option("FILE.jsonl", "Results of earlier calls, also of other machines: what it has is not trained again."),
    ] = None,
    only: Annotated[list[str] | None, option("NAME", "Of a file with variants: this suite alone (repeatable).")] = None,
    as_json: AsJson = False,
) -> None:
    """Train several models on the same text, each with several seeds, and compare them; or compare runs that exist.

    Example: linnet compare tiny-attention tiny-ted --match parameters --steps 500

    Models, presets or files that describe one, are runs on one text: --data, or the built-in stories with a BPE
    tokenizer of 1,024 tokens. --grid lr=1e-3,3e-3 trains each of them with each value; a field is a model's or a
    training's, its values may be sections (--grid 'model.blocks.0.mixer={kind: ...},{kind: ...}'), and --grid
    model=tiny-ted,tiny-gla is a grid of models. --seeds, --match and --grid also go with FILE.

    FILE describes what the models have in common and how each run differs; docs/comparison.md has every field, and
    experiments/ablations/pldr.yaml is an example. A field of model or training is also an option and changes all runs:
    --training.steps 100. All models are evaluated on the same held-out documents, and causally: no prediction depends
    on the text after it. A model whose training pass sees the future is evaluated with a frozen calibration; the
    leak is what its own pass would have claimed beyond that.

    Prints a table: bits per byte (lower is better) and accuracy, the mean over the seeds ± the standard deviation, and
    the cost of training. DIR gets all results as one page (report.html) and one Markdown table (report.md), with memory
    against context, and tasks, abilities, samples and speed if the file's section measures asks for them; the result
    table as results.jsonl, the curves as curves.png, the prepared text (data), and every run (runs). Ctrl-C saves and
    stops; the same command continues, and trains nothing twice.

    --executor local --workers 2 trains two runs at a time in processes of their own; ray uses a Ray cluster
    (pip install 'linnet[ray]'; RAY_ADDRESS, or workers on this machine); slurm submits a job array by sbatch and waits.

    A file may describe several suites: its variants differ from its own. Each gets a folder in DIR, and all share the
    result table DIR/results.jsonl (or --record); experiments/atlas.yaml is an example.

    A run that diverges with a seed is left out of the means. The table, the curves and the exit code (1) show it, and
    the other runs continue. The same command does not train it again; to try it again, remove its folder in DIR/runs.

    With folders of runs or of comparisons nothing is trained: the same table is made from what they recorded, and runs
    that differ only in their seed are one row. They must be finished, and trained on one data folder. --out DIR gets
    the page, the Markdown table, results.json and curves.png, and must be a new folder.

    --against FILE.json shows the results beside a paper's table; docs/comparison.md has its fields, and
    experiments/ablations/pldr-published.json is an example.

    Example: linnet compare experiments/ablations/pldr.yaml

    Example: linnet compare tiny-attention tiny-ted --data data/stories --grid lr=1e-3,3e-3 --seeds 2 --out runs/rates

    Example: linnet compare experiments/ablations/pldr.yaml --out runs/ablation --json

    Example: linnet compare experiments/ablations/pldr.yaml --out runs/short --steps 100

    Example: linnet compare demo/attention demo/pldr demo/ted --out runs/demo

    Example: linnet compare demo/attention demo/pldr --against experiments/ablations/pldr-published.json
    """
    models, fields = _models(sources, data or ()), _suite_fields(seeds, match, grid or ())
    if not models and (len(sources) > 1 or sources[0].is_dir()):
        for name in fields:
            raise UserError("these runs are trained already", field=name, accepted="models, or a FILE to train from")
        _set_side_by_side(sources, out, changes or [], against, as_json)
        return
    from linnet.core.system import keep_freed_memory
    from linnet.experiments.executors import make_executor
    from linnet.experiments.jobs import Runner
    from linnet.experiments.results import ResultTable
    from linnet.experiments.run import run_suite
    from linnet.experiments.suite import RESULTS, Suite, load_suites, suite_of_models, with_fields
    from linnet.experiments.suite_report import SuiteResult, SuitesResult, load_published

    chosen = make_executor(executor, workers, slurm_options or ())
    origin, stem = str(sources[0]), sources[0].stem
    if models:
        origin, stem = "compare", "-".join(Path(model).stem for model in models)
        suites = {stem: Suite.checked(with_fields(suite_of_models(models, data or ()), fields), origin, changes or ())}
    else:
        suites = load_suites(sources[0], changes or (), fields)
    folder = out or Path("runs") / stem
    for name in only or ():
        if name not in suites:
            raise UserError(field="only", value=name, accepted=f"suites of the file: {', '.join(suites)}")
    selected = {name: suite for name, suite in suites.items() if not only or name in only}
    published = {name: load_published(against, suite.measures) for name, suite in selected.items()}
    several = len(suites) > 1
    if several and record is None:
        record = folder / RESULTS  # one table of all suites
    known = None if record is None else ResultTable(record)
    keep_freed_memory()
    results = {}
    for name, suite in selected.items():
        own = folder / name if several else folder
        with interruptions_reported():
            findings = run_suite(suite, own, Runner(note, invocation()), origin, chosen, known)
        _write_page(findings, published[name], own)
        results[name] = SuiteResult(findings, published[name], own)
    show_result(SuitesResult(results) if several else results[stem], None, as_json)
    messages = [
        _failures_message(result.findings, len(suites[name].runs) * len(suites[name].seeds))
        for name, result in results.items()
        if result.findings.failures
    ]
    for message in messages:
        note(f"error: {message}")
    if messages:
        raise typer.Exit(1)


def _models(sources: Sequence[Path], data: Sequence[str]) -> list[str]:
    """The sources if they are models; none if they are a FILE or folders of runs. `UserError` for anything else."""
    from linnet.core.errors import did_you_mean
    from linnet.model.folder import is_preset_or_description, preset_names

    models = [str(source) for source in sources if is_preset_or_description(source)]
    if models:
        for source in sources:
            if str(source) not in models:
                accepted = "a model for each run, or one FILE, or folders of runs"
                raise UserError(f"{source}: no model, as {models[0]} is; expected {accepted}")
    elif not sources[0].exists():
        expected = "expected a comparison's YAML file, folders of runs, or presets"
        instead = did_you_mean(str(sources[0]), preset_names(), expected)
        raise UserError(f"{sources[0]}: no such file, folder or preset; {instead}")
    elif data:
        raise UserError("belongs to models; a FILE names its own text", field="data", value=data[0])
    return models


def _suite_fields(seeds: int | None, match: str | None, grid: Sequence[str]) -> dict[str, Any]:
    """The fields of a suite that the options give."""
    from linnet.core.spec import read_assignment

    fields: dict[str, Any] = {} if seeds is None else {"seeds": list(range(seeds))}
    fields |= {} if match is None else {"match": match}
    values: dict[str, list[Any]] = {}
    for text in grid:
        name, equals, listed = text.partition("=")
        if not equals or not listed.strip():
            raise UserError(field="grid", value=text, accepted="FIELD=A,B,...")
        known = None if name == "model" else COMMAND.source.find(name)
        _, found = read_assignment(f"{name}=[{listed}]")
        # Numbers in a list are read as YAML 1.1 reads them, which takes 1e-3 for text.
        values[known.path if known else name] = [
            read_assignment(f"{name}={each}")[1] if isinstance(each, str) else each for each in found
        ]
    return fields | ({"grid": values} if values else {})


def _set_side_by_side(
    sources: list[Path], out: Path | None, changes: list[str], against: Path | None, as_json: bool
) -> None:
    from linnet.core.atomic import atomic_directory
    from linnet.core.checksum import write_checked_json
    from linnet.experiments.recorded import recorded
    from linnet.experiments.suite import CURVES
    from linnet.experiments.suite_report import PublishedTable, SuiteResult, curves_plot
    from linnet.model.store import check_new_folder

    files = [source for source in sources if source.is_file()]
    if files:
        raise UserError(f"{files[0]}: one FILE, or folders of runs; not several and not both")
    if changes:
        raise UserError(f"--set {changes[0]}: these runs are trained already; expected a FILE to train from")
    if out is not None:
        check_new_folder(out)
    findings = recorded(_each_once(sources))
    published = (
        None
        if against is None
        else PublishedTable.load(
            against, [score.task for run in findings.runs if run.extra for score in run.extra.tasks]
        )
    )
    if out is not None:
        with atomic_directory(out) as folder:
            write_checked_json(folder / "results.json", findings.to_dict())
            curves_plot(findings.runs, findings.name).write(folder / CURVES)
            _write_page(findings, published, folder)
    show_result(SuiteResult(findings, published, out), None, as_json)


def _write_page(findings: "Findings", published: "PublishedTable | None", folder: Path) -> None:
    from linnet.experiments.report import write_report
    from linnet.experiments.suite_report import side_by_side

    write_report(side_by_side(findings, published), folder, invocation())


def _each_once(folders: list[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        first = found.setdefault(folder.resolve(), folder)
        if first is not folder:
            note(f"note: {folder}: the same folder as {first}; it counts once")
    return list(found.values())


def _failures_message(findings: "Findings", trained: int) -> str:
    lost = findings.failures
    diverged = ", ".join(f"{each.run} (seed {each.seed}, step {each.step})" for each in lost if each.step is not None)
    waiting = ", ".join(f"{each.run} (seed {each.seed})" for each in lost if each.step is None)
    also = f"; not trained because their calibration is missing: {waiting}" if waiting else ""
    return f"{len(lost)} of {trained} trainings have no result: diverged: {diverged}{also}"
