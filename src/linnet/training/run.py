"""Training as callers use it: from arguments to a run folder, in one process or several."""

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.core.checksum import MANIFEST, write_checked_json
from linnet.core.errors import UserError, note
from linnet.core.spec import read_assignment
from linnet.core.system import StopRequest, keep_freed_memory
from linnet.data.conversation_lengths import LongConversations
from linnet.data.preferences import PREFERENCES
from linnet.data.prepare import TEXT
from linnet.data.prepare_conversations import TEMPLATE_FINDINGS
from linnet.data.prepare_prompts import PROMPTS
from linnet.data.token_data import TokenData, read_manifest
from linnet.model.spec import ModelSpec
from linnet.training.callbacks import Callback
from linnet.training.data import check_data, fit_to_data, vocabulary_note
from linnet.training.distributed import join_processes
from linnet.training.machine import threads
from linnet.training.metrics import CONFIG, DIVERGED, finished_summary
from linnet.training.objectives import Objective
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.recipe import merge_fields
from linnet.training.reporter import Reporter
from linnet.training.run_files import (
    KINDS,
    Paths,
    RunFiles,
    given_files,
    mixture_of,
    prepare_run_files,
    start_missing,
    text_of,
)
from linnet.training.run_folder import DivergedError, RunFolder, is_longer
from linnet.training.sections import GrpoSpec, PreferenceSpec
from linnet.training.spec import LONGEST_INTERVALS, RunSpec, has_default_interval, read_run, run_of
from linnet.training.trainer import Trainer


@dataclass(frozen=True)
class RunResult:
    """The folder of a run and the content of `model/run.json`. signal: the number of the signal that stopped it."""

    folder: Path
    summary: dict[str, Any]
    signal: int | None = None

    @property
    def finished(self) -> bool:
        """False if a stop was requested before the last step."""
        return bool(self.summary["finished"])

    @property
    def model(self) -> Path:
        """The model folder, with the weights of the last step made."""
        return RunFolder(self.folder).model


def train(
    out: str | Path,
    *,
    model: str | Path | ModelSpec | Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    training: Mapping[str, Any] | None = None,
    start_from: str | Path | None = None,
    config: str | Path | None = None,
    recipe: str | Path | None = None,
    reporter: Reporter | None = None,
    pairs: str | Path | None = None,
    chat: Paths | None = None,
    preferences: Paths | None = None,
    prompts: Paths | None = None,
    chat_template: str | Path | None = None,
    long_conversations: LongConversations | None = None,
    tokenizer: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train a model into the run folder `out`, or resume where an earlier call with the same settings stopped.

    `train(out)` alone resumes the run that is there; `train(out, training={"steps": n})` extends it.

    model: a preset's name, a YAML file, a model folder (its description only), or a description, which may be a
    mapping (docs/model-description.md). data: a folder made by `prepare`, or a small text: a file, or a mixture.yaml of
    texts, which the run prepares itself with its tokenizer (docs/training.md). training: fields,
    `{"steps": 200, "optimizer": {"lr": 1e-3}}` (docs/training-reference.md).
    start_from: a model folder, or a run's, whose weights the model begins with. config: a YAML file with the sections
    model, data, training, which the other arguments change. recipe: how a published model was trained. reporter:
    receives the progress. Instead of data: pairs, a file of inputs and targets (docs/encoder-decoder.md); chat, one
    file of conversations or several (docs/conversations.md); preferences, the same of pairs of answers
    (docs/preferences.md); prompts, the same of prompts with checkers (docs/grpo.md). chat_template: a Jinja file in
    place of the model's template. long_conversations: those that are longer than the context are an error (refuse, the
    default), left out (drop), or ended behind the last answer that fits (cut). tokenizer: of a text, bytes, char, bpe,
    unigram, or the path of a tokenizer.json. callbacks: your own.

    `.model` of the result is the model folder, `.summary` the content of `run.json`. Ctrl-C and SIGTERM save and
    return. The process keeps the memory that it frees (`core.system`). Raises `UserError` that names the wrong
    field, and `DivergedError` if a loss is not finite.
    """
    keep_freed_memory()
    options = {"chat_template": chat_template, "long_conversations": long_conversations, "tokenizer": tokenizer}
    text = text_of(data, tokenizer)
    kinds = {TEXT: text, "pairs": pairs, "chat": chat, "preferences": preferences, "prompts": prompts}
    files = given_files(kinds, options)
    run = resolve_run_config(out, config, model, data, (), recipe, start_from, training, files)
    with join_processes() as processes:
        if files is not None:
            processes.broadcast_from_rank0(lambda: prepare_run_files(run, files))
        return train_run(run, out, reporter, callbacks=callbacks)


def resolve_run_config(
    out: str | Path,
    config: str | Path | None = None,
    model: str | Path | ModelSpec | Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    assignments: Sequence[str] = (),
    recipe: str | Path | None = None,
    start_from: str | Path | None = None,
    training: Mapping[str, Any] | None = None,
    files: RunFiles | None = None,
) -> RunSpec:
    """The run that the arguments describe: as `read_run`, or the run in `out` if they describe none.

    files: from which `prepare_run_files` makes the data. For a run in `out`, `data` is where its data is now;
    `training` and `assignments` change its fields (more steps extend it, other changes are refused later).
    `UserError` names what is wrong.
    """
    if files is not None:
        if data is not None and files.kind != TEXT:
            names = ", ".join(map(str, files.files))
            raise UserError("cannot be combined with `data`; give one of the two", field=files.kind, value=names)
        data = files.data(out)
    described = any(each is not None for each in (config, model, recipe, start_from))
    if described or not (Path(out) / CONFIG).is_file():
        named = {read_assignment(each)[0].partition(".")[0] for each in assignments} & {"model", "start_from"}
        if not (described or named) and files is not None and KINDS[files.kind].needs_start:
            raise start_missing(files)  # before a model is missed, which would not do
        if _kind_of_data(data, files) == PREFERENCES:  # the recipe `auto` depends on it
            training = {"preference": {}, **(training or {})}
        run = read_run(config, model, data, list(assignments), recipe, start_from, training)
        return _with_section_of_data(run, files)
    known = RunFolder(out).configuration()
    plain, fields = known.to_dict(), dict(training or {})
    assigned = {read_assignment(each)[0] for each in assignments}
    if "recipe" in fields or "training.recipe" in assigned:
        raise UserError("a run that has begun keeps its fields", field="training.recipe", accepted="another `out`")
    if "tokens" in fields or "training.tokens" in assigned:
        plain["training"]["steps"] = None  # the other way to give the length
    for section in LONGEST_INTERVALS:
        if has_default_interval(known, section):
            plain["training"][section]["every"] = None  # fits another number of steps, too
    plain["training"] = merge_fields(plain["training"], fields)
    if data is not None:
        plain["data"] = str(data)
    return run_of(plain, list(assignments), str(Path(out) / CONFIG))


def _with_section_of_data(run: RunSpec, files: RunFiles | None) -> RunSpec:
    """The run with the section of `training` that its data need, unless it has one.

    That is the default objective for pairs of answers, or for prompts, or the mixture that names its texts. files: from
    which the data will be made; None: the data folder says what it holds.
    """
    kind = _kind_of_data(run.data, files)
    needed = {PREFERENCES: ("preference", PreferenceSpec()), PROMPTS: ("grpo", GrpoSpec())}
    section, default = needed.get(kind or "", ("mixture", None if files is None else mixture_of(files)))
    if default is None or getattr(run.training, section) is not None:
        return run
    return run.model_copy(update={"training": run.training.model_copy(update={section: default})})


def _kind_of_data(data: str | Path | None, files: RunFiles | None) -> str | None:
    """What files hold, or a data folder that is there."""
    if files is not None:
        return files.kind
    return read_manifest(Path(data)).layout if data is not None and (Path(data) / MANIFEST).is_file() else None


def train_run(
    run: RunSpec,
    out: str | Path,
    reporter: Reporter | None = None,
    objective: Objective = next_token_loss,
    command: str | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Train a described run into the run folder `out`, resuming where an earlier call with the same `run` stopped.

    A `run` with more steps extends it (`schedule.StepBudget`), also a finished one; a finished run is otherwise left as
    it is. `command` is stored in `run.json`. Ctrl-C and SIGTERM save and return (`finished` is False). Raises
    `UserError` if nothing could be trained, and `DivergedError`, which the folder records until the run is tried again.

    Each of several processes that torchrun started calls it with the same arguments; all return the same.
    """
    folder = RunFolder(out)
    with join_processes() as processes:
        reporter = reporter if reporter and processes.is_rank0 else Reporter()
        data = TokenData.open(run.data)
        requested, run = run, folder.with_known_lengths(run, fit_to_data(run, data))
        processes.broadcast_from_rank0(lambda: folder.check(run))
        summary = processes.broadcast_from_rank0(lambda: finished_summary(folder.path))
        if summary is not None and not is_longer(run, folder.configuration()):
            processes.broadcast_from_rank0(folder.tidy)
            check_data(summary.get("data", {}).get("manifest_sha256"), data, folder.path)
            reporter.note(f"{folder.path}: finished at step {summary['step']}, nothing to do")
            return RunResult(folder.path, summary)
        if processes.is_rank0:
            for line in data.manifest.settings.get(TEMPLATE_FINDINGS, ()):
                note(line)
        lock = folder.locked() if processes.is_rank0 else nullcontext()
        with StopRequest() as stop, lock, threads(run.training.threads):
            processes.broadcast_from_rank0(lambda: folder.check(run))  # again, now that nobody else changes it
            trainer = Trainer(run, data, folder, objective, reporter, stop, processes, callbacks)
            if run.model.vocab_size != requested.model.vocab_size:
                reporter.note(vocabulary_note(requested, run))
            processes.broadcast_from_rank0(lambda: folder.start(run))
            if trainer.precision.measured and processes.broadcast_from_rank0(folder.precision) is None:
                reporter.note(f"precision {trainer.precision.name}: {trainer.precision.reason}")
                if processes.is_rank0:
                    folder.write_precision(trainer.precision)
            with closing(trainer):
                try:
                    trainer.resume()
                    trainer.run_steps()
                except DivergedError as error:
                    if processes.is_rank0:
                        write_checked_json(folder.path / DIVERGED, {"step": error.step, "reason": error.reason})
                    raise
            return RunResult(folder.path, trainer.finish(command), stop.signal)
