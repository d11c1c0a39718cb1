"""`linnet design`: the shape of a model under a budget."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.console import check_out_file, is_on_command_line, note, option_of, refuse_before, show
from linnet.cli.design_show import LatencyOptions, show_checked, show_found, show_front
from linnet.cli.design_study import study
from linnet.cli.design_validate import validate
from linnet.cli.options import MOST_AMOUNT, AsJson, option
from linnet.core import units
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.design.metrics import Budget, CostCounts
    from linnet.design.space import Space

FLOPS_TOKENS = 1024
"""FLOPs are counted over so many tokens where nothing is said; over fewer where the models' context is shorter."""

SPACE_FIELDS = ("model", "blocks", "block")
"""What --set changes of a space; anything else is a setting."""

BELONGS_TO = {
    "points": ("pareto",),
    "latency_of": ("max_latency",),
    "device": ("max_latency",),
    "threads": ("max_latency",),
    "batch": ("max_training_memory", "pareto"),
    "with_head": ("max_flops", "pareto"),
    "precision": ("max_weights", "max_state", "pareto"),
}
"""Options that do something only beside another."""

design = typer.Typer(add_completion=False, rich_markup_mode=None)


@design.callback(invoke_without_command=True)
def search(
    context: typer.Context,
    space: Annotated[
        str | None, option("NAME|FILE", "hybrid, merino, mixed, patterned, study, or a YAML file.")
    ] = None,
    data: Annotated[
        Path | None, option("DIR", "A folder made by `linnet prepare`; the models get its vocabulary.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="Of the models; that of --data, else the space's, if not given.")
    ] = None,
    max_flops: Annotated[str | None, option("N", "Forward FLOPs of one sequence, as in 60G.")] = None,
    max_parameters: Annotated[str | None, option("N", "Parameters, shared ones once, as in 60M.")] = None,
    max_active_parameters: Annotated[
        str | None, option("N", "Of them those that one token uses, as in 20M: fewer where there are experts.")
    ] = None,
    max_weights: Annotated[str | None, option("BYTES", "Bytes of the weights, as in 100MB.")] = None,
    max_state: Annotated[
        list[str] | None,
        option("BYTES@TOKENS", "Decode state of one stream of so many tokens, as in 2MB@16k (repeatable)."),
    ] = None,
    max_training_memory: Annotated[
        str | None, option("BYTES", "What a training step holds in float32, as in 8GB.")
    ] = None,
    max_latency: Annotated[str | None, option("TIME", "Measured on this machine, as in 20ms.")] = None,
    latency_of: Annotated[
        Literal["token", "sequence"],
        typer.Option(help="What is timed: one more token of a stream, or a pass over a sequence."),
    ] = "token",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where latency is measured.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads for it; PyTorch's if not given.")
    ] = None,
    score: Annotated[
        str, option("NAME", "What is maximized: linnet design scores. MeRino's is entropy.")
    ] = "penalized_parameters",
    method: Annotated[
        Literal["auto", "evolution", "exact"],
        typer.Option(help="Evolution, the true optimum, or both where that can be."),
    ] = "auto",
    pareto: Annotated[
        str | None, option("GOALS", "Several goals at once, as in flops,score; --out is then a folder.")
    ] = None,
    points: Annotated[int | None, typer.Option(min=2, help="Limits on each goal; 16, or 6 for two.")] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a sequence, for FLOPs, training and latency; 1024 if not given, or the models' context"
            " length where that is shorter.",
        ),
    ] = None,
    with_head: Annotated[bool, typer.Option("--with-head", help="Count the output head's FLOPs too.")] = False,
    precision: Annotated[
        Literal["float32", "bfloat16", "int8", "int4"],
        typer.Option(help="Precision of weights; the state is what it is beside them."),
    ] = "float32",
    batch: Annotated[
        int, typer.Option(min=1, max=MOST_AMOUNT, help="Sequences of a training step, for its memory.")
    ] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Decides what evolution draws.")] = 0,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting, as score.beta=2 or search.reach=3, or a field of the space, as model.context_length=512"
            " or blocks=3 (repeatable).",
        ),
    ] = None,
    out: Annotated[Path | None, option("FILE", "Write the model's description here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the shape of a model under a budget.

    The model of the highest score among all of a search space that keep within every budget: by MeRino's evolutionary
    search and, where it can be known, the true optimum. The score is the one that orders trained models best, unless
    another is named. FILE is for `linnet train --model`. What a small model costs depends on its vocabulary: --data
    gives that of the text that it is for.

    Example: linnet design --space merino --max-flops 60G --max-parameters 60M --score entropy --out best.yaml

    Example: linnet design --space mixed --data data/my --max-parameters 3M --out best.yaml

    Example: linnet design --space space.yaml --max-flops 2G --max-state 4MB@4k --json

    Example: linnet design --space mixed --max-latency 5ms --threads 2 --out fast.yaml

    Example: linnet design --space merino --max-parameters 60M --pareto flops,score --score entropy --out front
    """
    if context.invoked_subcommand is not None:
        refuse_before(context)
        return
    _refuse_alone(context)
    if pareto is None:
        check_out_file(out)
    from linnet.design.metrics import CostCounts
    from linnet.design.search import SearchTask
    from linnet.design.space import load_space

    if space is None:
        raise UserError(
            "--space: missing; give a search space: hybrid, merino, mixed, patterned, study, or a YAML file"
        )
    own, settings = _changes(changes or [])
    found_space = load_space(space, own, _vocab_size(own, data, vocab_size))
    counting = CostCounts(_tokens(tokens, found_space), with_head, precision, batch)
    limits = {"flops": max_flops, "parameters": max_parameters, "active_parameters": max_active_parameters}
    limits |= {"weights": max_weights}
    budgets = _budgets({**limits, "training_memory": max_training_memory}, max_state or [], counting)
    task = SearchTask(found_space, budgets, score, _settings(settings, seed), method)
    if found_space.left_out[0]:
        note(f"{found_space.left_out[0]:,} combinations make no block; the first: {found_space.left_out[1]}")
    clock = LatencyOptions(max_latency, latency_of, device, threads)
    if pareto is not None:
        show_front(task, pareto, points, counting, clock, out, as_json)
    elif max_latency is not None:
        show_checked(task, counting.tokens, clock, out, as_json)
    else:
        show_found(task, counting.tokens, out, as_json)


def _refuse_alone(context: typer.Context) -> None:
    """An option without the one that it belongs to would be forgotten."""
    for name, others in BELONGS_TO.items():
        if is_on_command_line(context, name) and not any(is_on_command_line(context, other) for other in others):
            said = " or ".join(option_of(context, other) for other in others)
            raise UserError(f"{option_of(context, name)}: belongs to {said}; give it too, or leave both out")


def _changes(changes: list[str]) -> tuple[list[str], list[str]]:
    """What changes the space, and what is a setting of the search."""
    of_space = [change for change in changes if re.split("[.=]", change.strip())[0] in SPACE_FIELDS]
    return of_space, [change for change in changes if change not in of_space]


def _vocab_size(of_space: list[str], data: Path | None, given: int | None) -> int | None:
    """That of the data, or as it was given; None where the space decides."""
    from linnet.data.token_data import read_manifest

    of_data = None if data is None else read_manifest(data).tokenizer.vocab_size
    if given is not None and of_data not in (None, given):
        raise UserError(f"--vocab-size {given}: {data} has {of_data:,} tokens; leave one of both out")
    size = given or of_data
    if size is not None and any(change.split("=")[0].strip() == "model.vocab_size" for change in of_space):
        raise UserError("--set model.vocab_size: is decided by --data or --vocab-size; leave one of both out")
    return size


def _tokens(given: int | None, space: "Space") -> int:
    """The length over which FLOPs are counted."""
    from linnet.design.metrics import MAX_TOKENS

    model = space.model([0] * space.spec.blocks)
    if given is not None and given > MAX_TOKENS:
        raise UserError(f"--tokens {given}: expected at most {MAX_TOKENS:,}")
    if given is not None and given > model.context_length and model.embedding.positions == "learned":
        raise UserError(f"--tokens {given}: the models' learned positions end at {model.context_length}")
    return given or min(FLOPS_TOKENS, model.context_length)


def _budgets(limits: dict[str, str | None], states: list[str], counting: "CostCounts") -> "list[Budget]":
    """`limits` by the names of their metrics, and those of state."""
    from linnet.design.metrics import Budget, read_bytes, read_state

    budgets = []
    for name, text in limits.items():
        metric, option = counting.metric(name), f"--max-{name.replace('_', '-')}"
        assert metric is not None
        if text is not None:
            read = read_bytes if metric.unit == "bytes" else units.parse_amount
            budgets.append(Budget(metric, read(text, option), f"{option} {text}"))
    for text in states:
        most, length = read_state(text, "--max-state")
        metric = counting.metric(f"state@{length}")
        assert metric is not None
        budgets.append(Budget(metric, most, f"--max-state {text}"))
    return budgets


def _settings(changes: list[str], seed: int) -> Any:
    from linnet.core.spec import override
    from linnet.design.search import DesignSettings

    plain = override({"score": {}, "search": {"seed": seed}}, changes)
    return DesignSettings.parse(plain, "`set`")


@design.command()
def scores(as_json: AsJson = False) -> None:
    """List the scores that a search can maximize, each with what it says about trained models.

    Example: linnet design scores
    """
    from linnet.design.report import score_table
    from linnet.design.scores import SCORES

    figures = {
        name: {"beta": score.beta, "measured": score.measured, "summary": score.summary}
        for name, score in SCORES.items()
    }
    show("Scores of shapes", {}, figures, [score_table()], list, None, as_json)


design.command()(validate)
design.command()(study)
