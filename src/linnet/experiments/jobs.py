"""One job of a suite: a run is trained with a seed (or resumed) and measured; its rows lie in its folder."""

import platform
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt

from linnet import __version__
from linnet.core.checksum import MANIFEST, file_digest, read_checked_json
from linnet.core.spec import Spec
from linnet.data.loader import validation_batches
from linnet.data.token_data import TokenData
from linnet.evaluation.abilities.measure import TOKENS_AT_ONCE, final_answer_counts, final_answer_figures, score
from linnet.evaluation.models import model_on_data
from linnet.evaluation.name_recall import measure_name_recall
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.evaluation.text import evaluate_folder
from linnet.experiments.measures import MemoryFigures, describe_machine
from linnet.experiments.results import (
    ABILITY,
    LIKELIHOOD,
    NAME_RECALL,
    TRAINING,
    ResultRow,
    hash_of,
    inputs_of,
    read_rows,
    validation_curve,
    write_rows,
)
from linnet.experiments.suite import RESULTS, Suite, TextSpec
from linnet.model.cost import model_cost
from linnet.ops.blocked_attention import HAS_TILES
from linnet.stories import names_of
from linnet.training.data import fit_to_data
from linnet.training.metrics import DIVERGED, finished_summary
from linnet.training.reporter import Reporter, terminal_reporter
from linnet.training.run import RunResult, train_run
from linnet.training.run_folder import DivergedError, RunFolder
from linnet.training.runs import FinishedRun, read_run_folder
from linnet.training.spec import RunSpec

Log = Callable[[str], None]

Watching = Callable[[str], AbstractContextManager[Reporter]]
"""Makes the display of one training from its title."""


class ExperimentStopped(Exception):  # noqa: N818 - a user asked for it
    """A training was asked to stop (by `signal`) and saved its state; the trainings after it did not begin."""

    def __init__(self, message: str, signal: int | None) -> None:
        super().__init__(message)
        self.signal = signal


class Diverged(Spec):
    """Content of `diverged.json`: the step at which training stopped, and what was measured there."""

    step: PositiveInt
    reason: str

    def __str__(self) -> str:
        return f"diverged at step {self.step}: {self.reason}"

    @classmethod
    def read(cls, folder: Path) -> "Diverged | None":
        """The record in a run folder; None for a run that finished, or never diverged."""
        path = folder / DIVERGED
        if not path.is_file() or finished_summary(folder) is not None:
            return None
        return cls.parse(read_checked_json(path), str(path))


@dataclass(frozen=True)
class Planned:
    """A training to carry out: its `title` for people, its folder, and its configuration."""

    title: str
    folder: Path
    run: RunSpec


@dataclass(frozen=True)
class Runner:
    """Carries out trainings one after another; `log` gets messages, `command` is recorded with each training."""

    log: Log
    command: str | None = None
    watching: Watching = terminal_reporter

    def train(self, planned: Planned) -> RunResult:
        """Train to the end, from where an earlier call stopped; a finished run is left as it is.

        Raises `UserError`, `DivergedError` if it diverges, `ExperimentStopped` if it was asked to stop.
        """
        with self.watching(planned.title) as watch:
            result = train_run(planned.run, planned.folder, watch, command=self.command)
        if not result.finished or result.signal is not None:  # the signal may come while the last step is saved
            message = f"stopped at step {result.summary['step']} of {planned.run.steps} of {planned.title}"
            raise ExperimentStopped(message, result.signal)
        return result

    def attempt(self, planned: Planned) -> RunResult | Diverged:
        """`train` for one run of several: a run that diverged earlier is not tried again."""
        before = Diverged.read(planned.folder)
        if before is not None:
            RunFolder(planned.folder).check(fit_to_data(planned.run, TokenData.open(planned.run.data)))
            again = f"not trained again (remove {planned.folder} to train it again)"
            self.log(f"{planned.title}: {before}; {again}")
            return before
        try:
            return self.train(planned)
        except DivergedError as error:
            diverged = Diverged(step=error.step, reason=error.reason)
        self.log(f"{planned.title}: {diverged}")
        return diverged


class Job(Spec):
    """A run of the suite with a seed. steps: in place of the suite's, if they follow from measured times."""

    run: str
    seed: int
    steps: int | None = None


def job_title(suite: Suite, job: Job) -> str:
    """The name of a job for people."""
    return job.run if suite.flat else f"{job.run}, seed {job.seed}"


def job_spec(suite: Suite, out: Path, job: Job, calibration: Path | None = None) -> RunSpec:
    """The training of a job."""
    run = suite.run(job.run)
    if job.steps is not None:
        run = run.model_copy(update={"set": {**run.set, "training.steps": job.steps, "training.tokens": None}})
    return suite.run_spec(run, job.seed, suite.data_folders(out)[run.part - 1], calibration)


def perform(
    suite: Suite, out: Path, job: Job, runner: Runner, text: str | None, calibration: Path | None
) -> list[ResultRow]:
    """Train the job and measure the result; rows that are up to date are taken from its folder.

    text: the hash of the text. calibration: the calibration file that the run takes from another run.
    """
    run = suite.run(job.run)
    folder, spec = suite.run_folder(out, run, job.seed), job_spec(suite, out, job, calibration)
    inputs = inputs_of(job_spec(suite, out, job.model_copy(update={"steps": None})), text)
    result = runner.attempt(Planned(job_title(suite, job), folder, spec))
    about: dict[str, Any] = {"suite": suite.name, "run": job.run, "seed": job.seed, "origin": origin()}
    if isinstance(result, Diverged):
        curve = [(point.step, point.bits_per_byte) for point in validation_curve(RunFolder(folder).metrics.read())]
        values = {"step": result.step, "reason": result.reason, "curve": curve}
        rows = [ResultRow(**about, measure=TRAINING, status="diverged", values=values, inputs=inputs)]
    else:
        known = {row.measure: row for row in read_rows(folder / RESULTS)}
        trained = read_run_folder(folder)
        manifest = RunFolder(trained.path).model / MANIFEST
        inputs |= {"weights": file_digest(manifest) if manifest.is_file() else hash_of(trained.summary)}
        settings = {TRAINING: None} | _measure_settings(suite, run.part)
        rows = []
        for measure, setting in settings.items():
            own = inputs | ({} if setting is None else {"measure": hash_of(setting)})
            row = known.get(measure)
            if row is None or row.inputs != own or row.suite != suite.name:
                values = _measure(measure, suite, run.part, trained, spec.data)
                row = ResultRow(**about, measure=measure, values=values, inputs=own)
            rows.append(row)
    write_rows(folder / RESULTS, rows)
    return rows


def is_complete(suite: Suite, out: Path, job: Job) -> bool:
    """True if the folder of the job holds the rows of a training that finished or diverged."""
    run = suite.run(job.run)
    folder = suite.run_folder(out, run, job.seed)
    rows = {row.measure: row for row in read_rows(folder / RESULTS)}
    if TRAINING not in rows:
        return False
    if rows[TRAINING].status == "diverged":
        return Diverged.read(folder) is not None
    return {TRAINING, *_measure_settings(suite, run.part)} <= rows.keys()


def _measure_settings(suite: Suite, part: int) -> dict[str, Any]:
    """The measures of each training, with what their results depend on."""
    settings: dict[str, Any] = {LIKELIHOOD: "full"} if suite.measures.likelihood == "full" else {}
    if suite.text is not None and suite.text.ability is not None:
        settings[ABILITY] = suite.text.ability_of(part).model_dump(mode="json")
    if suite.measures.name_recall is not None:
        settings[NAME_RECALL] = suite.measures.name_recall.model_dump(mode="json")
    return settings


def _measure(measure: str, suite: Suite, part: int, trained: FinishedRun, data: Path) -> dict[str, Any]:
    if measure == TRAINING:
        return training_values(trained)
    if measure == LIKELIHOOD:
        return evaluate_folder(trained.path, data).to_dict()
    text = suite.text
    assert text is not None, "the suite was checked"
    if measure == ABILITY:
        return ability_figures(text, part, trained.path, data)
    assert suite.measures.name_recall is not None
    documents = suite.measures.name_recall.documents
    found = measure_name_recall(model_on_data(trained.path, data), names_of(text.names), documents)
    return {"name_recall": {"right": found.right, "mentions": found.mentions, "share": found.share}}


def training_values(trained: FinishedRun) -> dict[str, Any]:
    """What a finished run recorded, without reading its weights."""
    summary = trained.summary
    figures = {name: summary.get(name) for name in ("parameters", "tokens", "steps", "seconds", "tokens_per_s")}
    return {
        **figures,
        "training_flops": trained.training_flops,
        "precision": summary.get("machine", {}).get("precision"),
        "validation": {name: value for name, value in summary["validation"].items() if name not in ("step", "seed")},
        "curve": [(point.step, point.bits_per_byte) for point in validation_curve(trained.lines)],
        "memory": MemoryFigures.from_spec(trained.spec.model).to_dict(),
        "data": trained.data,
        "tokenizer": trained.tokenizer,
    }


def ability_figures(text: TextSpec, part: int, model: Path, data: Path) -> dict[str, Any]:
    """Accuracy of whole answers, symbols and final answers against chance, and bytes of state.

    The state is that of one stream in float32 with room for the longest held-out row.
    """
    found, ability = model_on_data(model, data), text.ability_of(part)
    rows = found.data.spans(found.sequence, found.context_length)
    longest = int(rows.lengths_N.max())
    batches = validation_batches(found.sequence, rows, max(1, TOKENS_AT_ONCE // longest))
    whole = score(found.decoder, batches, found.calibration())
    questions = list(ability.items(len(rows), 0, "validation"))
    streams = StateFactory(found.decoder, found.calibration())
    final = final_answer_counts(streams, found.data.tokenizer, ability, questions, whole)
    measured = whole.to_dict(ability.chance) | final_answer_figures(ability, final)
    return {"ability": measured, "state_bytes": model_cost(found.decoder.spec).state_bytes(longest)}


@cache
def origin() -> dict[str, Any]:
    """Commit (of a checkout), day and machine, which are kept with each row."""
    package = Path(__file__).parent
    git = ["git", "-C", str(package), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    return {
        "linnet": __version__,
        **({"commit": commit} if commit else {}),
        "date": time.strftime("%Y-%m-%d"),
        "processor": describe_machine(torch.device("cpu"), "float32")["processor"],
        "amx": HAS_TILES,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
