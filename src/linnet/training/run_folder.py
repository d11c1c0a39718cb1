"""The run folder: what a run leaves behind, and what it needs to be resumed.

`config.yaml` (resolved), `files.json` (hashes of files that the model began with), `extensions.json` (extensions to
more steps), `precision.json` (if it was measured), `reference.safetensors` (of a run on preferences: log-probabilities
by the model that it starts from), `diverged.json` (if the run diverged), `pairs/`, `chat/`, `preferences/` or
`prompts/` (a data folder, if the run was given such files), `metrics.jsonl`, `curves.png`, `checkpoints/`, `adapter/`
(of a run with low-rank parts: these alone), and `model/`: a model folder with the weights of the last step.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from linnet.core.atomic import file_lock, is_leftover, refuse_link, remove_leftovers
from linnet.core.checksum import (
    checksum_of_text,
    read_checked_json,
    text_with_checksum,
    write_checked_json,
)
from linnet.core.errors import UserError, note, one_line
from linnet.core.files import read_text, sha256_of, write_text
from linnet.core.migration import EXTENSIONS as EXTENSIONS_0_1
from linnet.core.migration import upgrade_hashes
from linnet.core.spec import flatten
from linnet.model.folder import MODEL
from linnet.training import metrics
from linnet.training.checkpoint import checkpoint_path, checkpoint_steps
from linnet.training.initialization import (
    CALIBRATION,
    EMBEDDING_FROM,
    REPLAY,
    REWARD,
    START_FROM,
    TEACHER,
    initial_files,
)
from linnet.training.machine import Precision
from linnet.training.metrics import (
    ADAPTER_FOLDER,
    CHECKPOINTS,
    CONFIG,
    CURVES,
    DAMAGED,
    DIVERGED,
    EXTENSIONS,
    FILES,
    LOCK,
    METRICS,
    PRECISION,
    REFERENCE_LOG_PROBABILITIES,
    Metrics,
    plain_configuration,
)
from linnet.training.run_files import KINDS
from linnet.training.schedule import Extension, StepBudget, read_budget
from linnet.training.spec import LONGEST_INTERVALS, RunSpec, has_default_interval

STEPS = "training.steps"

PARALLEL = "training.parallel."
"""Prefix of the fields that do not change the result of a run, so that it may be resumed with others."""


class DivergedError(ArithmeticError):
    """A loss, gradient or weight is not finite. The message has step, learning rate, gradient norm, last checkpoint.

    `step` is where training stopped, `reason` what was measured there.
    """

    def __init__(self, step: int, reason: str, last_good: Path | None) -> None:
        checkpoint = "none yet" if last_good is None else last_good
        super().__init__(f"not finite, stopped at step {step}: {reason}; last good checkpoint: {checkpoint}")
        self.step, self.reason = step, reason


def diverged_error(checkpoints: Path, step: int, reason: str, good_until: int) -> DivergedError:
    """The error of a run; its last good checkpoint is the newest one of at most step `good_until`."""
    good = [step for step in checkpoint_steps(checkpoints) if step <= good_until]
    return DivergedError(step, reason, checkpoint_path(checkpoints, good[-1]) if good else None)


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.model = self.path / MODEL
        self.metrics = Metrics(self.path / METRICS)

    def check(self, run: RunSpec) -> None:
        """`UserError` unless the folder is new, empty, or that of the same resolved run, which may have more steps now.

        The data may have moved. Files that the run began with are compared by content, whatever their names.
        """
        names = (CONFIG, FILES, EXTENSIONS, EXTENSIONS_0_1, PRECISION, DIVERGED, METRICS, DAMAGED, CURVES)
        for name in (*names, REFERENCE_LOG_PROBABILITIES, ADAPTER_FOLDER, CHECKPOINTS, MODEL):
            refuse_link(self.path / name)
        if not (self.path / CONFIG).is_file():
            if self.path.exists() and (not self.path.is_dir() or not all(map(_is_own, self.path.iterdir()))):
                problem = "exists and is not the folder of a run; choose another `out`"
                raise UserError(problem, field="out", value=self.path)
            return
        known = self.configuration()
        before, now = flatten(known.to_dict()), flatten(run.to_dict())
        if is_longer(run, known):
            before[STEPS] = now[STEPS]
            for name in LONGEST_INTERVALS:
                if has_default_interval(known, name) and has_default_interval(run, name):
                    before[f"training.{name}.every"] = now[f"training.{name}.every"]
        hashes = self.hashes()
        named = (now[CALIBRATION], *map(now.get, (START_FROM, EMBEDDING_FROM, TEACHER, REWARD, REPLAY)))
        for field, file in initial_files(*named).items():
            # If a file is gone, its name decides: a run that has begun does not need its files any more.
            found = sha256_of(file) if field in hashes else None
            if found is not None and hashes[field] == found:
                now[field] = before[field]
            elif found is not None:
                before[field] = f"{before[field]} (SHA-256 {hashes[field][:12]})"
                now[field] = f"{now[field]} (SHA-256 {found[:12]})"
        for field in dict.fromkeys([*before, *now]):
            old, new = before.get(field), now.get(field)
            if field != "data" and not field.startswith(PARALLEL) and old != new:
                held = f"without `{field}`, not with" if old is None else f"with {field}: {old!r}, not"
                raise UserError(
                    f"{self.path}: holds a run {held} {'without' if new is None else repr(new)}; choose another `out`,"
                    " or the same configuration to resume"
                )

    def configuration(self) -> RunSpec:
        """The run in `config.yaml`; `UserError` if it is missing, wrong, or was changed."""
        return _parse_configuration(read_text(self.path / CONFIG), str(self.path / CONFIG))

    def configuration_checksum(self) -> str | None:
        """The checksum in the last line of `config.yaml`; None if it was edited."""
        return checksum_of_text(read_text(self.path / CONFIG))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; `UserError` with the other's process id if it is held.

        A folder that was made here and is still empty is removed: a refused run leaves none.
        """
        made = list(takewhile(lambda folder: not folder.exists(), (self.path, *self.path.parents)))
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(self.path / LOCK, f"{self.path}: another process (id {{}}) trains here"):
                yield
        finally:
            with suppress(OSError):  # from the first that is not empty
                for folder in made:
                    folder.rmdir()

    def start(self, run: RunSpec) -> None:
        """Remove leftovers of a killed process and the record of divergence; write the configuration of a new run."""
        for folder in (self.path, self.checkpoints):
            remove_leftovers(folder)
        (self.path / DIVERGED).unlink(missing_ok=True)
        if not (self.path / CONFIG).is_file():
            self._write_configuration(run)
        distillation, grpo = run.training.distillation, run.training.grpo
        files = initial_files(
            run.model.initialization.calibration,
            run.start_from,
            run.training.embedding_from,
            None if distillation is None else distillation.teacher,
            None if grpo is None else grpo.reward,
            None if run.training.replay is None else run.training.replay.data,
        )
        if files and not (self.path / FILES).is_file() and not checkpoint_steps(self.checkpoints):
            write_checked_json(self.path / FILES, {field: sha256_of(file) for field, file in files.items()})

    def precision(self) -> Precision | None:
        """The precision that was measured for the run; None if the run has not begun, or its configuration names one.

        A run that began before precision was measured continues in float32.
        """
        path = self.path / PRECISION
        if path.is_file():
            return Precision.parse(read_checked_json(path), str(path))
        if not checkpoint_steps(self.checkpoints):
            return None
        return Precision(name="float32", reason="the run began before precision was measured")

    def write_precision(self, precision: Precision) -> None:
        """Store the precision that the run begins with, so that it continues with it on any machine."""
        write_checked_json(self.path / PRECISION, precision.model_dump())

    def with_known_lengths(self, requested: RunSpec, run: RunSpec) -> RunSpec:
        """The resolved `run`, with the intervals of the one in the folder; if it extends that, with warm-up and growth.

        Intervals that are the default for the number of steps are the default for the new number. Fields that
        `requested` (the same before it was resolved) gives in steps are used as they are.
        """
        if not (self.path / CONFIG).is_file():
            return run
        known = self.configuration()
        changed: dict[str, Any] = {}
        for name in LONGEST_INTERVALS:
            every = getattr(known.training, name).every
            if getattr(requested.training, name).every is None and not has_default_interval(known, name):
                changed[name] = getattr(run.training, name).model_copy(update={"every": every})
        if not (is_longer(run, known) or self._extensions().is_file()):
            return run.model_copy(update={"training": run.training.model_copy(update=changed)})
        if requested.training.schedule.warmup_steps is None:
            warmup_steps = known.training.schedule.warmup_steps
            changed["schedule"] = run.training.schedule.model_copy(update={"warmup_steps": warmup_steps})
        growth = requested.training.growth
        if any(end < 1 for end, _ in (*growth.context_length, *growth.batch_size)):
            changed["growth"] = known.training.growth
        return run.model_copy(update={"training": run.training.model_copy(update=changed)})

    def step_budget(self, run: RunSpec, step: int) -> StepBudget:
        """How many steps the run has and had; if `run` extends it after `step`, that is stored."""
        known, steps = self.configuration(), run.training.steps
        assert known.training.steps is not None and steps is not None, "an unresolved run"
        budget = read_budget(self._extensions(), known.training.steps)
        if not is_longer(run, known):
            return budget
        intervals = {
            name: (getattr(known.training, name).every, getattr(run.training, name).every) for name in LONGEST_INTERVALS
        }
        changed = {name: before for name, (before, now) in intervals.items() if before != now}
        extension = Extension(step=step, before=budget.steps, steps=steps, every=changed)
        longer = StepBudget(steps, (*budget.history, extension))
        write_checked_json(self.path / EXTENSIONS, {"version": 1, "extensions": longer.to_list()})
        self._write_configuration(run)
        return longer

    def _extensions(self) -> Path:
        """The file of extensions; until a run of linnet 0.1 is extended again, the one that linnet 0.1 wrote."""
        old = self.path / EXTENSIONS_0_1
        return old if old.is_file() and not (self.path / EXTENSIONS).is_file() else self.path / EXTENSIONS

    def _write_configuration(self, run: RunSpec) -> None:
        text = yaml.safe_dump(run.to_dict(), sort_keys=False, allow_unicode=True)
        write_text(self.path / CONFIG, text_with_checksum(text))

    def tidy(self) -> None:
        """Remove leftovers of a killed process from a finished run, unless another process works there."""
        folders = [folder for folder in (self.path, self.checkpoints) if folder.is_dir()]
        if any(_is_own(path) for folder in folders for path in folder.iterdir()):
            with suppress(OSError, UserError), self.locked():
                for folder in folders:
                    remove_leftovers(folder)

    def hashes(self) -> dict[str, str]:
        """By field, the SHA-256 of the files that the run began with."""
        path = self.path / FILES
        known = upgrade_hashes(read_checked_json(path)) if path.is_file() else {}
        if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
            raise UserError(f"{path}: expected a hash for each file that the run began with")
        return known

    def expected_steps(self, step: int) -> set[int]:
        """The steps up to this one that must have a line in `metrics.jsonl`."""
        training = self.configuration().training
        assert training.steps is not None, "an unresolved run"
        budget, due = read_budget(self._extensions(), training.steps), set[int]()
        for name, longest in LONGEST_INTERVALS.items():
            # A configuration that leaves it out is one of an earlier version, of which this was the default.
            due |= budget.due(name, step, getattr(training, name).every or longest)
        return due

    def lines_to_end(self, step: int) -> list[dict[str, Any]]:
        """The lines of a run that ended at `step`; a note names those that are missing."""
        return self.metrics.read({*self.expected_steps(step), step})

    def draw_curves(self, title: str, causal: bool) -> None:
        """Draw `curves.png` from the metrics, from two lines of figures on: one point is no curve.

        A note if that fails, because a picture must not end a run.
        """
        lines = [line for line in self.metrics.read() if {"bits_per_byte", "lr", "gradient_norm"} <= line.keys()]
        if len(lines) < 2:
            return
        try:
            metrics.draw_curves(lines, self.path / CURVES, title, causal)
        except Exception as error:
            note(f"{self.path / CURVES}: not drawn: {one_line(f'{type(error).__name__}: {error}')}")


@lru_cache(maxsize=1)
def _parse_configuration(text: str, origin: str) -> RunSpec:
    """The run in the text of a `config.yaml`, which a run reads at several of its stages."""
    return RunSpec.parse(plain_configuration(text, origin), origin)


def is_longer(run: RunSpec, known: RunSpec) -> bool:
    """True if a resolved run has more steps than the one that its folder holds."""
    return (run.training.steps or 0) > (known.training.steps or 0)


def _is_own(path: Path) -> bool:
    """True for what linnet makes before a run has its configuration."""
    return path.name in (LOCK, *KINDS) or is_leftover(path)
