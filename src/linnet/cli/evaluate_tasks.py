"""The part of `linnet evaluate` that asks tasks: which options it has, and how they go together."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli.options import option
from linnet.cli.report import echo_json, echo_parts
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.evaluation.tasks.harness_run import HarnessFindings
    from linnet.evaluation.tasks.interface import TaskFindings

ABILITIES = "abilities"
"""The suite that makes its own questions."""

OF_TEXT = (
    "data",
    "split",
    "limit_tokens",
    "context_length",
    "stride",
    "retentions",
    "plot",
    "tokens_at_once",
    "resamples",
)
"""Options that say how a text is read; tasks are read as they stand."""

OF_OWN_FILES = ("suite", "task_file", "train_text")
"""Options that mean nothing for tasks of the harness, which loads their data itself."""

OF_TASKS = ("files", "shots", "limit", "train_text")
"""Options that mean something for tasks alone."""

NOT_OF_ABILITIES = (*OF_TEXT, "operator_from", "operator", "task_file", "tasks", "train_text")
WITH_SHOTS = ("plot",)
"""Options of a text that the suite of abilities has as well, where it varies the number of examples."""

OPTIONS = {"retentions": "retention", "resamples": "bootstrap"}
"""Of parameters, where they have another name."""

SuiteName = Annotated[
    str | None,
    option(
        "pldr|merino|minimal-pairs|abilities",
        "Ask the tasks of a suite, from the user's own --files; abilities: generated questions, each against chance.",
    ),
]
HarnessTasks = Annotated[
    str | None, option("NAME,NAME", "Ask tasks of the LM Evaluation Harness, the package lm_eval, by their names.")
]
Files = Annotated[
    list[Path] | None,
    option(
        "DIR|FILE",
        "A folder with NAME.jsonl of each task; of minimal pairs a file; of --tasks more YAML files; of abilities YAML "
        "files of those to measure (repeatable).",
    ),
]
TaskFile = Annotated[Path | None, option("FILE", "Ask any multiple choice: JSON lines of context, choices, gold.")]
Shots = Annotated[
    str | None,
    option(
        "N|N,N",
        "Examples before each item: rows of NAME_train.jsonl, else other items. With --suite abilities accuracy is "
        "told against each of these numbers of examples, without and with an instruction; --plot draws it.",
    ),
]
MOST_TASK_SHOTS, MOST_ABILITY_SHOTS = 100, 64
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, max=1 << 20, help="So many items of each task, the first, all if not given; of each ability, 200."
    ),
]
TrainText = Annotated[
    Path | None, option("FILE|DIR", "Tell which items share 13 words in a row with this text, and scores without them.")
]


def text_alone(ctx: typer.Context, data: Path | None) -> Path:
    """What a measurement on text reads; `UserError` for what belongs to tasks."""
    refuse(ctx, OF_TASKS, "goes with `suite`, `task_file` or `tasks`")
    if data is None:
        raise UserError("nothing to measure on; expected one of `data`, `suite`, `task_file` and `tasks`")
    return data


def check_no_text(ctx: typer.Context, operator_from: str | None) -> None:
    """`UserError` where options of a text are given beside tasks."""
    refuse(ctx, OF_TEXT, "says how a text is measured; leave it out for tasks")
    if operator_from not in (None, "empty"):
        raise UserError("tasks have no training split; use empty", field="operator_from", value=operator_from)


def check_abilities(ctx: typer.Context, models: Sequence[Path]) -> None:
    """`UserError` for several models, and for what the suite of abilities has no use for."""
    if len(models) > 1:
        raise UserError(f"{len(models)} models: the suite of abilities measures one; expected one")
    if _given(ctx, WITH_SHOTS) and not _given(ctx, ("shots",)):
        raise UserError("goes with `shots` here", field="plot", value=_said(ctx, "plot"))
    others = [name for name in NOT_OF_ABILITIES if name not in WITH_SHOTS]
    refuse(ctx, others, "the suite of abilities makes its own questions; leave it out")


def refuse(ctx: typer.Context, names: Sequence[str], why: str) -> None:
    """`UserError` for the first of these that was given on the command line."""
    for name in _given(ctx, names):
        raise UserError(why, field=OPTIONS.get(name, name), value=_said(ctx, name))


def shot_counts(text: str, most: int) -> list[int]:
    """The numbers of examples in `0,1,4`, ascending; `UserError` for what is none, is twice, or is more than `most`."""
    parts = text.split(",")
    counts = [int(part) for part in parts if part.strip().isdecimal()]
    if len(counts) < len(parts) or max(counts) > most or len(set(counts)) < len(counts):
        accepted = f"whole numbers from 0 to {most} with commas between them, as in 0,1,4"
        raise UserError(field="shots", value=text, accepted=accepted)
    return sorted(counts)


def task_shots(text: str | None) -> int | None:
    """The one number of examples that tasks are asked with."""
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) > MOST_TASK_SHOTS:
        raise UserError(field="shots", value=text, accepted=f"a whole number from 0 to {MOST_TASK_SHOTS}")
    return int(text)


def one_of(files: Sequence[Path] | None) -> Path | None:
    """The one folder or file of tasks; `UserError` for several."""
    if files is not None and len(files) > 1:
        raise UserError("expected one, several are for the suite of abilities", field="files", value=files[1])
    return files[0] if files else None


def _said(ctx: typer.Context, name: str) -> str:
    """What was given for an option, as it was said."""
    value = ctx.params[name]
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _given(ctx: typer.Context, names: Sequence[str]) -> list[str]:
    """Which of these were given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def ask(models: list[Path], as_json: bool, train_text: Path | None, **settings: Any) -> "TaskFindings":
    """Measure and print; settings as of `evaluate_suite`."""
    from linnet.evaluation.tasks.interface import evaluate_suite

    found = evaluate_suite(models, train_text=train_text, **settings)
    _print(found, as_json)
    return found


def ask_harness(
    ctx: typer.Context, models: list[Path], as_json: bool, tasks: str, files: Path | None, **settings: Any
) -> None:
    """Measure by tasks of the harness and print; settings as of `evaluate_harness`."""
    refuse(ctx, OF_OWN_FILES, "does not go with `tasks`; leave it out")
    from linnet.evaluation.tasks.harness_run import evaluate_harness

    names = [name for part in tasks.split(",") if (name := part.strip())]
    _print(evaluate_harness(models, names, task_folder=files, **settings), as_json)


def _print(found: "TaskFindings | HarnessFindings", as_json: bool) -> None:
    if as_json:
        echo_json(found.figures())
    else:
        echo_parts(*found.tables())
