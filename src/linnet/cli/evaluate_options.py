"""The options of `linnet evaluate`, in groups, and which of them go together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.options import MOST_AMOUNT, ContextLength, Device, Precision, option
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.evaluation.subject import ModelOptions

ABILITIES = "abilities"
"""The suite that makes its own questions."""

MINIMAL_PAIRS = "minimal-pairs"
"""The suite of one file, which may stand behind the models."""

MOST_TASK_SHOTS = 100
TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class TextOptions:
    """What is read, and how."""

    data: Annotated[
        Path | None,
        option(
            "DIR|FILE",
            "A folder made by `linnet prepare`, or text to read with the model's own tokenizer: .txt, .md, .jsonl, "
            ".parquet, or - for the standard input. Not with tasks.",
        ),
    ] = None
    split: Annotated[
        Literal["validation", "train"] | None,
        typer.Option(help="The side of a data folder to measure on.", show_default="validation"),
    ] = None
    limit_tokens: Annotated[
        int | None, typer.Option(min=1, help="About this many tokens of each model, spread evenly; all if not given.")
    ] = None
    context_length: ContextLength = None
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_AMOUNT,
            help="Slide windows by so many tokens over each document: a token is predicted once, with at least the "
            "context less the stride before it.",
        ),
    ] = None
    cache_policies: Annotated[
        list[str] | None,
        typer.Option(
            "--cache-policy",
            metavar="POLICY",
            help="Measure what is lost with this cache policy (repeatable; docs/inference.md), beside the full cache.",
        ),
    ] = None
    plot: Annotated[
        Path | None, option("FILE", "Draw the loss by position, or accuracy against --shots, into this .png file.")
    ] = None

    def check_plot(self) -> None:
        """`UserError` for a file that is no picture."""
        if self.plot is not None and self.plot.suffix != ".png":
            raise UserError(f"--plot {self.plot}: expected a file that ends in .png")


@dataclass(frozen=True)
class CalibrationOptions:
    """With which operators a PLDR-LLM is measured."""

    calibrate_on: Annotated[
        Literal["train", "empty"] | None,
        typer.Option(
            help="The text that calibrates a model that is not causal by itself: the start of the training"
            " split, or the empty prompt.",
            show_default="train; empty for a file",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        option(
            "FILE|identity|random",
            "Measure a PLDR-LLM with other operators than its own: those of a .safetensors or .npz file (as "
            "`linnet inspect operator --save` writes it), the identity, or random numbers.",
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Draws --calibration random, or a suite's items; 0 if not given.")
    ] = None

    @property
    def drawn_from(self) -> int | None:
        """The seed of random operators, None where nothing is drawn; `UserError` for one that draws nothing."""
        if self.calibration == "random":
            return self.seed or 0
        if self.seed is not None:
            raise UserError(f"--seed {self.seed}: goes with --calibration random; nothing else is drawn")
        return None


@dataclass(frozen=True)
class TaskOptions:
    """What is asked, and how."""

    suite: Annotated[
        str | None,
        option(
            "pldr|merino|minimal-pairs|abilities",
            "Ask the tasks of a suite, from the user's own --files; abilities: generated questions, each against "
            "chance.",
        ),
    ] = None
    files: Annotated[
        list[Path] | None,
        option(
            "DIR|FILE",
            "A folder with NAME.jsonl of each task; of minimal pairs a file; of --tasks more YAML files; of abilities "
            "YAML files of those to measure (repeatable).",
        ),
    ] = None
    task_file: Annotated[
        Path | None, option("FILE", "Ask any multiple choice: JSON lines of context, choices, gold.")
    ] = None
    tasks: Annotated[
        str | None, option("NAME,NAME", "Ask tasks of the LM Evaluation Harness, the package lm_eval, by their names.")
    ] = None
    shots: Annotated[
        str | None,
        option(
            "N|N,N",
            "Examples before each item: rows of NAME_train.jsonl, else other items. With --suite abilities accuracy is "
            "told against each of these numbers of examples, without and with an instruction; --plot draws it.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 20, help="So many items of each task, the first, all if not given; of each ability, 200."
        ),
    ] = None
    train_text: Annotated[
        Path | None,
        option("FILE|DIR", "Tell which items share 13 words in a row with this text, and scores without them."),
    ] = None

    @property
    def asked(self) -> bool:
        """Whether there are tasks to ask."""
        return self.suite is not None or self.task_file is not None or self.tasks is not None

    @property
    def place(self) -> Path | None:
        """The one folder or file of tasks; `UserError` for several."""
        if self.files is not None and len(self.files) > 1:
            raise UserError("expected one, several are for the suite of abilities", field="files", value=self.files[1])
        return self.files[0] if self.files else None

    @property
    def shot_count(self) -> int | None:
        """The one number of examples that tasks are asked with; `UserError` for what is none."""
        if self.shots is None:
            return None
        if not self.shots.strip().isdecimal() or int(self.shots) > MOST_TASK_SHOTS:
            raise UserError(field="shots", value=self.shots, accepted=f"a whole number from 0 to {MOST_TASK_SHOTS}")
        return int(self.shots)

    def shot_counts(self, most: int) -> list[int]:
        """The numbers in `0,1,4`, ascending; `UserError` for what is none, is twice, or is more than `most`."""
        assert self.shots is not None
        parts = self.shots.split(",")
        counts = [int(part) for part in parts if part.strip().isdecimal()]
        if len(counts) < len(parts) or max(counts) > most or len(set(counts)) < len(counts):
            accepted = f"whole numbers from 0 to {most} with commas between them, as in 0,1,4"
            raise UserError(field="shots", value=self.shots, accepted=accepted)
        return sorted(counts)


@dataclass(frozen=True)
class ComputeOptions:
    """Where, in which precision, and how much at once."""

    device: Device = "auto"
    precision: Precision = None
    tokens_at_once: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_AMOUNT, help="Tokens that are computed at once: time and memory, not the figures."
        ),
    ] = TOKENS_AT_ONCE

    def read(self, calibrated: CalibrationOptions, seed: int | None) -> "ModelOptions":
        """How models are read. seed: of random operators."""
        from linnet.evaluation.subject import ModelOptions

        return ModelOptions(None, self.device, calibrated.calibration, self.precision, seed or 0)


def given(ctx: typer.Context, names: Sequence[str]) -> list[str]:
    """Which of these were given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def refuse(ctx: typer.Context, names: Sequence[str], why: str) -> None:
    """`UserError` for the first of these that was given on the command line."""
    for name in given(ctx, names):
        raise UserError(why, field=name, value=said(ctx, name))


def said(ctx: typer.Context, name: str) -> str:
    """What was given for an option, as it was said."""
    value: Any = ctx.params[name]
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
