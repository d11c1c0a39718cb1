"""`linnet plan`: plan a training budget by published scaling laws, or by one that is fitted to your own runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from linnet.cli.console import (
    check_out_path,
    invocation,
    note,
    note_replaced,
    show_result,
)
from linnet.cli.options import AsJson, Bootstrap, ReportFolder, option, refuse_before_subcommand
from linnet.core import units
from linnet.core.errors import UserError

USUAL = (
    "--flops", "--hours", "--parameters", "--tokens", "--law", "--data",
    "--device", "--out", "--report", "--json",
)  # fmt: skip
"""The options that the short help shows."""

BOUNDS = {
    "flops": ("FLOPs", "1e6", "1e30", "1e18"),
    "hours": ("hours", "0.000001", "10,000,000", "0.5 or 24"),
    "parameters": ("parameters", "1", "1e15", "50M"),
    "tokens": ("tokens", "1", "1e16", "2B"),
    "throughput": ("FLOPs per second", "1e3", "1e24", "2e12"),
}
"""Unit, smallest and largest value, and an example; far beyond, the powers of a law exceed floating-point numbers."""

plan = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)


@plan.callback()
def plan_budget(
    context: typer.Context,
    flops: Annotated[str | None, option("N", "Training FLOPs, 6 x parameters x tokens: 1e18.")] = None,
    hours: Annotated[str | None, option("H", "Hours of training on the device.")] = None,
    parameters: Annotated[str | None, option("N", "Parameters, as the law counts them: 50M.")] = None,
    tokens: Annotated[str | None, option("N", "Training tokens: 2B.")] = None,
    law: Annotated[
        str, option("NAME|FILE", "chinchilla, replication, kaplan, or a file made by `linnet plan fit`.")
    ] = "replication",
    data: Annotated[Path | None, option("DIR", "A data folder: the text to train on.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="The device to train on.")] = "auto",
    throughput: Annotated[str | None, option("N", "Training FLOPs per second. Default: measured.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Windows in a step.")] = 8,
    context_length: Annotated[int, typer.Option(min=1, help="Tokens in a window.")] = 1024,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=2, help="Vocabulary of the model. Default: that of --data, else one that suits its size."),
    ] = None,
    out: Annotated[
        Path | None, option("FILE", "Write the model's description, and a search space around it (YAML).")
    ] = None,
    report: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Plan a training run: the best size and number of tokens for a budget, the expected loss, and the time it takes.

    Example: linnet plan --flops 1e18

    Give --flops, --hours, --parameters or --tokens; or two of them that fix size and tokens. The speed is measured by
    a few steps of a model of that size, which takes seconds. Losses are in nats per token of each law's own text and
    tokenizer.

    Example: linnet plan --hours 24 --device cpu --data data/stories --out planned.yaml

    Example: linnet plan --parameters 50M --law chinchilla --throughput 2e12 --json
    """
    limits = {"flops": flops, "hours": hours, "parameters": parameters, "tokens": tokens}
    if context.invoked_subcommand is not None:
        refuse_before_subcommand(context)
        return
    import yaml

    from linnet.core.files import write_text
    from linnet.core.system import resolve_device
    from linnet.scaling.budget import TrainingBudget
    from linnet.scaling.candidate import VOCABULARY_SOURCE, search_space
    from linnet.scaling.law import laws_for_plan
    from linnet.scaling.plan import PlanSetting, make_plan, read_training_text
    from linnet.scaling.plan_report import PlanReport, plan_warnings, space_file
    from linnet.scaling.throughput import Throughput

    if out is not None:
        check_out_path(space_file(out), f"--out {out}: the search space beside it,", "FILE")
    amounts = {name: _amount(value, name) for name, value in limits.items() if value is not None}
    budget, (chosen, laws) = TrainingBudget(**amounts), laws_for_plan(law)
    text = None if data is None else read_training_text(data)
    speed = None if throughput is None else Throughput(_amount(throughput, "throughput"))
    vocabulary = vocab_size or (text.vocab_size if text else None)
    setting = PlanSetting(vocabulary, context_length, batch_size, resolve_device(device), speed)
    made = make_plan(budget, chosen, laws, setting, text)
    if out is not None:
        plain = {out: made.model.model_dump(mode="json"), space_file(out): search_space(made.model)}
        note_replaced(*plain)
        for path, description in plain.items():
            write_text(path, yaml.safe_dump(description, sort_keys=False))
        note(f"description: {out}, search space around it: {space_file(out)}")
    for line in plan_warnings(made):
        note(f"warning: {line}")
    if vocabulary is None:
        size = made.model.vocab_size
        suits = f"vocabulary: {size:,} tokens suit this size ({VOCABULARY_SOURCE})"
        note(f"{suits}; linnet prepare --vocab-size {size} makes one")
    show_result(PlanReport(made, out), report, as_json)


@plan.command()
def fit(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...|FILE.csv", help="Folders of runs or of comparisons (their runs/), or one CSV file."
        ),
    ],
    out: Annotated[Path, option("FILE", "The law's file (JSON).")],
    counted: Annotated[
        Literal["total", "without_embedding", "matrices_and_head"],
        typer.Option(help="The parameters that the law counts."),
    ] = "total",
    drop_highest: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the N highest losses.")] = 0,
    hold_out: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, metavar="SHARE", help="Predict this share, the runs with the most FLOPs, do not fit it."
        ),
    ] = 0.0,
    resamples: Bootstrap = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resamples.")] = 0,
    delta: Annotated[
        float, typer.Option(min=1e-12, help="Where the Huber loss changes from quadratic to linear.")
    ] = 1e-3,
    flops_tolerance: Annotated[
        float, typer.Option(min=0.0, help="Runs whose FLOPs differ by less than this share count as equal.")
    ] = 0.1,
    report: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Fit a scaling law to runs: Chinchilla's approach 3, with intervals; approaches 1 and 2 if the runs allow them.

    Example: linnet plan fit runs/* --out law.json --report fitted

    A CSV file has the columns parameters, loss (nats per token), and training_flops or tokens; optional: run (rows of
    one name are one run's curve), parameters_without_embedding, parameters_matrices_and_head. Run folders are read with
    the causal loss of the held-out text and exact FLOPs; unfinished runs are left out and named.

    A law needs at least 6 runs, of 3 sizes and 3 numbers of tokens. With --hold-out this many must be left: 12 runs in
    all for --hold-out 0.5. A warning is printed if the runs do not determine the law.

    Example: linnet plan fit points.csv --drop-highest 5 --out law.json

    Example: linnet plan fit runs/* --hold-out 0.5 --out half.json --report predicted
    """
    from linnet.core.checksum import write_checked_json
    from linnet.scaling.fit import FitSettings, fit_runs, fitted_law
    from linnet.scaling.fit_report import FitReport
    from linnet.scaling.runs import read_runs

    read = read_runs(sources)
    for line in read.left_out:
        note(f"left out: {line}")
    for line in read.partly_used:
        note(line)
    settings = FitSettings(counted, drop_highest, delta, flops_tolerance, resamples, seed, hold_out)
    found = fit_runs(read.runs, settings, out.stem)
    law = fitted_law(found, read.bytes_per_token, invocation())
    note_replaced(out)
    write_checked_json(out, law.model_dump(mode="json"))
    note(f"law: {out}")
    for line in law.warnings if as_json else ():  # else they stand below the table of the law
        note(f"warning: {line}")
    show_result(FitReport(found, law, len(read.runs)), report, as_json)


@plan.command()
def task(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="COMPARISON...|FILE.csv", help="Comparisons on one ability, or one CSV file."),
    ],
    hold_out: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="Predict this share, the runs with the most FLOPs."),
    ] = 0.5,
    accuracy: Annotated[
        Literal["whole", "symbols", "final"],
        typer.Option(help="What is right: whole answers, their symbols, or final answers behind written steps."),
    ] = "whole",
    resamples: Bootstrap = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the resamples.")] = 0,
    report: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Predict the accuracy of larger models on a task from the smaller ones of a ladder, and compare with the results.

    Example: linnet plan task runs/recall-ladder --hold-out 0.5 --report predicted

    Accuracy is fitted as a sigmoid of the loss, from chance to 1, or from 0 if runs lie below chance. The larger models
    are predicted from their final loss, and, if the runs allow a scaling law, from their size and tokens alone. The
    intervals are 95 % confidence intervals.

    A CSV file has columns parameters, loss (nats per token), training_flops or tokens, right (a share), items, chance.
    At least 4 runs must be left to fit; 6, of 3 sizes and 3 numbers of tokens, for the prediction by size.

    Example: linnet plan task ladder.csv --hold-out 0.4 --json
    """
    from linnet.scaling.task import predict_task, read_task_points

    show_result(predict_task(read_task_points(sources, accuracy), hold_out, resamples, seed), report, as_json)


def _amount(text: str, name: str) -> float:
    """Return an amount within its bounds; `UserError` names the option and the accepted range."""
    value, (what, least, most, example) = units.parse_units(text, units.FACTORS), BOUNDS[name]
    if value is None or not units.parse_amount(least, name) <= value <= units.parse_amount(most, name):
        raise UserError(f"--{name} {text}: expected {what} from {least} to {most}, as in {example}")
    return value
