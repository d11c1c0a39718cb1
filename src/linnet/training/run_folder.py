"""The run folder: what a run leaves behind, and what makes it go on.

`config.yaml` (resolved), `files.json` (hashes of the files that the model began with, where there are any),
`prolonged.json` (where it was given more steps), `precision.json` (where that was measured), `diverged.json` (where it
broke down), `pairs/` (a data folder, where it was given a file of pairs),
`metrics.jsonl`, `curves.png`, `checkpoints/`, and `model/`: a model folder with the weights of the last step.
"""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from linnet.core.atomic import errors_naming, file_lock, is_leftover, refuse_link, remove_leftovers
from linnet.core.checksum import (
    check_files,
    checksum_of_text,
    read_checked_json,
    text_with_checksum,
    text_without_checksum,
    with_checksum,
    without_checksum,
    write_checked_json,
)
from linnet.core.errors import UserError, note
from linnet.core.files import open_file, read_json, read_text, sha256_of, write_text
from linnet.core.spec import first_schema_error, parse_yaml
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import MODEL, RUN, write_model
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.divergence import DivergedError
from linnet.training.initialization import CALIBRATION, EMBEDDING_FROM, START_FROM, initial_files, leaves
from linnet.training.precision import Precision
from linnet.training.prolonged import (
    PROLONGED,
    Extension,
    StepBudget,
    is_longer,
    read_lengths,
    with_its_warm_up,
    write_lengths,
)
from linnet.training.record.figures import Line, Summary
from linnet.training.spec import RunSpec

CONFIG, FILES, METRICS, CURVES, CHECKPOINTS, LOCK = (
    "config.yaml", "files.json", "metrics.jsonl", "curves.png", "checkpoints", ".lock",
)  # fmt: skip

PRECISION = "precision.json"

PAIRS = "pairs"
"""The data folder of a run that was given a file of pairs."""

STEPS = "training.steps"

HOW = "training.parallel."
"""Where the fields begin that change how a run is computed, and not what comes out: it may go on with others."""

DAMAGED = "metrics.damaged.jsonl"
"""Lines of `metrics.jsonl` that could not be read when the run went on."""

TAIL_BYTES = 1 << 16

DIVERGED = "diverged.json"
"""In the folder of a run that diverged: where and why. Who asks for that run itself tries it again; a sweep or a
comparison, of which it is a part, does not."""


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / CHECKPOINTS
        self.model = self.path / MODEL
        self.metrics = Metrics(self.path / METRICS)

    def check(self, run: RunSpec) -> None:
        """`UserError` unless the folder is new, empty, or that of the same resolved run, which may have become longer.

        Its data may have moved; a file that it began with is its content, however it is named.
        """
        for name in (CONFIG, FILES, PROLONGED, PRECISION, DIVERGED, METRICS, DAMAGED, CURVES, CHECKPOINTS, MODEL):
            refuse_link(self.path / name)
        if (self.path / CONFIG).is_file():
            known = self.configuration()
            before, now = leaves(known.to_dict()), leaves(run.to_dict())
            if is_longer(run, known):
                before[STEPS] = now[STEPS]
            self._compare_by_content(before, now)
            _check_same(before, now, self.path)
        elif self.path.exists() and (not self.path.is_dir() or not all(map(_is_own, self.path.iterdir()))):
            raise UserError("exists and is not the folder of a run; choose another `out`", field="out", value=self.path)

    def configuration(self) -> RunSpec:
        """What `config.yaml` says; `UserError` where it is missing, wrong, or not what was written."""
        config = self.path / CONFIG
        text = text_without_checksum(read_text(config), str(config))
        return RunSpec.parse(parse_yaml(text, str(config)), str(config))

    def finished(self, also: Sequence[str] = ()) -> dict[str, Any] | None:
        """What `model/run.json` says, if the run came to its end; `UserError` where it, or `also` files of the model,
        are not what was written.
        """
        if not (self.model / RUN).is_file():
            return None
        check_files(self.model, (RUN, *also))
        summary: dict[str, Any] = read_json(self.model / RUN)
        if not isinstance(summary, dict) or summary.get("finished") is not True:
            return None
        if wrong := first_schema_error(summary, Summary):
            raise UserError(f"{self.model / RUN}: {wrong}")
        if (self.path / PROLONGED).is_file() and summary.get("steps") != self.configuration().training.steps:
            return None
        self._check_configuration(summary.get("configuration"))
        return summary

    def configuration_checksum(self) -> str | None:
        """The hash that ends `config.yaml`; None where there is none: it was edited, or is of an earlier linnet."""
        return checksum_of_text(read_text(self.path / CONFIG))

    def _check_configuration(self, checksum: str | None) -> None:
        """`UserError` unless a finished run has the configuration with which it was trained."""
        found = self.configuration_checksum() if checksum else None
        if found is not None and found != checksum:
            raise UserError(f"{self.path / CONFIG}: not the configuration of the run that {self.model / RUN} tells of")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process alone; `UserError` with the other's process id where it is held.

        Where it was made for that, and nothing came into it, it is gone afterwards: a run that is refused leaves none.
        """
        made = list(takewhile(lambda folder: not folder.exists(), (self.path, *self.path.parents)))
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(self.path / LOCK, f"{self.path}: another process (id {{}}) trains here"):
                yield
        finally:
            with suppress(OSError):  # the first that is not empty
                for folder in made:
                    folder.rmdir()

    def start(self, run: RunSpec) -> None:
        """Clear what a killed process left half-written, and keep the configuration of a new run.

        That an earlier try diverged is no longer so.
        """
        self._remove_left()
        (self.path / DIVERGED).unlink(missing_ok=True)
        if not (self.path / CONFIG).is_file():
            self._write_configuration(run)
        files = initial_files(run.model.initialization.calibration, run.start_from, run.training.embedding_from)
        if files and not (self.path / FILES).is_file() and not checkpoint_steps(self.checkpoints):
            write_checked_json(self.path / FILES, {field: sha256_of(file) for field, file in files.items()})

    def precision(self) -> Precision | None:
        """What was chosen for a run that leaves it to the machine; None for one that has not begun, or says it itself.

        A run that began before there was a choice goes on in float32.
        """
        path = self.path / PRECISION
        if path.is_file():
            return Precision.parse(read_checked_json(path), str(path))
        return Precision(name="float32", reason="as it began") if checkpoint_steps(self.checkpoints) else None

    def keep_precision(self, precision: Precision) -> None:
        """Let the run go on in the precision that it begins with, on whatever machine."""
        write_checked_json(self.path / PRECISION, precision.model_dump())

    def keep_diverged(self, error: DivergedError) -> None:
        """Keep where a run broke down, and by what, until it is tried again."""
        write_checked_json(self.path / DIVERGED, {"step": error.step, "reason": error.reason})

    def as_long_as(self, asked: RunSpec, run: RunSpec) -> RunSpec:
        """The resolved `run` that was asked for; where the one in the folder is prolonged, or was, with its warm-up."""
        if not (self.path / CONFIG).is_file():
            return run
        known = self.configuration()
        was_prolonged = (self.path / PROLONGED).is_file()
        return with_its_warm_up(asked, run, known) if was_prolonged or is_longer(run, known) else run

    def prolongs(self, run: RunSpec) -> bool:
        """Whether the resolved `run` has more steps than the one in the folder."""
        return is_longer(run, self.configuration())

    def lengths(self, run: RunSpec, step: int) -> StepBudget:
        """How many steps the run has and had; where it is prolonged after `step`, that is kept."""
        known, steps = self.configuration(), run.training.steps
        assert known.training.steps is not None and steps is not None, "an unresolved run"
        found = read_lengths(self.path / PROLONGED, known.training.steps)
        if not is_longer(run, known):
            return found
        latest = Extension(step=step, before=found.steps, steps=steps)
        longer = StepBudget(steps, (*found.history, latest))
        write_lengths(self.path / PROLONGED, longer)
        self._write_configuration(run)
        return longer

    def _write_configuration(self, run: RunSpec) -> None:
        text = yaml.safe_dump(run.to_dict(), sort_keys=False, allow_unicode=True)
        write_text(self.path / CONFIG, text_with_checksum(text))

    def tidy(self) -> None:
        """Clear what a killed process left in a run that came to its end, unless another is at work there."""
        folders = [folder for folder in (self.path, self.checkpoints) if folder.is_dir()]
        if any(_is_own(path) for folder in folders for path in folder.iterdir()):
            with suppress(OSError, UserError), self.locked():
                self._remove_left()

    def _remove_left(self) -> None:
        for folder in (self.path, self.checkpoints):
            remove_leftovers(folder)

    def hashes(self) -> dict[str, str]:
        """By field, the SHA-256 of the files that the run began with."""
        path = self.path / FILES
        known = read_checked_json(path) if path.is_file() else {}
        if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
            raise UserError(f"{path}: expected a hash for each file that the run began with")
        return known

    def _compare_by_content(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Let the same file under another name be the same value; tell different files of one name apart.

        A run that has begun needs its files no more. Where one is gone the name alone decides.
        """
        known = self.hashes()
        for field, file in initial_files(now[CALIBRATION], now[START_FROM], now[EMBEDDING_FROM]).items():
            if field not in known:
                continue
            found = sha256_of(file)
            if known[field] == found:
                now[field] = before[field]
            else:
                before[field] = f"{before[field]} (SHA-256 {known[field][:12]})"
                now[field] = f"{now[field]} (SHA-256 {found[:12]})"

    def write_model(self, decoder: Decoder, tokenizer: Tokenizer, summary: dict[str, Any]) -> None:
        """Write `model/`: description, weights, tokenizer, and how it was made."""
        write_model(self.model, decoder, tokenizer, summary)

    def due(self, step: int) -> set[int]:
        """The steps up to this one of which `metrics.jsonl` has a line in any case."""
        training = self.configuration().training
        return {due for every in (training.log.every, training.evaluate.every) for due in range(every, step + 1, every)}

    def lines_to_end(self, step: int) -> list[dict[str, Any]]:
        """The lines of a run that ended at `step`; a note names those that are missing."""
        return self.metrics.read({*self.due(step), step})

    def draw_curves(self, title: str, causal: bool) -> None:
        """Draw `curves.png` from the metrics."""
        from linnet.training.record.curves import draw_curves

        lines = [line for line in self.metrics.read() if {"bits_per_byte", "lr", "gradient_norm"} <= line.keys()]
        if lines:
            draw_curves(lines, self.path / CURVES, title, causal)


class Metrics:
    """`metrics.jsonl`: one JSON object per line, steps ascending, each with its checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: dict[str, Any]) -> None:
        """Add a line."""
        with errors_naming(self.path), open(self.path, "a", encoding="utf-8", opener=_not_through_links) as handle:
            handle.write(_text_of(line))

    def push_to_disk(self) -> None:
        """Before a checkpoint is written: it must not outlive, in a power cut, the lines of the steps before it."""
        with errors_naming(self.path), self.path.open("rb") as handle:
            os.fsync(handle.fileno())

    def read(self, due: Collection[int] = ()) -> list[dict[str, Any]]:
        """The lines; a note names those that are damaged, but for a last one that a killed process left unfinished.

        due: the steps that have a line; a note names those of which there is none.
        """
        lines, damaged = self._read()
        for number, _ in damaged:
            note(f"{self.path}, line {number}: damaged, left out")
        self._tell_lost(lines, damaged, due)
        return lines

    def _tell_lost(self, lines: list[dict[str, Any]], damaged: Sequence[Any], due: Collection[int]) -> None:
        """Which of the lines that are due are neither there nor named as damaged."""
        lost = sorted(set(due) - {line["step"] for line in lines})
        if len(lost) > len(damaged):
            first = ", ".join(map(str, lost[:3])) + (f" and {len(lost) - 3:,} more" if len(lost) > 3 else "")
            note(f"{self.path}: no line of step {first}: lost, and missing in its curves")

    def tail(self) -> list[dict[str, Any]]:
        """The whole lines at the end of the file, as many as `TAIL_BYTES` have."""
        if not self.path.is_file():
            return []
        with open_file(self.path) as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - TAIL_BYTES))
            texts = handle.read(TAIL_BYTES).split(b"\n")
        found = (_line_of(text, str(self.path)) for text in texts[size > TAIL_BYTES :])
        return [line for line in found if line is not None]

    def cut(self, step: int, due: Collection[int] = ()) -> None:
        """Drop the lines after `step`: the run goes on from there and writes them again. Damaged ones go aside.

        due: as for `read`.
        """
        lines, damaged = self._read()
        self._tell_lost(lines, damaged, due)
        if damaged:
            aside = self.path.with_name(DAMAGED)
            with open(aside, "ab", opener=_not_through_links) as handle:
                handle.writelines(text + b"\n" for _, text in damaged)
            numbers = ", ".join(str(number) for number, _ in damaged)
            note(f"{self.path}, line {numbers}: damaged, kept in {aside.name}")
        write_text(self.path, "".join(_text_of(line) for line in lines if line["step"] <= step))

    def _read(self) -> tuple[list[dict[str, Any]], list[tuple[int, bytes]]]:
        """The lines, and the damaged ones with their numbers."""
        if not self.path.is_file():
            if self.path.exists():
                note(f"{self.path}: not a file, left out")
            return [], []
        lines, damaged, last = list[dict[str, Any]](), list[tuple[int, bytes]](), -1
        with open_file(self.path) as handle:  # line by line: a long run has more than is read at once elsewhere
            for number, text in enumerate(handle, start=1):
                line = _line_of(text, f"{self.path}, line {number}")
                if line is not None and line["step"] > last:
                    lines.append(line)
                    last = line["step"]
                elif text.endswith(b"\n"):
                    damaged.append((number, text.removesuffix(b"\n")))
        return lines, damaged


def _text_of(line: dict[str, Any]) -> str:
    return json.dumps(with_checksum(line)) + "\n"


def _line_of(text: bytes, origin: str) -> dict[str, Any] | None:
    """The figures of a line; None where it is none, or not what was written."""
    try:
        line: dict[str, Any] = without_checksum(json.loads(text), origin)
    except (ValueError, RecursionError):  # UserError is one
        return None
    return line if first_schema_error(line, Line) is None else None


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _is_own(path: Path) -> bool:
    """Whether linnet made it before a run has its configuration."""
    return path.name in (LOCK, PAIRS) or is_leftover(path)


def _check_same(old: dict[str, Any], new: dict[str, Any], path: Path) -> None:
    for field in dict.fromkeys([*old, *new]):
        before, now = old.get(field), new.get(field)
        if field != "data" and not field.startswith(HOW) and before != now:
            held = f"without `{field}`, not with" if before is None else f"with {field}: {before!r}, not"
            asked = "without" if now is None else repr(now)
            raise UserError(
                f"{path}: holds a run {held} {asked}; choose another `out`, or the same configuration to go on"
            )
