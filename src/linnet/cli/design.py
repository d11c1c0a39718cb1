"""`linnet design`: find the shape of a model under a budget, and compare scores of shapes with trained models."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.console import (
    check_out_path,
    interruptions_reported,
    invocation,
    note,
    note_replaced,
    show_result,
)
from linnet.cli.options import (
    AsJson,
    Bootstrap,
    Changes,
    ExecutorName,
    Fields,
    ReportFolder,
    SlurmOptions,
    Workers,
    is_on_command_line,
    option,
    option_of,
    refuse_before_subcommand,
    with_fields,
)
from linnet.core import units
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.design.metrics import Budget, CostCounts, Metric
    from linnet.design.report import DesignReport
    from linnet.design.search import SearchResult, SearchTask
    from linnet.design.space import Space

USUAL = (
    "--space", "--data", "--max-flops", "--max-parameters", "--max-latency", "--score",
    "--pareto", "--set", "--out", "--json",
)  # fmt: skip
"""The options that the short help shows."""

FLOPS_TOKENS = 1024
"""Default length for counting FLOPs; the models' context length if that is shorter."""

FRONT_POINTS = {1: 16, 2: 6}
"""Limits on each goal, by the number of goals beside the score."""

SPACE_FIELDS = ("model", "blocks", "block")
"""First fields of paths that --set changes in the space; every other path is a setting of the search."""

SPACES = "hybrid, merino, mixed, patterned, study, or a YAML file"

NEEDS = {
    "points": ("pareto",),
    "latency_of": ("max_latency",),
    "device": ("max_latency",),
    "threads": ("max_latency",),
    "batch": ("max_training_memory", "pareto"),
    "with_head": ("max_flops", "pareto"),
    "precision": ("max_weights", "max_state", "pareto"),
}
"""Options that have an effect only beside one of others."""

design = typer.Typer(add_completion=False, rich_markup_mode=None)


@design.callback(invoke_without_command=True, cls=with_fields("linnet.design.search:DesignSettings", group=True))
def search(
    ctx: typer.Context,
    space: Annotated[str | None, option("NAME|FILE", f"The search space: {SPACES}.")] = None,
    data: Annotated[
        Path | None, option("DIR", "A data folder; the models get the vocabulary of its tokenizer.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="Vocabulary of the models. Default: that of --data, else of the space.")
    ] = None,
    max_flops: Annotated[str | None, option("N", "Forward FLOPs of one sequence, as in 60G.")] = None,
    max_parameters: Annotated[str | None, option("N", "Parameters, shared ones counted once, as in 60M.")] = None,
    max_active_parameters: Annotated[
        str | None, option("N", "Parameters that one token uses, as in 20M: fewer if there are experts.")
    ] = None,
    max_weights: Annotated[str | None, option("BYTES", "Bytes of the weights, as in 100MB.")] = None,
    max_state: Annotated[
        list[str] | None,
        option("BYTES@TOKENS", "Decode state of one stream of this many tokens, as in 2MB@16k (repeatable)."),
    ] = None,
    max_training_memory: Annotated[
        str | None, option("BYTES", "Memory of a training step in float32, as in 8GB.")
    ] = None,
    max_latency: Annotated[str | None, option("TIME", "Latency measured on this machine, as in 20ms.")] = None,
    latency_of: Annotated[
        Literal["token", "sequence"],
        typer.Option(help="What is timed: one more token of a stream, or a pass over a sequence."),
    ] = "token",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where latency is measured.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads for the latency. Default: PyTorch's.")
    ] = None,
    score: Annotated[
        str, option("NAME", "The score to maximize (`linnet design scores` lists them); MeRino's is entropy.")
    ] = "penalized_parameters",
    method: Annotated[
        Literal["auto", "evolution", "exact"],
        typer.Option(help="Evolution, the exact optimum, or both where that is possible."),
    ] = "auto",
    pareto: Annotated[
        str | None, option("GOALS", "Several goals at once, as in flops,score; --out is then a folder.")
    ] = None,
    points: Annotated[int | None, typer.Option(min=2, help="Limits on each goal. Default: 16, or 6 for two.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a sequence, for FLOPs, training memory and latency. Default: 1024, or the models' context "
            "length if that is shorter.",
        ),
    ] = None,
    with_head: Annotated[bool, typer.Option("--with-head", help="Count the output head's FLOPs too.")] = False,
    precision: Annotated[
        Literal["float32", "bfloat16", "int8", "int4"],
        typer.Option(help="Precision of the weights; the decode state has the precision that goes with it."),
    ] = "float32",
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a training step, for its memory.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the evolution.")] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, as in score.beta=2 or search.reach=3, or a field of the space, as in "
            "model.context_length=512 or blocks=3 (repeatable).",
        ),
    ] = None,
    list_fields: Fields = False,
    out: Annotated[
        Path | None, option("FILE|DIR", "Write the model's description here; with --pareto, all into a folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the shape of a model under a budget.

    Example: linnet design --space mixed --data data/my --max-parameters 3M --out best.yaml

    Returns the model with the highest score among all models of a search space that stay within every budget: by
    MeRino's evolutionary search and, where it can be computed, the exact optimum. The default score is the one that
    orders trained models best. FILE is for `linnet train --model`. What a small model costs depends on its vocabulary;
    --data takes that of the text.

    Example: linnet design --space merino --max-flops 60G --max-parameters 60M --score entropy --out best.yaml

    Example: linnet design --space space.yaml --max-flops 2G --max-state 4MB@4k --json

    Example: linnet design --space mixed --max-latency 5ms --threads 2 --out fast.yaml

    Example: linnet design --space merino --max-parameters 60M --pareto flops,score --score entropy --out front
    """
    if ctx.invoked_subcommand is not None:
        refuse_before_subcommand(ctx)
        return
    for name, others in NEEDS.items():
        if is_on_command_line(ctx, name) and not any(is_on_command_line(ctx, other) for other in others):
            needed = " or ".join(option_of(ctx, other) for other in others)
            raise UserError(f"{option_of(ctx, name)}: belongs to {needed}; give it too, or leave both out")
    if out is not None:
        check_out_path(out, "--out", "FILE" if pareto is None else "DIR")
    from linnet.core.spec import override
    from linnet.design.metrics import CostCounts
    from linnet.design.search import DesignSettings, SearchTask
    from linnet.design.search import search as run_search
    from linnet.design.space import load_space

    if space is None:
        raise UserError(f"--space: missing; give a search space: {SPACES}")
    of_space = [change for change in changes or [] if re.split("[.=]", change.strip())[0] in SPACE_FIELDS]
    settings = [change for change in changes or [] if change not in of_space]
    found_space = load_space(space, of_space, _vocab_size(of_space, data, vocab_size))
    counting = CostCounts(_tokens(tokens, found_space), with_head, precision, batch)
    limits = {
        "flops": max_flops,
        "parameters": max_parameters,
        "active_parameters": max_active_parameters,
        "weights": max_weights,
        "training_memory": max_training_memory,
    }
    plain = override({"score": {}, "search": {"seed": seed}}, settings)
    budgets = _budgets(limits, max_state or [], counting)
    task = SearchTask(found_space, budgets, score, DesignSettings.parse(plain, "`set`"), method)
    if found_space.left_out[0]:
        note(f"{found_space.left_out[0]:,} combinations make no block; the first: {found_space.left_out[1]}")
    if pareto is not None:
        if max_latency is not None:
            raise UserError(f"--max-latency {max_latency}: does not go with --pareto; give one of both")
        _show_front(task, pareto, points, counting, out, as_json)
        return
    if max_latency is not None:
        stem = out.stem if out else None
        report = _search_with_latency(task, max_latency, latency_of, device, threads, counting.tokens, stem)
    else:
        from linnet.design.report import DesignReport

        report = DesignReport(task, run_search(task, name=out.stem if out else None), counting.tokens)
    _write_description(report.task, report.found, out, as_json)
    show_result(report, None, as_json)


def _vocab_size(of_space: list[str], data: Path | None, vocab_size: int | None) -> int | None:
    """Return the vocabulary size of the data, or the given one; None if the space decides."""
    from linnet.data.token_data import read_manifest

    of_data = None if data is None else read_manifest(data).tokenizer.vocab_size
    if vocab_size is not None and of_data not in (None, vocab_size):
        raise UserError(f"--vocab-size {vocab_size}: {data} has {of_data:,} tokens; leave one of both out")
    size = vocab_size or of_data
    if size is not None and any(change.split("=")[0].strip() == "model.vocab_size" for change in of_space):
        raise UserError("--set model.vocab_size: is decided by --data or --vocab-size; leave one of both out")
    return size


def _tokens(tokens: int | None, space: "Space") -> int:
    """Return the length for counting FLOPs."""
    from linnet.core.bounds import MAX_COUNTED_TOKENS

    model = space.model([0] * space.spec.blocks)
    if tokens is not None and tokens > MAX_COUNTED_TOKENS:
        raise UserError(f"--tokens {tokens}: expected at most {MAX_COUNTED_TOKENS:,}")
    if tokens is not None and tokens > model.context_length and model.embedding.positions == "learned":
        raise UserError(f"--tokens {tokens}: the models' learned positions end at {model.context_length}")
    return tokens or min(FLOPS_TOKENS, model.context_length)


def _budgets(limits: dict[str, str | None], states: list[str], counting: "CostCounts") -> "list[Budget]":
    """Return the budgets. limits: by the names of their metrics. states: `BYTES@TOKENS`."""
    from linnet.design.metrics import Budget, read_state

    budgets = []
    for name, text in limits.items():
        metric, option = counting.metric(name), f"--max-{name.replace('_', '-')}"
        assert metric is not None
        if text is not None:
            is_bytes = metric.unit == "bytes"
            limit = units.read_quantity(text, "bytes", option) if is_bytes else units.parse_amount(text, option)
            budgets.append(Budget(metric, limit, f"{option} {text}"))
    for text in states:
        limit, length = read_state(text, "--max-state")
        metric = counting.metric(f"state@{length}")
        assert metric is not None
        budgets.append(Budget(metric, limit, f"--max-state {text}"))
    return budgets


def _search_with_latency(
    task: "SearchTask",
    max_latency: str,
    latency_of: Literal["token", "sequence"],
    device: str,
    threads: int | None,
    tokens: int,
    name: str | None,
) -> "DesignReport":
    """Search within the budgets and a limit of measured time."""
    from linnet.core.system import resolve_device
    from linnet.design.feasibility import find_within_budgets
    from linnet.design.latency import PartTimes, Timing, measure_latency, search_with_latency
    from linnet.design.metrics import Budget
    from linnet.design.report import DesignReport
    from linnet.training.machine import threads as with_threads

    limit_s = units.read_quantity(max_latency, "seconds", "--max-latency")
    timing = Timing(latency_of, tokens, resolve_device(device))
    with with_threads(threads, "threads"):
        find_within_budgets(task.budgets, task.tables())  # budgets that cannot be met are refused before any timing
        times = PartTimes(task.space, timing)
        times.time_all()
        limit = Budget(times.metric(), limit_s, f"--max-latency {max_latency}")
        checked = search_with_latency(task, limit, lambda model: measure_latency(model, timing), times.time_again, name)
    return DesignReport(checked.task, checked.found, tokens, checked, timing)


def _show_front(
    task: "SearchTask", pareto: str, points: int | None, counting: "CostCounts", out: Path | None, as_json: bool
) -> None:
    """Search with several goals at once; `out` is a folder."""
    from linnet.design.pareto import front, write_front
    from linnet.design.report import FrontReport

    goals = _goals(pareto, counting)
    found = front(task, goals, points or FRONT_POINTS[len(goals)], out.name if out else task.space.spec.name)
    if out is not None:
        write_front(found, goals, task.score, out, invocation())
        note(f"descriptions and table: {out}")
    elif not as_json:
        note("nothing is written; --out DIR writes the descriptions, a table and a plot")
    show_result(FrontReport(task, goals, found), out, as_json)


def _goals(text: str, counting: "CostCounts") -> "list[Metric]":
    """Return the metrics among the goals; the score is always one of the goals."""
    names = [name.strip() for name in text.split(",")]
    goals = [counting.metric(name) for name in names if name != "score"]
    known = [goal for goal in goals if goal is not None]
    is_unique = len(set(names)) == len(names)
    if "score" not in names or not is_unique or len(known) < len(goals) or len(known) not in FRONT_POINTS:
        raise UserError(
            f"--pareto {text}: expected score and one or two of flops, parameters, active_parameters, weights,"
            " training_memory, state@TOKENS, as in flops,score"
        )
    return known


def _write_description(task: "SearchTask", found: "SearchResult", out: Path | None, as_json: bool) -> None:
    from linnet.design.search import write_description

    if out is not None:
        note_replaced(out)
        write_description(found.plain, out, [invocation(), f"{task.score} {found.score:,.7g}"])
        note(f"description: {out}")
    elif not as_json:
        note("nothing is written; --out FILE writes the description for linnet train --model")


@design.command()
def scores(as_json: AsJson = False) -> None:
    """List the scores that a search can maximize, each with its correlation with trained models.

    Example: linnet design scores
    """
    from linnet.design.report import ScoreList

    show_result(ScoreList(), None, as_json)


@design.command(cls=with_fields("linnet.design.scores:ScoreSettings", "seed"))
def validate(
    runs: Annotated[Path, option("FILE.csv|DIR", "A table of trained models, or a folder with folders of runs.")],
    score: Annotated[list[str] | None, option("NAME", "Only this score (repeatable). Default: all.")] = None,
    band: Annotated[int, typer.Option(min=3, help="Models in a band of equal parameters.")] = 20,
    resamples: Bootstrap = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resamples.")] = 0,
    changes: Changes = None,
    list_fields: Fields = False,
    report: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Compare every score with the measured loss of trained models: rank correlation, and the regret of its choice.

    Example: linnet design validate --runs runs/study --band 10 --report validated

    A CSV file has the columns n_layer, d_model, d_inner (each layer's, separated by |), params_attention, params_ffn,
    params_total, valid_ppl. Of folders of runs the finished ones are used, with the bits per byte of their held-out
    text; runs of equal models are seeds of one.

    Example: linnet design validate --runs trained.csv --sigma 0.5
    """
    from linnet.core.spec import override
    from linnet.design.report import ValidationReport
    from linnet.design.scores import SCORES, ScoreSettings, find_score
    from linnet.design.validation import read_trained
    from linnet.design.validation import validate as compare_scores

    names = score or list(SCORES)
    for name in names:
        find_score(name)
    settings = ScoreSettings.parse(override({}, changes or []), "`set`")
    trained = read_trained(runs)
    for line in trained.left_out:
        note(f"left out: {line}")
    quality = compare_scores(trained, settings, names, band, resamples, seed)
    show_result(ValidationReport(trained, quality, band, settings, str(runs)), report, as_json)


@design.command(cls=with_fields("linnet.training.spec:RunSpec", "data", "start_from", "training.seed"))
def study(
    out: Annotated[Path, option("DIR", "The folder to make, or one to continue: runs, data, report.html.")],
    space: Annotated[str, option("NAME|FILE", "The space to sample from.")] = "study",
    shapes: Annotated[int, typer.Option(min=3, help="Number of models.")] = 24,
    bands: Annotated[int, typer.Option(min=1, help="Sizes, in equal ratios; each has as many of the models.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each model, which show the noise.")] = 2,
    steps: Annotated[
        int, typer.Option(min=1, help="Steps of each training, of 8 windows of the models' context length.")
    ] = 1000,
    stories: Annotated[int, typer.Option(min=100, help="Stories of the built-in corpus to train on.")] = 6000,
    text: Annotated[
        list[str] | None, option("FILE", "Text to train on instead, as linnet prepare takes it (repeatable).")
    ] = None,
    resamples: Bootstrap = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample of shapes.")] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A field of all runs, as in training.optimizer.lr=1e-3."),
    ] = None,
    executor: ExecutorName = "local",
    workers: Workers = 1,
    slurm_options: SlurmOptions = None,
    as_json: AsJson = False,
) -> None:
    """Train a stratified sample of shapes on the same text, and compare every score with the results.

    Example: linnet design study --out runs/study

    Half of the models share weights within their blocks, half do not; in each band of equal size they range from
    shallow and wide to deep and narrow. The defaults take about an hour on two cores. Ctrl-C saves and stops; the same
    command continues.

    Example: linnet design study --text my.txt --shapes 12 --bands 2 --steps 300 --seeds 3 --out runs/small-study --json
    """
    from linnet.core.spec import read_assignment
    from linnet.design.space import load_space
    from linnet.experiments.executors import make_executor
    from linnet.experiments.jobs import Runner
    from linnet.experiments.study import StudySettings
    from linnet.experiments.study import study as run_study

    for change in changes or []:
        if not change.strip().startswith("training.") or "=" not in change:
            raise UserError(f"--set {change}: expected training.KEY=VALUE")
    fields = dict(map(read_assignment, changes or []))
    values: dict[str, Any] = {"shapes": shapes, "bands": bands, "seeds": seeds, "steps": steps, "stories": stories}
    values |= {"files": tuple(text or ()), "seed": seed, "resamples": resamples}
    settings = StudySettings.parse(values, "the study")
    with interruptions_reported():
        chosen = make_executor(executor, workers, slurm_options or ())
        found = run_study(load_space(space), settings, fields, out, Runner(note, invocation()), chosen)
    show_result(found, out, as_json)
