"""The part of `linnet evaluate` that asks tasks: which options it has, and how they go together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from linnet.cli.options import option
from linnet.cli.report import echo_json, echo_parts
from linnet.core.errors import UserError

OF_TEXT = ("data", "split", "limit_tokens", "context_length")
"""Options that say how a text is read; tasks are read as they stand."""

OF_TASKS = ("files", "shots", "limit", "train_text")
"""Options that mean something for tasks alone."""

SuiteName = Annotated[
    str | None, option("pldr|minimal-pairs", "Ask the tasks of a suite, from the user's own --files.")
]
Files = Annotated[Path | None, option("DIR|FILE", "A folder with NAME.jsonl of each task; of minimal pairs a file.")]
TaskFile = Annotated[Path | None, option("FILE", "Ask any multiple choice: JSON lines of context, choices, gold.")]
Shots = Annotated[
    int | None, typer.Option(min=0, max=100, help="Examples before each item; those of NAME_train.jsonl.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="So many items of each task, the first; all if not given.")]
TrainText = Annotated[
    Path | None, option("FILE|DIR", "Tell which items share 13 words in a row with this text, and scores without them.")
]


def text_alone(ctx: typer.Context, models: list[Path], data: Path | None) -> tuple[Path, Path]:
    """The one model and the data folder of a measurement on text; `UserError` for what belongs to tasks."""
    for name in _given(ctx, OF_TASKS):
        raise UserError("goes with `suite` or `task_file`", field=name, value=ctx.params[name])
    if data is None:
        raise UserError("nothing to measure on; expected one of `data`, `suite` and `task_file`")
    if len(models) > 1:
        raise UserError(f"{len(models)} models: a text is measured with one; expected one, or tasks")
    return models[0], data


def check_no_text(ctx: typer.Context, operator_from: str) -> None:
    """`UserError` where options of a text are given beside tasks."""
    for name in _given(ctx, OF_TEXT):
        raise UserError("says how a text is measured; leave it out for tasks", field=name, value=ctx.params[name])
    if operator_from != "empty" and _given(ctx, ("operator_from",)):
        raise UserError("tasks have no training split; use empty", field="operator_from", value=operator_from)


def _given(ctx: typer.Context, names: Sequence[str]) -> list[str]:
    """Which of these were given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def ask(models: list[Path], as_json: bool, **settings: Any) -> None:
    """Measure and print; settings as of `evaluate_suite`."""
    from linnet.evaluation.tasks.interface import evaluate_suite

    found = evaluate_suite(models, **settings)
    if as_json:
        echo_json(found.figures())
    else:
        echo_parts(*found.tables())
