"""`linnet evaluate`: measure models on text, on tasks, and on abilities that any token mixer can be asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from linnet.cli.console import invocation, note, show_result
from linnet.cli.options import (
    AsJson,
    Compiles,
    ContextLength,
    Device,
    Precision,
    is_on_command_line,
    option,
    refuse_options,
    set_compiled_steps,
    with_option_groups,
)
from linnet.core.bounds import MAX_ABILITY_SHOTS, MAX_RESAMPLES, MAX_TASK_ITEMS, MAX_TASK_SHOTS
from linnet.core.errors import UserError
from linnet.present.result import Result

if TYPE_CHECKING:
    from linnet.evaluation.models import ModelOptions
    from linnet.evaluation.results import ModelComparison, TextEvaluation
    from linnet.experiments.measures import Measures
    from linnet.experiments.report import SideBySide

USUAL = (
    "--data", "--limit-tokens", "--context-length", "--suite", "--task-file", "--tasks",
    "--shots", "--plot", "--report", "--json",
)  # fmt: skip
"""The options that the short help shows."""

ABILITIES = "abilities"
"""The suite that generates its own questions."""

INSTRUCTIONS = "instructions"
"""The suite of prompts with checkers."""

MINIMAL_PAIRS = "minimal-pairs"
"""The suite of a single file, which may stand behind the models."""

TOKENS_AT_ONCE, RESAMPLES = 8192, 1000

TEXT_OPTIONS = (
    "data",
    "split",
    "limit_tokens",
    "context_length",
    "stride",
    "cache_policies",
    "plot",
    "tokens_at_once",
    "resamples",
)
"""Options that have an effect only for a text."""

TASK_OPTIONS = ("files", "shots", "limit", "train_text", "prompts")
"""Options that have an effect only for tasks."""

OWN_TASK_OPTIONS = ("suite", "task_file", "train_text")
"""Options that have no effect for tasks of the LM Evaluation Harness, which loads its data itself."""

PROTOCOL_OPTIONS = ("models", "protocol", "files", "limit", "report", "device", "compiles", "as_json")
"""Options that go with a protocol; the protocol decides everything else."""


@dataclass(frozen=True)
class TextOptions:
    """The text and how it is read."""

    data: Annotated[
        Path | None,
        option(
            "DIR|FILE",
            "A data folder, or text to read with the model's own tokenizer: .txt, .md, .jsonl, .parquet, or - for the "
            "standard input. Not with tasks.",
        ),
    ] = None
    split: Annotated[
        Literal["validation", "train"] | None,
        typer.Option(help="The split of a data folder.", show_default="validation"),
    ] = None
    limit_tokens: Annotated[
        int | None, typer.Option(min=1, help="About this many tokens of each model, spread evenly. Default: all.")
    ] = None
    context_length: ContextLength = None
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Slide windows by this many tokens over each document: each token is predicted once, with at least "
            "the context less the stride before it.",
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
        Path | None, option("FILE", "Plot the loss by position, or accuracy against --shots, into this .png file.")
    ] = None

    def check_plot(self) -> None:
        if self.plot is not None and self.plot.suffix != ".png":
            raise UserError(f"--plot {self.plot}: expected a file that ends in .png")


@dataclass(frozen=True)
class CalibrationOptions:
    """The calibration of models that are not causal by themselves."""

    calibrate_on: Annotated[
        Literal["train", "empty"] | None,
        typer.Option(
            help="The text that a model which is not causal by itself is calibrated on: the start of the training "
            "split, or the empty prompt.",
            show_default="train; empty for a file",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        option(
            "FILE|identity|random",
            "Replace the model's own calibration: by that of a .safetensors or .npz file (as an inspection of "
            "the kind writes it), or a name that the kind knows.",
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Seed of --calibration random, or of a suite's items.", show_default="0")
    ] = None

    @property
    def random_seed(self) -> int | None:
        """The seed of a random calibration, else None; `UserError` for a seed that has no effect."""
        if self.calibration == "random":
            return self.seed or 0
        if self.seed is not None:
            raise UserError(f"--seed {self.seed}: goes with --calibration random; nothing else is drawn")
        return None


@dataclass(frozen=True)
class TaskOptions:
    """The tasks and their items."""

    suite: Annotated[
        str | None,
        option(
            "pldr|merino|minimal-pairs|abilities|instructions",
            "Measure on the tasks of a suite, read from --files; abilities: generated questions, each compared with "
            "chance; instructions: answers judged by checkers.",
        ),
    ] = None
    files: Annotated[
        list[Path] | None,
        option(
            "DIR|FILE",
            "A folder with NAME.jsonl of each task; for minimal pairs a file; for --tasks more YAML files; for "
            "abilities YAML files of those to measure (repeatable).",
        ),
    ] = None
    task_file: Annotated[
        Path | None, option("FILE", "Measure on multiple choice: JSON lines with context, choices, gold.")
    ] = None
    tasks: Annotated[
        str | None, option("NAME,NAME", "Measure on tasks of the LM Evaluation Harness, the package lm_eval, by name.")
    ] = None
    shots: Annotated[
        str | None,
        option(
            "N|N,N",
            "Examples before each item: rows of NAME_train.jsonl, else other items. With --suite abilities accuracy is "
            "measured for each of these numbers of examples, without and with an instruction; --plot draws it.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_TASK_ITEMS,
            help="Items of each task, the first. Default: all; of an ability 200; of a type of instruction 20.",
        ),
    ] = None
    prompts: Annotated[
        list[Path] | None,
        option("FILE.jsonl", "Of --suite instructions: prompts with checkers (repeatable). Default: story world."),
    ] = None
    train_text: Annotated[
        Path | None,
        option("FILE|DIR", "Report the items that share 13 words in a row with this text, and scores without them."),
    ] = None

    @property
    def wanted(self) -> bool:
        """True if there are tasks to measure on."""
        return self.suite is not None or self.task_file is not None or self.tasks is not None

    @property
    def place(self) -> Path | None:
        """The one folder or file of tasks; `UserError` for several."""
        if self.files is not None and len(self.files) > 1:
            raise UserError("expected one, several are for the suite of abilities", field="files", value=self.files[1])
        return self.files[0] if self.files else None

    @property
    def shot_count(self) -> int | None:
        """The number of examples of tasks; `UserError` for anything but one whole number."""
        if self.shots is None:
            return None
        if not self.shots.strip().isdecimal() or int(self.shots) > MAX_TASK_SHOTS:
            raise UserError(field="shots", value=self.shots, accepted=f"a whole number from 0 to {MAX_TASK_SHOTS}")
        return int(self.shots)

    @property
    def shot_counts(self) -> list[int]:
        """The numbers in `0,1,4`, ascending; `UserError` for another form, a duplicate, or too large a number."""
        assert self.shots is not None
        parts = self.shots.split(",")
        counts = [int(part) for part in parts if part.strip().isdecimal()]
        if len(counts) < len(parts) or max(counts) > MAX_ABILITY_SHOTS or len(set(counts)) < len(counts):
            accepted = f"whole numbers from 0 to {MAX_ABILITY_SHOTS} with commas between them, as in 0,1,4"
            raise UserError(field="shots", value=self.shots, accepted=accepted)
        return sorted(counts)


@dataclass(frozen=True)
class ComputeOptions:
    """Device, precision, and how much is computed at once."""

    device: Device = "auto"
    precision: Precision = None
    compiles: Compiles = True
    tokens_at_once: Annotated[
        int,
        typer.Option(min=1, help="Tokens computed at once; changes time and memory, not the figures."),
    ] = TOKENS_AT_ONCE

    def model_options(self, calibrated: CalibrationOptions, seed: int | None) -> "ModelOptions":
        """Return how models are loaded. seed: of a random calibration."""
        from linnet.evaluation.models import ModelOptions

        return ModelOptions(None, self.device, calibrated.calibration, self.precision, seed or 0)


@dataclass(frozen=True)
class PageOptions:
    """The page of several models, and what else is measured for it."""

    report: Annotated[
        Path | None,
        option("DIR", "Several models, or a protocol: one page (report.html) and the same in Markdown (report.md)."),
    ] = None
    also: Annotated[
        Path | None,
        option(
            "FILE.yaml",
            "With --report: tasks, abilities, instructions, samples, speed to measure beside (docs/comparison.md).",
        ),
    ] = None

    def check(self, has_rows: bool) -> None:
        """Raise `UserError`, before anything takes time, for a page of one model or an unreadable file of questions."""
        if self.also is not None and self.report is None:
            raise UserError(f"--also {self.also}: goes with --report, the page that it belongs to")
        if self.report is None:
            return
        if not has_rows:
            raise UserError(f"--report {self.report}: goes with several models")
        self.questions()

    def questions(self) -> "Measures | None":
        """Return what the file of --also asks for."""
        if self.also is None:
            return None
        from linnet.experiments.measures import Measures

        measures = Measures.load(self.also)
        measures.check(str(self.also))
        return measures

    def write(self, found: "SideBySide") -> None:
        from linnet.experiments.report import write_report

        assert self.report is not None
        note(f"report: {write_report(found, self.report, invocation())}")


@with_option_groups
def evaluate(
    ctx: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="A model folder, or the folder of a run; several to compare."),
    ],
    text: TextOptions,
    page: PageOptions,
    calibrated: CalibrationOptions,
    tasks: TaskOptions,
    protocol: Annotated[
        Path | None,
        option("FILE.yaml", "Repeat a paper's tables as a file describes them, with the questions of --files."),
    ] = None,
    *,
    compute: ComputeOptions,
    resamples: Annotated[
        int | None,
        typer.Option(
            "--bootstrap",
            min=20,
            max=MAX_RESAMPLES,
            metavar="N",
            help="Several models: resamples behind the intervals.",
            show_default=str(RESAMPLES),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure models on text (bits per byte, perplexity, accuracy, loss by position), or on tasks.

    Example: linnet evaluate runs/ted --data data/stories

    There are three measurements, one at a time: the likelihood of a text (--data), the accuracy on tasks (--suite,
    --task-file, --tasks), and generated questions about abilities (--suite abilities).

    Bits per byte is the loss for each byte of text. Lower is better, and models with different tokenizers can be
    compared by it. The evaluation is causal: no prediction depends on the text after it. The number behind ± is the
    standard error over the documents.

    Several models are compared on the same documents, each with its own tokenizer: the differences between them, with
    intervals.

    The training pass of some models sees the whole text, the future included. They are therefore evaluated with a
    calibration that is frozen on other text (--calibrate-on). What their own pass would have claimed beyond that is
    printed beside it: the leak.

    --suite abilities needs nothing but the model: copying, recall, counting, state tracking, combined facts, a needle
    in a long text and more, as far as the model knows the symbols (docs/abilities.md).

    --suite instructions needs nothing but the model either: greedy answers in its chat template, judged by checkers;
    with --data the bits per byte of a base text, which show what was forgotten (docs/instructions.md).

    Tasks are multiple choice from your own files (docs/tasks.md). Every score has its standard error, the accuracy of
    guessing and of simple baselines, and a verdict. Of several models the others are compared with the first. --tasks
    measures on tasks of the LM Evaluation Harness, which loads their data itself.

    --protocol repeats a paper's tables on any models, as a file describes them (docs/tasks.md).

    Example: linnet evaluate runs/ted --data stories.txt --context-length 64 --stride 16 --plot positions.png

    Example: linnet evaluate runs/ted runs/pldr --data data/stories --limit-tokens 20000

    Example: linnet evaluate runs/ted runs/pldr --data data/stories --limit-tokens 20000 --report pages/ted-pldr

    Example: linnet evaluate runs/ted --data data/stories --cache-policy bank --cache-policy top_k=16

    Example: linnet evaluate runs/ted runs/pldr --task-file questions.jsonl --train-text data/stories

    Example: linnet evaluate runs/ted --suite abilities --limit 50

    Example: linnet evaluate runs/ted --suite abilities --shots 0,1,2,4,8 --plot shots.png

    Example: linnet evaluate runs/base runs/chat --suite instructions --limit 1 --data data/stories

    Example: linnet evaluate runs/pldr --protocol experiments/pldr-table.yaml --files data/tasks --limit 200

    Example: linnet evaluate runs/pldr --protocol experiments/caches.yaml

    Example: linnet evaluate runs/pldr --data data/stories --calibrate-on empty --limit-tokens 100000 --json

    Example: linnet evaluate runs/pldr --data data/stories --calibration random --seed 1
    """
    models, tasks = _separate_pairs_file(models, tasks)
    set_compiled_steps(compute.compiles)
    page.check(has_rows=len(models) > 1 or protocol is not None)
    if protocol is not None:
        others = [name for name in ctx.params if name not in PROTOCOL_OPTIONS]
        refuse_options(ctx, others, "the protocol defines how models are measured")
        found: Result = _follow_protocol(models, protocol, tasks, page, compute.device)
    elif tasks.suite == ABILITIES:
        found = _measure_abilities(ctx, models, tasks, text, calibrated, compute)
    elif tasks.suite == INSTRUCTIONS:
        found = _measure_instructions(ctx, models, tasks, text, calibrated, compute)
    elif tasks.wanted:
        refuse_options(ctx, ("prompts",), f"goes with `suite` {INSTRUCTIONS}")
        found = _measure_tasks(ctx, models, tasks, calibrated, compute, page)
    else:
        refuse_options(ctx, TASK_OPTIONS, "goes with `suite`, `task_file` or `tasks`")
        found = _measure_text(models, text, calibrated, compute, resamples, page)
    show_result(found, None, as_json)
    _write_plot(found, text.plot)  # after the figures, so that a plot that fails does not lose them


def _separate_pairs_file(models: list[Path], tasks: TaskOptions) -> tuple[list[Path], TaskOptions]:
    """Return the models, and the file of `--suite minimal-pairs FILE`, which stands among them, as `files`.

    `UserError` if it cannot be told from them.
    """
    found = [path for path in models if path.is_file()]
    if tasks.suite != MINIMAL_PAIRS or tasks.files is not None or not found:
        return models, tasks
    others = [path for path in models if path not in found]
    if len(found) > 1 or not others:
        problem = f"{found[-1]}: a file; expected folders of models, and one file of pairs as `files`"
        raise UserError(f"{problem}: linnet evaluate MODEL --suite {MINIMAL_PAIRS} --files {found[-1]}")
    return others, replace(tasks, files=found)


def _follow_protocol(models: list[Path], protocol: Path, tasks: TaskOptions, page: PageOptions, device: str) -> Any:
    from linnet.experiments.protocol import run_protocol
    from linnet.experiments.suite import Suite
    from linnet.interop.contestants import contestants

    suite = Suite.load(protocol)
    suite.measures.check(f"{protocol}: measures")
    found = run_protocol(suite, models, contestants, tasks.place, tasks.limit, device, page.report)
    if page.report is not None:
        page.write(found.side_by_side())
    return found


def _measure_abilities(
    ctx: typer.Context,
    models: Sequence[Path],
    tasks: TaskOptions,
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
) -> Any:
    """Measure the suite, or the abilities of files; with --shots for each number of examples."""
    if len(models) > 1:
        raise UserError(f"{len(models)} models: the suite of abilities measures one; expected one")
    if text.plot is not None and not is_on_command_line(ctx, "shots"):
        raise UserError("goes with `shots` here", field="plot", value=text.plot)
    unused = (*(name for name in TEXT_OPTIONS if name != "plot"), "calibrate_on", "task_file", "tasks", "train_text")
    refuse_options(ctx, unused, "the suite of abilities makes its own questions; leave it out")
    text.check_plot()
    from linnet.evaluation.abilities.suite import ITEMS, evaluate_abilities, evaluate_shots

    options, items = compute.model_options(calibrated, calibrated.seed), tasks.limit or ITEMS
    if tasks.shots is None:
        return evaluate_abilities(models[0], tasks.files or (), items, options)
    return evaluate_shots(models[0], tasks.shot_counts, tasks.files or (), items, options)


def _measure_instructions(
    ctx: typer.Context,
    models: Sequence[Path],
    tasks: TaskOptions,
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
) -> Any:
    """Measure how models follow instructions, and the bits per byte of --data beside it."""
    used = ("data", "limit_tokens") if text.data is not None else ()
    unused = [name for name in TEXT_OPTIONS if name not in used and name != "data"]
    unused += ["calibrate_on", "files", "shots", "task_file", "tasks", "train_text", "report", "also"]
    refuse_options(ctx, unused, "has no effect on the suite of instructions; leave it out")
    from linnet.evaluation.instructions.report import evaluate_instructions

    options = compute.model_options(calibrated, calibrated.seed)
    return evaluate_instructions(models, tasks.prompts or (), tasks.limit, text.data, text.limit_tokens, options)


def _measure_tasks(
    ctx: typer.Context,
    models: list[Path],
    tasks: TaskOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    page: PageOptions,
) -> Any:
    if tasks.suite not in (None, MINIMAL_PAIRS):
        from linnet.evaluation.tasks.suite import suite_spec

        suite_spec(tasks.suite)  # an unknown name before an option that does not go with it
    refuse_options(ctx, TEXT_OPTIONS, "says how a text is measured; leave it out for tasks")
    if calibrated.calibrate_on not in (None, "empty"):
        accepted = "tasks have no training split; use empty"
        raise UserError(accepted, field="calibrate_on", value=calibrated.calibrate_on)
    seed = calibrated.random_seed or 0
    how: dict[str, Any] = {"shots": tasks.shot_count, "limit": tasks.limit, "calibration": calibrated.calibration}
    how |= {"seed": seed, "device": compute.device, "precision": compute.precision}
    if tasks.tasks is not None:
        if page.report is not None:
            raise UserError("--report: has no place for tasks of the harness; expected it without --tasks")
        refuse_options(ctx, OWN_TASK_OPTIONS, "does not go with `tasks`; leave it out")
        from linnet.evaluation.tasks.harness_run import evaluate_harness

        names = [name for part in tasks.tasks.split(",") if (name := part.strip())]
        return evaluate_harness(models, names, task_folder=tasks.place, **how)
    from linnet.evaluation.tasks.measure import evaluate_suite

    how |= {"task_file": tasks.task_file, "train_text": tasks.train_text}
    found = evaluate_suite(models, tasks.suite, tasks.place, **how)
    if page.report is not None:
        from linnet.experiments.report import page_of_tasks

        page.write(page_of_tasks(found, page.questions(), compute.model_options(calibrated, seed)))
    return found


def _measure_text(
    models: list[Path],
    text: TextOptions,
    calibrated: CalibrationOptions,
    compute: ComputeOptions,
    resamples: int | None,
    page: PageOptions,
) -> "TextEvaluation | ModelComparison":
    """Measure one model, or several on the same documents."""
    if text.data is None:
        raise UserError("nothing to measure on; expected one of `data`, `suite`, `task_file` and `tasks`")
    text.check_plot()
    how: dict[str, Any] = {
        "data": text.data,
        "split": text.split,
        "limit_tokens": text.limit_tokens,
        "context_length": text.context_length,
        "calibrate_on": calibrated.calibrate_on,
        "calibration": calibrated.calibration,
        "seed": calibrated.random_seed or 0,
        "device": compute.device,
        "precision": compute.precision,
        "stride": text.stride,
        "tokens_at_once": compute.tokens_at_once,
    }
    found: TextEvaluation | ModelComparison
    if len(models) > 1:
        if text.cache_policies is not None:
            raise UserError(f"--cache-policy {' '.join(text.cache_policies)}: goes with one model")
        from linnet.evaluation.text import evaluate_models

        found = evaluate_models(models, resamples=resamples or RESAMPLES, **how)
        if page.report is not None:
            from linnet.experiments.report import page_of_text

            options = compute.model_options(calibrated, calibrated.random_seed)
            page.write(page_of_text(found, str(text.data), page.questions(), options))
    elif resamples is not None:
        raise UserError(f"--bootstrap {resamples}: goes with several models")
    else:
        from linnet.evaluation.text import evaluate as evaluate_one

        found = evaluate_one(models[0], cache_policies=text.cache_policies, **how)
        can_read_again = text.data.is_dir() or text.data.is_file()  # a pipe can be read only once
        if compute.precision is not None and can_read_again:
            stored = evaluate_one(models[0], **{**how, "precision": None}).bits_per_byte.value
            found = replace(found, stored_bits_per_byte=stored)
    return found


def _write_plot(found: Result, path: Path | None) -> None:
    """Write the only plot of a result into a file, if one is given."""
    if path is not None:
        from linnet.present.plot import Plot

        (picture,) = found.plots()
        assert isinstance(picture.drawing, Plot)
        picture.drawing.write(path)
        note(f"plot: {path}")
