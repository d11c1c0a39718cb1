"""The result table of a suite: one typed row for each run, seed and measure, kept as JSON lines; and its summary.

A row holds hashes of its inputs, so that it is made again only when one of them has changed, and where it was made. A
seed that diverged has a row with that status; it is left out of all means.
"""

import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from linnet.core.checksum import digest, with_checksum, without_checksum
from linnet.core.errors import UserError
from linnet.core.files import read_text, write_text
from linnet.core.spec import Spec, without_defaults
from linnet.experiments.measures import NGRAM, MemoryFigures, ModelMeasures
from linnet.model.spec import ModelSpec
from linnet.training.recipe import has_low_lr_parameters
from linnet.training.spec import RunSpec

IRRELEVANT = {"seed", "threads", "device", "parallel", "evaluate", "checkpoint", "log", "trackers"}
"""Fields of a training that do not decide its result; the seed is in the row itself."""

HASH_DIGITS = 12

TRAINING, LIKELIHOOD, ABILITY, NAME_RECALL = "training", "likelihood", "ability", "name_recall"
"""Measures of one training; those that compare finished models are called as in `ModelMeasures`."""


def hash_of(plain: Any) -> str:
    """Hash of plain data, whatever the order of its fields.

    Null, false and empty values are left out: a new field that is off does not make a result outdated.
    """

    def without_empty(plain: Any) -> Any:
        if isinstance(plain, Mapping):
            parts = {name: without_empty(value) for name, value in plain.items()}
            empty = {name for name, value in parts.items() if value is None or value is False or value in ([], {})}
            return {name: value for name, value in parts.items() if name not in empty}
        return [without_empty(value) for value in plain] if isinstance(plain, list | tuple) else plain

    return _digest(without_empty(plain))


def inputs_of(run: RunSpec, text: str | None) -> dict[str, str]:
    """Hashes of what a trained model depends on besides its seed. text: hash of the text; None if it is not known."""
    run = run.resolved()
    training = _fields_without(run.training, IRRELEVANT)
    if "low_lr" in training.get("optimizer", {}) and not has_low_lr_parameters(run.model):
        del training["optimizer"]["low_lr"]  # no parameter uses it
    return {"model": description_hash(run.model), "training": _digest(training)} | (
        {} if text is None else {"text": text}
    )


def description_hash(model: ModelSpec) -> str:
    """Hash of a description without its name."""
    return _digest(_fields_without(model, {"name"}))


def _fields_without(spec: Spec, names: Collection[str]) -> dict[str, Any]:
    """The fields that differ from their defaults, so that a new field with a default does not outdate a result."""
    return {name: value for name, value in without_defaults(spec).items() if name not in names}


def _digest(plain: Any) -> str:
    return digest(json.dumps(plain, sort_keys=True).encode())[:HASH_DIGITS]


class ResultRow(Spec):
    """One result. values: figures by name. inputs: hashes of what it depends on. origin: commit, date and machine.

    status `diverged`: the training diverged, at `values["step"]`; `skipped`: it could not be trained.
    """

    suite: str = ""
    run: str
    seed: int
    measure: str
    status: Literal["measured", "diverged", "skipped"] = "measured"
    values: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    origin: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.suite, self.run, self.seed, self.measure

    def outdated_by(self, inputs: Mapping[str, str]) -> str | None:
        """The reason to make the row again: the inputs that have changed, as far as they are known; None if none."""
        parts = [part for part, own in inputs.items() if self.inputs.get(part) not in (None, own)]
        return f"made with another {' and '.join(parts)}" if parts else None


def read_rows(path: Path) -> list[ResultRow]:
    """Rows of a file of JSON lines; `UserError` names the line that is not a row or was changed since."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        origin = f"{path}, line {number}"
        try:
            plain = json.loads(line)
        except ValueError:
            raise UserError(f"{origin}: not a JSON object") from None
        rows.append(ResultRow.parse(without_checksum(plain, origin), origin))
    return rows


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write the rows atomically, each with its checksum."""
    lines = [
        json.dumps(with_checksum(row.model_dump(mode="json", exclude_defaults=True)), allow_nan=False) for row in rows
    ]
    write_text(path, "".join(f"{line}\n" for line in lines))


class ResultTable:
    """Rows by suite, run, seed and measure, in a file that is written after each change; without a path in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.rows = {row.key: row for row in (read_rows(path) if path is not None else [])}

    def find(self, suite: str, run: str, seed: int, measure: str) -> ResultRow | None:
        return self.rows.get((suite, run, seed, measure))

    def of(self, suite: str, measure: str) -> list[ResultRow]:
        """All rows of one measure, in their order."""
        return [row for row in self.rows.values() if (row.suite, row.measure) == (suite, measure)]

    def add(self, rows: Iterable[ResultRow]) -> None:
        """Add rows, in place of those with the same key."""
        self.rows |= {row.key: row for row in rows}
        if self.path is not None:
            write_rows(self.path, self.rows.values())


@dataclass(frozen=True)
class CurvePoint:
    """Bits per byte of the validation set at one step, causal."""

    step: int
    bits_per_byte: float


def validation_curve(lines: Iterable[dict[str, Any]]) -> list[CurvePoint]:
    """The evaluations among the lines of a run's metrics."""
    evaluated = [(line["step"], line["validation"]) for line in lines if "validation" in line]
    return [CurvePoint(step, found["bits_per_byte"]) for step, found in evaluated]


@dataclass(frozen=True)
class SeedResult:
    """One run with one seed: its evaluation (`Evaluation.figures` and other measures), curve, and training speed."""

    seed: int
    evaluation: dict[str, Any]
    curve: list[CurvePoint]
    tokens_per_s: float | None = None

    def value(self, name: str) -> float | None:
        """A figure by name; None if it does not exist (`leak` of a causal model), NaN if it is not finite."""
        if name == "tokens_per_s":
            return self.tokens_per_s
        if name not in self.evaluation:
            return None
        value = self.evaluation[name]  # JSON has null for what is not finite
        return math.nan if value is None else float(value)

    @property
    def bits_per_byte(self) -> float:
        value = self.value("bits_per_byte")
        assert value is not None
        return value


@dataclass(frozen=True)
class Failure:
    """A run with a seed that has no result: it diverged at `step`, or (without a step) could not be trained."""

    run: str
    seed: int
    step: int | None
    reason: str
    curve: list[CurvePoint] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "not trained" if self.step is None else "diverged"

    def __str__(self) -> str:
        place = "" if self.step is None else f" at step {self.step}"
        return f"{self.run}, seed {self.seed}: {self.outcome}{place}: {self.reason}"


@dataclass(frozen=True)
class Spread:
    """Mean over the seeds, standard deviation (None for one seed), lowest and highest."""

    mean: float
    deviation: float | None
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, min(values), max(values))

    def to_dict(self) -> dict[str, float | None]:
        return {name: value if value is None or math.isfinite(value) else None for name, value in vars(self).items()}


@dataclass(frozen=True)
class RunSummary:
    """One run over all its seeds; figures are None if no seed has a result.

    training_flops: exact, of one training. extra: measures that compare finished models, of one seed's model.
    """

    name: str
    parameters: int | None
    tokens: int | None
    results: list[SeedResult]
    failures: list[Failure] = field(default_factory=list)
    training_flops: float | None = None
    memory: MemoryFigures | None = None
    extra: ModelMeasures | None = None

    @property
    def seeds(self) -> str:
        """Number of seeds that the means are over: `3`, or `2 of 3`."""
        trained, lost = len(self.results), len(self.failures)
        return f"{trained} of {trained + lost}" if lost else str(trained)

    @property
    def outcome(self) -> str:
        """Outcome of the seeds without a result: `diverged`, `not trained`, or both."""
        return " or ".join(dict.fromkeys(each.outcome for each in self.failures))

    def spread(self, name: str) -> Spread | None:
        """Spread of a figure over the seeds that have it; None if none has."""
        values = [value for result in self.results if (value := result.value(name)) is not None]
        return Spread.of(values) if values else None

    @property
    def curve(self) -> list[tuple[int, Spread]]:
        """Bits per byte of the validation set at the steps that all seeds have."""
        by_step = [{point.step: point.bits_per_byte for point in result.curve} for result in self.results]
        common = [step for step in by_step[0] if all(step in points for points in by_step)]
        return [(step, Spread.of([points[step] for points in by_step])) for step in common]

    def to_dict(self) -> dict[str, Any]:
        spreads = {name: self.spread(name) for name in ("bits_per_byte", "accuracy", "leak", "tokens_per_s")}
        return {
            "name": self.name,
            "parameters": self.parameters,
            "tokens": self.tokens,
            "training_flops": self.training_flops,
            **{name: None if spread is None else spread.to_dict() for name, spread in spreads.items()},
            **({} if self.memory is None else {"memory": self.memory.to_dict()}),
            **({} if self.extra is None else {"measures": self.extra.model_dump(mode="json", exclude_defaults=True)}),
            "seeds": [{"seed": result.seed, **result.evaluation} for result in self.results],
        }


@dataclass(frozen=True)
class Findings:
    """Summary of a suite: the runs that are shown, and all failures (also of runs that are not shown).

    ngram: bits per byte and order of an n-gram model of all of the training text, if it was measured.
    """

    name: str
    runs: list[RunSummary]
    failures: list[Failure]
    ngram: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        runs, names = [run.to_dict() for run in self.runs], ("run", "seed", "outcome", "step", "reason")
        failures = [{name: getattr(each, name) for name in names} for each in self.failures]
        ngram = {} if self.ngram is None else {"ngram": self.ngram}
        return {"name": self.name, "runs": runs, "failures": failures, **ngram}


def summarize(name: str, rows: Sequence[ResultRow], shown: Sequence[str], recorded: bool = False) -> Findings:
    """Summarize the rows of one suite. recorded: take the last evaluation of each training as its likelihood.

    A seed counts if it was trained to the end, or (rows of another machine) if its quality is known.
    """

    def curve(row: ResultRow) -> list[CurvePoint]:
        return [CurvePoint(step, bits) for step, bits in row.values.get("curve", [])]

    failures = [
        Failure(row.run, row.seed, row.values.get("step"), row.values["reason"], curve(row))
        for row in rows
        if row.measure == TRAINING and row.status != "measured"
    ]
    runs = []
    for run in shown:
        by_seed: dict[int, dict[str, ResultRow]] = {}
        for row in rows:
            if row.run == run and row.status == "measured":
                by_seed.setdefault(row.seed, {})[row.measure] = row
        results, about = list[SeedResult](), dict[str, Any]()
        for seed, measured in by_seed.items():
            trained = measured.get(TRAINING)
            quality = [] if recorded else [m for m in (LIKELIHOOD, ABILITY, NAME_RECALL) if m in measured]
            if trained is None and not quality:
                continue
            evaluation = {} if trained is None or LIKELIHOOD in quality else dict(trained.values["validation"])
            for measure in quality:
                evaluation |= measured[measure].values
            speed = None if trained is None else trained.values.get("tokens_per_s")
            results.append(SeedResult(seed, evaluation, [] if trained is None else curve(trained), speed))
            about = about or ({} if trained is None else trained.values)
        memory = MemoryFigures.from_dict(about["memory"]) if "memory" in about else None
        lost = [each for each in failures if each.run == run]
        names = ModelMeasures.model_fields
        compared = {
            seed: {measure: row.values["result"] for measure, row in one.items() if measure in names}
            for seed, one in by_seed.items()
        }
        first = next((seed for seed, found in compared.items() if found), None)
        extra = None if first is None else ModelMeasures.parse({"seed": first, **compared[first]}, "results")
        counts = about.get("parameters"), about.get("tokens")
        runs.append(RunSummary(run, *counts, results, lost, about.get("training_flops"), memory, extra))
    ngram = next((row.values for row in rows if row.run == NGRAM and "order" in row.values), None)
    return Findings(name, runs, failures, ngram)
