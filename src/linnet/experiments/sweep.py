"""A sweep: a suite with a run for each value of one training field; its table, picture and conclusion."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linnet.core.checksum import read_checked_json, write_checked_json
from linnet.core.errors import UserError, did_you_mean
from linnet.core.spec import field_kinds, flatten, is_number_field, read_assignment
from linnet.data.token_data import TokenData
from linnet.experiments.executors import Executor, read_suite_folder
from linnet.experiments.jobs import Runner
from linnet.experiments.results import TRAINING, read_rows
from linnet.experiments.run import run_suite
from linnet.experiments.suite import RESULTS, SUITE, Suite
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Part, Result
from linnet.present.table import MISSING, Table
from linnet.training.data import fit_to_data, vocabulary_note
from linnet.training.metrics import CONFIG
from linnet.training.recipe import LOW_LR, NO_LOW_LR_PARAMETERS, has_low_lr_parameters
from linnet.training.spec import RunSpec, TrainingSpec, run_of

FIGURES, PICTURE = "sweep.json", "sweep.png"

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of the configured learning rate that are tried if no values are given."""

NOT_SWEPT = ("steps", "tokens", "seed", "threads", "evaluate.", "checkpoint.", "log.", "parallel.")
"""Fields of length (more is better), of chance, and of how a run is recorded."""

SIZES = ("batch_size", "gradient_accumulation", "context_length")
"""Fields that decide how many tokens a step has."""

ALTERNATIVES = {"schedule.warmup_steps": "schedule.warmup_share", "schedule.warmup_share": "schedule.warmup_steps"}
"""Fields of which a run has one of two."""

PROPOSED_BEYOND = 2
"""Values that are proposed beyond an edge."""

LOG_AXIS_RATIO = 4
"""Values with at least this ratio stand on a logarithmic axis."""


@dataclass(frozen=True)
class Sweep:
    """A field by its path below `training`, and two or more values, ascending."""

    path: str
    values: tuple[float, ...]

    @property
    def name(self) -> str:
        """The last part of the path, if no other field has that name: `lr`, but `optimizer.muon.lr`."""
        last = self.path.rpartition(".")[2]
        return last if _known_fields().get(last) == self.path else self.path

    def label(self, value: float) -> str:
        """Name and folder of a run: `lr-0.001`."""
        return f"{self.name}-{typed(value)}"

    def assignments(self, run: RunSpec, value: float) -> list[str]:
        """Assignments that turn `run` into the one with the value, with the same number of tokens.

        If the number of tokens in a step changes, the warm-up in steps becomes the share that it was.
        """
        changes = [f"training.{self.path}={typed(value)}"]
        if self.path in ALTERNATIVES:
            changes.append(f"training.{ALTERNATIVES[self.path]}=null")
        if self.path in SIZES:
            if run.training.tokens is None:
                tokens = run.resolved().growth.tokens(0, run.steps)
                changes += ["training.steps=null", f"training.tokens={tokens}"]
            changes += _warmup_share(run)
        return changes

    def run(self, run: RunSpec, value: float) -> RunSpec:
        """The run with the value; `UserError` if the value is not valid, or does not fit the other fields."""
        changed = run_of(run.to_dict(), self.assignments(run, value), "run", "`sweep` ")
        try:
            changed.resolved()
        except UserError as error:
            raise UserError(str(error), field="sweep", value=f"{self.name}={typed(value)}") from None
        return changed


def read_sweep(text: str, run: RunSpec) -> Sweep:
    """Parse `lr` (a quarter to four times the configured peak) or `FIELD=A,B,...`; `UserError` names what is wrong.

    A field of `training` is named by its path, or by the last part of it if that is unique.
    """
    values: tuple[float, ...]
    name, equals, listed = text.partition("=")
    known, field = _known_fields(), name.strip().removeprefix("training.")
    if field not in known:
        accepted = (
            "expected a number of training that decides what is learned, such as lr, batch_size, optimizer.weight_decay"
        )
        is_field = field in dict(field_kinds(TrainingSpec))
        raise UserError(accepted if is_field else did_you_mean(field, known, accepted), field="sweep", value=text)
    path = known[field]
    if path == LOW_LR and not has_low_lr_parameters(run.model):
        raise UserError(f"{NO_LOW_LR_PARAMETERS}, and all values train the same", field="sweep", value=text)
    if equals:
        values = ()
        for part in listed.split(","):
            _, value = read_assignment(f"sweep={part}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{part.strip()!r} is no number", field="sweep", value=text, accepted="FIELD=A,B,...")
            values += (value,)
    elif path.rpartition(".")[2] == "lr":
        peak = flatten(run.to_dict()["training"])[path]
        values = tuple(factor * (peak or run.training.optimizer.lr) for factor in FACTORS)
    else:
        raise UserError(field="sweep", value=text, accepted=f"values, as in {name}=A,B,C")
    if len(set(values)) < max(2, len(values)):
        raise UserError(field="sweep", value=text, accepted="two values or more, each once")
    return Sweep(path, tuple(sorted(values)))


def _known_fields() -> dict[str, str]:
    """Paths of the fields that can be swept, by path, and by the last part of the path if that is unique.

    `lr` is that of the optimizer: a section within a section refines it.
    """
    kinds = dict(field_kinds(TrainingSpec))
    paths = [path for path, kind in kinds.items() if is_number_field(kind) and not path.startswith(NOT_SWEPT)]
    by_last: dict[str, list[str]] = {}
    for path in sorted(kinds, key=lambda path: path.count(".")):
        by_last.setdefault(path.rpartition(".")[2], []).append(path)
    unique = {}
    for last, same in by_last.items():
        depths = [path.count(".") for path in same]
        if depths.count(depths[0]) == 1 and same[0] in paths:
            unique[last] = same[0]
    return unique | {path: path for path in paths}


def shortened(run: RunSpec, steps: int | None) -> RunSpec:
    """The run with fewer steps and its whole schedule; None leaves it as it is. `UserError` for more steps."""
    if steps is None:
        return run
    if steps > run.steps:
        raise UserError(field="sweep_steps", value=steps, accepted=f"at most the {run.steps} steps of the run")
    changes = ["training.tokens=null", f"training.steps={steps}", *_warmup_share(run)]
    return run_of(run.to_dict(), changes, "run")


def _warmup_share(run: RunSpec) -> list[str]:
    """Assignments that turn a warm-up in steps into a share of the steps; empty if it is a share already."""
    warmup = run.training.schedule.warmup_steps
    if warmup is None:
        return []
    share = json.dumps(warmup / run.steps)
    return ["training.schedule.warmup_steps=null", f"training.schedule.warmup_share={share}"]


def typed(value: float) -> str:
    """A value as it is typed: `0.001`, `8`."""
    return repr(value).removesuffix(".0")


@dataclass(frozen=True)
class SweptRun:
    """The run of one value; its figures are None if it diverged. seconds: in training steps."""

    value: float
    folder: Path
    bits_per_byte: float | None = None
    seconds: float | None = None
    steps: int | None = None
    tokens: int | None = None
    precision: str | None = None
    diverged_at: int | None = None
    reason: str | None = None

    @property
    def state(self) -> str:
        return "finished" if self.diverged_at is None else f"diverged at step {self.diverged_at}"


@dataclass(frozen=True)
class SweepFindings(Result):
    """All runs, values ascending. run: the configuration that was asked for; steps: of each run (None: all of it)."""

    sweep: Sweep
    run: RunSpec
    runs: list[SweptRun]
    steps: int | None = None
    folder: Path = Path()

    def title(self) -> str:
        return "Sweep"

    def facts(self) -> dict[str, str]:
        length = "all steps" if self.steps is None else f"{self.steps:,} steps each"
        if len({run.steps for run in self.runs if run.steps is not None}) > 1:  # then their tokens are equal
            length = f"{max(run.tokens or 0 for run in self.runs):,} tokens each"
        return {"of": f"training.{self.sweep.path}, {len(self.runs)} values, {length}"}

    @property
    def best(self) -> SweptRun | None:
        """The run with the fewest bits per byte; None if all diverged."""
        finished = [(run.bits_per_byte, index) for index, run in enumerate(self.runs) if run.bits_per_byte is not None]
        return self.runs[min(finished)[1]] if finished else None

    @property
    def edge(self) -> str | None:
        """`lowest` or `highest` if the best value is at that end, so that a better one may lie beyond; else None."""
        values = [run.value for run in self.runs]
        if self.best is None or self.best.value not in (values[0], values[-1]):
            return None
        return "lowest" if self.best.value == values[0] else "highest"

    @property
    def further(self) -> list[float]:
        """The best value, if at an edge, and valid values beyond it in the ratio of the last two, ascending."""
        if self.best is None or self.edge is None:
            return []
        best, neighbor = self.best.value, self.runs[1 if self.edge == "lowest" else -2].value
        if best <= 0 or neighbor <= 0:
            return []
        new: dict[float, None] = {}
        for power in range(1, PROPOSED_BEYOND + 1):
            exact = best * (best / neighbor) ** power
            value = max(1, round(exact)) if isinstance(best, int) else float(f"{exact:.6g}")
            try:
                self.sweep.run(self.run, value)
            except UserError:
                continue
            new[value] = None
        new.pop(best, None)
        return sorted([best, *new]) if new else []

    @property
    def flags(self) -> list[str]:
        """Options of `linnet train`, besides those given here, to train with the best value."""
        if self.best is None:
            return []
        return [word for change in self.sweep.assignments(self.run, self.best.value) for word in ("--set", change)]

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        names = ("value", "bits_per_byte", "seconds", "steps", "tokens", "precision", "state", "reason")
        return {
            "folder": str(self.folder),
            "field": f"training.{self.sweep.path}",
            "sweep_steps": self.steps,
            "runs": [{"folder": str(run.folder)} | {name: getattr(run, name) for name in names} for run in self.runs],
            "best": None if self.best is None else self.best.value,
            "edge": self.edge,
            "further": self.further,
            "flags": self.flags,
        }

    def tables(self) -> list[Part]:
        """A row for each value, the best one marked."""
        best, rows = self.best, []
        for run in self.runs:
            cells = [MISSING] * 4
            if run.bits_per_byte is not None and run.steps is not None and run.seconds is not None:
                assert best is not None and best.bits_per_byte is not None, "this run is finished"
                distance = "best" if run is best else numbers.signed(run.bits_per_byte - best.bits_per_byte, 4)
                length = [numbers.grouped(run.steps), numbers.duration(run.seconds)]
                cells = [f"{run.bits_per_byte:.4f}", distance, *length]
            rows.append([typed(run.value), *cells, run.state])
        meaning = (
            "causal, as evaluated at the end of each training; one seed: linnet compare shows how much seeds differ"
        )
        if len({run.precision for run in self.runs if run.precision is not None}) > 1:
            meaning += "; the precisions differ, as the faster was chosen: --set training.precision=float32 avoids that"
        columns = (self.sweep.name, "bits per byte", "to the best", "steps", "time", "state")
        return [Table("Held-out text, and training", columns, rows, meaning)]

    def conclusion(self) -> str:
        """The best value, how to train with it, and whether a better one may lie beyond; a line each."""
        best, name = self.best, self.sweep.name
        lines = [f"picture: {self.folder / PICTURE}"]
        if best is None:
            return lines[0]
        lines.append(f"to train with the best {name}, {typed(best.value)}: {' '.join(self.flags)}")
        if self.steps is None:
            lines.append(f"already trained with it: {best.folder / 'model'}")
        if self.edge is not None:
            beyond = "below" if self.edge == "lowest" else "above"
            line = f"note: {typed(best.value)} is the {self.edge} value, so a better one may lie {beyond} it"
            further = ",".join(map(typed, self.further))
            lines.append(f"{line}: --sweep {name}={further}" if further else line)
        return "\n".join(lines)

    def plot(self) -> Plot:
        """Bits per byte over the value, with a vertical line where a run diverged."""
        finished = [(run.value, run.bits_per_byte) for run in self.runs if run.bits_per_byte is not None]
        series = [Series([value for value, _ in finished], [bits for _, bits in finished], "", "o-")]
        if self.best is not None and self.best.bits_per_byte is not None:
            label = f"best: {typed(self.best.value)}, {self.best.bits_per_byte:.4f}"
            series.append(Series([self.best.value], [self.best.bits_per_byte], label, "o", 1, large=True))
        rules = [
            Rule(run.value, f"{typed(run.value)} {run.state}", ":", 3, upright=True)
            for run in self.runs
            if run.diverged_at is not None
        ]
        low, high = self.runs[0].value, self.runs[-1].value
        x = Axis(f"training.{self.sweep.path}", "log" if low > 0 and high >= LOG_AXIS_RATIO * low else "linear")
        y = Axis("held-out text, causal, bits per byte")
        return Plot([Panel(x, y, series, self.run.model.name, rules)], (8.0, 4.6))


def sweep(
    text: str,
    run: RunSpec,
    out: str | Path,
    runner: Runner,
    steps: int | None = None,
    executor: Executor | None = None,
) -> SweepFindings:
    """Train `run` once for each value in `text` (see `read_sweep`) below `out`; write `sweep.json` and a picture.

    steps: of each training, with the schedule scaled to them; None: all steps of the run. Existing results are not made
    again; a value that diverges is a result. Raises `UserError` and `ExperimentStopped`.
    """
    folder = Path(out)
    if (folder / CONFIG).is_file():
        message = "holds a run; a sweep makes a folder for each value: choose another `out`"
        raise UserError(message, field="out", value=folder)
    asked, base = _with_earlier_values(read_sweep(text, run), folder), shortened(run, steps)
    base = _with_vocabulary_of_data(base, asked, runner)
    plain = base.to_dict()
    training = dict(plain["training"])
    seed = training.pop("seed")
    runs = []
    for value in asked.values:
        asked.run(base, value)  # refuses a value before anything is trained
        changes = dict(map(read_assignment, asked.assignments(base, value)))
        changes["model.name"] = f"{run.model.name} {asked.label(value)}"
        runs.append({"name": asked.label(value), "set": changes})
    described = {
        "name": f"sweep of {asked.name}", "data": plain["data"], "model": plain["model"], "training": training,
        "start_from": plain["start_from"], "seeds": [seed], "runs": runs, "measures": {"likelihood": "recorded"},
        "flat": True,
    }  # fmt: skip
    suite = Suite.parse(described, "sweep")
    run_suite(suite, folder, runner, "sweep", executor)
    rows = {row.run: row for row in read_rows(folder / RESULTS) if row.measure == TRAINING}
    swept = []
    for value in asked.values:
        own = suite.run_folder(folder, suite.run(asked.label(value)), seed)
        row = rows[asked.label(value)]
        if row.status != "measured":
            swept.append(SweptRun(value, own, diverged_at=row.values["step"], reason=row.values["reason"]))
            continue
        figures = {name: row.values[name] for name in ("seconds", "steps", "tokens", "precision")}
        swept.append(SweptRun(value, own, row.values["validation"]["bits_per_byte"], **figures))
    findings = SweepFindings(asked, run, swept, steps, folder)
    write_checked_json(folder / FIGURES, findings.to_dict())
    findings.plot().write(folder / PICTURE)
    return findings


def _with_vocabulary_of_data(base: RunSpec, asked: Sweep, runner: Runner) -> RunSpec:
    """The run with the vocabulary of its data, which is told once and not by each training."""
    first = asked.run(base, asked.values[0])
    fitted = fit_to_data(first, TokenData.open(first.data))
    if fitted.model.vocab_size == base.model.vocab_size:
        return base
    runner.log(vocabulary_note(base, fitted))
    return base.model_copy(update={"model": base.model.replace(vocab_size=fitted.model.vocab_size)})


def _with_earlier_values(asked: Sweep, folder: Path) -> Sweep:
    """With the values of the same field that the folder has results of."""
    if not (folder / FIGURES).is_file():
        return asked
    found = read_checked_json(folder / FIGURES)
    try:
        known = [run["value"] for run in found["runs"]] if found["field"] == f"training.{asked.path}" else []
    except (KeyError, TypeError):
        raise UserError(f"{folder / FIGURES}: expected the results of a sweep; choose another `out`") from None
    names = {run.name for run in read_suite_folder(folder)[0].runs} if (folder / SUITE).is_file() else set()
    return replace(asked, values=tuple(sorted({*asked.values, *(v for v in known if asked.label(v) in names)})))
