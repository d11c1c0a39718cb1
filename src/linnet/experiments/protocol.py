"""A paper's measurements, repeated on any models: scores of a task suite, inspections of layers, and times with
caches.

The sections are measures of a suite without runs: `linnet evaluate MODEL... --protocol FILE.yaml`. Each result is a row
of a result table, in the folder of the report if there is one, so that an interrupted call continues.

Legend: `N` tokens that are generated (or the last of them); `V` vocabulary.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.core.checksum import MANIFEST, digest, file_digest
from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.core.system import SCATTER_LIMIT, resolve_device, scatter
from linnet.evaluation.tasks.measure import (
    AveragedScore,
    SuiteReport,
    TaskResult,
    TaskSuiteResult,
    measure_suite,
    percent,
)
from linnet.evaluation.tasks.suite import TaskSuite, load_tasks
from linnet.experiments.jobs import origin
from linnet.experiments.measures import CacheTimes, OtherModel, ScoreMeasure, describe_machine
from linnet.experiments.report import SideBySide
from linnet.experiments.results import ResultRow, ResultTable, hash_of
from linnet.experiments.suite import RESULTS, Suite
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.prefill import new_state
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.inspection.text_model import Target, TextModel, inspect_model
from linnet.layers.registry import inspections
from linnet.model.calibration import calibrated_layers
from linnet.model.folder import find_model_folder
from linnet.present.progress import progress
from linnet.present.result import Part, Result
from linnet.present.table import MISSING, Table

SETTINGS = (Caches(False, False), Caches(True, False), Caches(False, True), Caches())
"""From no cache to all, as in the paper."""

MAX_BEHIND = 2e-4
"""By how much a generated token may be less likely than the likeliest, in standard deviations of the logits: rounding
of float32 in another order of operations."""


@dataclass(frozen=True)
class Contestant:
    """One way of generating the likeliest tokens after a prompt. `caches`: those that it keeps.

    generate: returns the N ids. logits_NV: logits for the last of these (for all, if a text can be read at once), from
    one pass over the text.
    """

    model: str
    parameters: int
    caches: Caches
    generate: Callable[[], list[int]]
    logits_NV: Callable[[list[int]], Tensor]


Opponents = Callable[[OtherModel, CacheTimes, torch.device], list[Contestant]]
"""Makes contestants of a model of another library: `interop.contestants`."""


@dataclass(frozen=True)
class Timed:
    """The runs of a contestant, in seconds, in the order of the turns."""

    contestant: Contestant
    runs_s: list[float]

    @property
    def median_s(self) -> float:
        return median(self.runs_s)

    def times_as_long(self, other: "Timed") -> float:
        """Ratio to the other's time: the median over the turns."""
        return median(own / theirs for own, theirs in zip(self.runs_s, other.runs_s, strict=True))


@dataclass(frozen=True)
class InspectionResult(Result):
    """The figures and tables of an inspection, as a row of a result table holds them."""

    figures: Mapping[str, Any]
    found: Sequence[Table]

    def to_dict(self) -> Any:
        return self.figures

    def tables(self) -> Sequence[Part]:
        return self.found


@dataclass(frozen=True)
class EarlierResults:
    """The rows of a protocol. models: hash of each model by name; a result of other weights is measured again."""

    table: ResultTable
    protocol: str = ""
    models: Mapping[str, str] = field(default_factory=dict)

    def values(self, model: str, measure: str, settings: Any, found: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The values of a row that was made with the same settings; otherwise those that `found` returns, added."""
        inputs = {"model": self.models.get(model, ""), "measure": hash_of(settings)}
        row = self.table.find(self.protocol, model, 0, measure)
        if row is None or row.inputs != inputs:
            about = {"suite": self.protocol, "run": model, "seed": 0, "measure": measure, "origin": origin()}
            row = ResultRow.parse({**about, "values": found(), "inputs": inputs}, "protocol")
            self.table.add([row])
        return row.values


def model_hash(model: str | Path) -> str:
    """Hash of a model folder: of its manifest; of the names, sizes and times of the files where it has none."""
    folder = find_model_folder(Path(model)) or Path(model)
    if (folder / MANIFEST).is_file():
        return file_digest(folder / MANIFEST)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return hash_of([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files])


@dataclass(frozen=True)
class ModelScores:
    """One model as it is, then with other calibrations, then without a shared state."""

    own: TaskSuiteResult
    with_calibration: Sequence[TaskSuiteResult]
    without_cache: TaskSuiteResult | None

    @property
    def cache_effect(self) -> float | None:
        """Largest change of a task's score without the KV-cache; None if it was not measured."""
        if self.without_cache is None:
            return None
        pairs = zip(self.own.tasks, self.without_cache.tasks, strict=True)
        return max(abs(cached.mean.value - uncached.mean.value) for cached, uncached in pairs)


@dataclass(frozen=True)
class ProtocolResult(Result):
    """Results of all sections; a section that was not asked for is empty. inspected: by model, then inspection."""

    suite: Suite
    scores: Sequence[ModelScores]
    inspected: Mapping[str, Mapping[str, Result]]
    times: Sequence[Timed]
    device: torch.device

    def tables(self) -> list[Table]:
        """In the order of the sections."""
        tables: list[Table] = []
        measures = self.suite.measures
        if measures.scores is not None:
            compared = [table for found in _compared(self.scores) for table in found.difference_tables()]
            tables += [scores_table(self.scores, measures.scores), *compared]
        for name, results in self.inspected.items():
            parts = [part for result in results.values() for part in result.tables() if isinstance(part, Table)]
            tables += [replace(table, title=f"{name}: {table.title}") for table in parts]
        if measures.cache_times is not None:
            tables.append(times_table(self.times, measures.cache_times, self.device))
        return tables

    def side_by_side(self) -> SideBySide:
        """The tables as a page and Markdown."""
        facts = {"protocol": self.suite.source}
        return SideBySide(self.suite.name, [], [], {}, {}, further=self.tables(), about=facts)

    def to_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        scores = [
            {
                **one.own.to_dict(),
                "calibrations": [result.to_dict() for result in one.with_calibration],
                "without_kv_cache": None if one.without_cache is None else one.without_cache.to_dict(),
                "kv_cache_effect": one.cache_effect,
            }
            for one in self.scores
        ]
        compared = _compared(self.scores) if self.scores else []
        differences = [row for report in compared for row in report.to_dict()["differences"]]
        times = {}
        for name, ways in _by_model(self.times).items():
            settings = [
                {
                    "kv_cache": way.contestant.caches.kv,
                    "calibration_cache": way.contestant.caches.calibration,
                    "median_s": way.median_s,
                    "runs_s": way.runs_s,
                }
                for way in ways
            ]
            ratio = ways[0].times_as_long(ways[-1])
            times[name] = {
                "parameters": ways[0].contestant.parameters, "settings": settings, "none_over_all": ratio,
            }  # fmt: skip
        return {
            "name": self.suite.name,
            "source": self.suite.source,
            "scores": {"models": scores, "differences": differences} if self.scores else None,
            "inspections": {
                name: {inspection: result.to_dict() for inspection, result in results.items()}
                for name, results in self.inspected.items()
            },
            "cache_times": {"models": times, "machine": describe_machine(self.device, "float32")} if times else None,
        }


def run_protocol(
    suite: Suite,
    models: Sequence[str | Path],
    opponents: Opponents,
    files: str | Path | None = None,
    limit: int | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> ProtocolResult:
    """Measure model folders or run folders. files: the folder of the suite's questions; limit: questions of each task.

    opponents: makes the models of other libraries that times are measured against. out: the folder of the result
    table; what it has of the same models and settings is not measured again. `UserError` for questions that are missing
    or not asked for, and for models that cannot be measured in this way.
    """
    measures = suite.measures
    scores, times = measures.scores, measures.cache_times
    for option, value in (("files", files), ("limit", limit)):
        if scores is None and value is not None:
            raise UserError("the protocol asks no questions; leave it out", field=option, value=value)
    tasks = None if scores is None else load_tasks(scores.suite, files, limit=limit)
    on = resolve_device(device)
    others: list[Contestant] = []
    for other in [] if times is None else times.against:  # before anything is measured
        assert times is not None
        if other.name in map(str, models):
            raise UserError(f"cache_times.against: {other.name}: a model has that name too; expected another")
        others += opponents(other, times, on)
    loaded = {str(model): load(model, device) for model in models}
    hashes = {name: hash_of([model_hash(name), str(on)]) for name in loaded}
    earlier = EarlierResults(ResultTable(None if out is None else out / RESULTS), suite.name, hashes)
    inspected: dict[str, dict[str, Result]] = {}
    for name, model in loaded.items():
        for inspection, settings in measures.inspections.items():
            if inspections()[inspection].applies(TextModel(model)):

                def inspect(inspection: str = inspection, name: str = name) -> dict[str, Any]:
                    result = inspect_model(inspection, Target(name, device=device), **measures.inspections[inspection])
                    tables = [asdict(part) for part in result.tables() if isinstance(part, Table)]
                    return {"figures": result.to_dict(), "tables": tables}

                values = earlier.values(name, f"inspection {inspection}", settings, inspect)
                found = InspectionResult(values["figures"], [Table(**table) for table in values["tables"]])
                inspected.setdefault(name, {})[inspection] = found
    scored = [] if scores is None or tasks is None else measure_scores(loaded, scores, tasks, earlier)
    timed = []
    if times is not None:
        own = [one for name, model in loaded.items() for one in contestants(model, name, times)]
        every = [*own, *others]

        def time_all() -> dict[str, Any]:
            return {"runs_s": [found.runs_s for found in time_in_turn(every, times)]}

        # Times are compared with each other, so they are one result, of all models on this machine.
        machine = describe_machine(on, "float32")["processor"]
        who = [(one.model, one.caches.label, hashes.get(one.model)) for one in every]
        values = earlier.values("all models", "cache_times", [times.model_dump(mode="json"), machine, who], time_all)
        timed = [Timed(one, runs_s) for one, runs_s in zip(every, values["runs_s"], strict=True)]
    return ProtocolResult(suite, scored, inspected, timed, on)


def measure_scores(
    models: Mapping[str, LanguageModel],
    settings: ScoreMeasure,
    tasks: TaskSuite,
    earlier: EarlierResults | None = None,
) -> list[ModelScores]:
    """Ask every model all items, once for each of its rows; rows that are among `earlier` are not measured again."""
    earlier = earlier or EarlierResults(ResultTable())
    items = digest(repr(tasks.tasks).encode())

    def score(name: str, model: LanguageModel, calibration: str = "", fork: bool = True) -> TaskSuiteResult:
        variant = calibration or ("own calibration" if fork else "no KV-cache")
        shown = name if fork and not calibration else f"{name}, {variant}"

        def measure() -> dict[str, Any]:
            measured = model.with_calibration(calibration, settings.seed) if calibration else model
            found = measure_suite(measured, shown, tasks, fork).tasks
            scores: dict[str, Any] = json_safe(
                {one.task.name: [one.values_N.tolist(), one.other_scores] for one in found}
            )
            return scores

        values = earlier.values(name, f"scores, {variant}", [items, settings.seed], measure)
        results = []
        for task in tasks.tasks:
            by_item, others = values[task.name]
            scores_N = np.array([math.nan if one is None else one for one in by_item])
            others = {other: math.nan if one is None else one for other, one in others.items()}
            results.append(TaskResult(task, scores_N, others))
        return TaskSuiteResult(shown, tasks, results)

    found = []
    for name, model in models.items():
        sources = settings.calibrations if calibrated_layers(model.decoder) else []
        replaced = [score(name, model, source) for source in sources]
        uncached = score(name, model, fork=False) if settings.without_kv_cache else None
        found.append(ModelScores(score(name, model), replaced, uncached))
    return found


def scores_table(found: Sequence[ModelScores], settings: ScoreMeasure) -> Table:
    """Chance, then the models, each followed by its other rows; `±` the standard error."""

    def score_of(result: TaskSuiteResult, task: str) -> TaskResult | AveragedScore | None:
        if task in result.suite.averages:
            return result.average(task)
        return next((one for one in result.tasks if one.task.name == task), None)  # None: its files are missing

    first = [score_of(found[0].own, task) for task in settings.columns.values()]
    rows = [["chance", *(percent(None if score is None else score.chance) for score in first)]]
    for one in found:
        others = [*one.with_calibration, *([] if one.without_cache is None else [one.without_cache])]
        for result in (one.own, *others):
            name = result.model if result is one.own else f"  {result.model.removeprefix(f'{one.own.model}, ')}"
            cells = []
            for task in settings.columns.values():
                score = score_of(result, task)
                error = "" if score is None else f"\n± {percent(score.mean.standard_error)}"
                cells.append(MISSING if score is None else f"{percent(score.mean.value)}{error}")
            rows.append([name, *cells])
    meaning = "Per cent, ± standard error. A model calibrates on the empty prompt, the end token alone."
    if any(one.with_calibration for one in found):
        meaning += (
            f" {', '.join(settings.calibrations)}: other calibrations in its place (random: from seed {settings.seed})."
        )
    effects = [one.cache_effect for one in found if one.cache_effect is not None]
    if effects:
        meaning += (
            " no KV-cache: every choice read with its whole context calibrated alike; it changes a score by at most"
            f" {100 * max(effects):.2g}."
        )
    return Table("Zero-shot scores", ("model", *settings.columns), rows, meaning)


def _compared(found: Sequence[ModelScores]) -> list[SuiteReport]:
    """Models against the first, then each with other calibrations against itself, item by item."""
    return [SuiteReport([one.own for one in found]), *(SuiteReport([one.own, *one.with_calibration]) for one in found)]


def draw_prompt(vocab_size: int, settings: CacheTimes) -> list[int]:
    """Random tokens, always the same: only speed is measured."""
    generator = torch.Generator().manual_seed(settings.seed)
    return torch.randint(vocab_size, (settings.prompt_tokens,), generator=generator).tolist()


def contestants(model: LanguageModel, name: str, settings: CacheTimes) -> list[Contestant]:
    """A model with each setting of the caches that it has; one that does not calibrate has fewer."""
    decoder, tokens = model.decoder, settings.tokens
    calibrates = any(mixer.traits.calibrates for mixer in decoder.mixers)
    prompt = draw_prompt(decoder.spec.vocab_size, settings)
    parameters = sum(parameter.numel() for parameter in decoder.parameters())

    def row(ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=decoder.device)

    def contestant(caches: Caches) -> Contestant:
        def generate() -> list[int]:
            steps = decode(decoder, [prompt], tokens, Sampling(temperature=0.0), caches=caches)
            return [token for (token,) in steps if token is not None]

        def logits_NV(ids: list[int]) -> Tensor:
            if calibrates and not caches.kv and not caches.calibration:  # calibrated on the text of the last step
                last_1V: Tensor = decoder(row(prompt + ids[:-1]))[0, -1:]
                return last_1V
            state = new_state(decoder, [prompt], tokens)
            first_1V: Tensor = decoder(row(prompt), state)[0, -1:]
            return torch.cat([first_1V, decoder(row(ids[:-1]), state)[0]]) if len(ids) > 1 else first_1V

        shown = caches if calibrates else Caches(caches.kv, calibration=False)
        return Contestant(name, parameters, shown, generate, logits_NV)

    return [contestant(caches) for caches in (SETTINGS if calibrates else (Caches(kv=False), Caches()))]


@torch.inference_mode()
def check(one: Contestant, tokens: int) -> None:
    """`UserError` unless it generates `tokens` tokens, each the likeliest in a pass over the whole text."""
    ids, name = one.generate(), f"{one.model}, caches {one.caches.label}: not timed"
    if len(ids) != tokens:
        raise UserError(f"{name}: {len(ids)} tokens; expected {tokens}")
    logits_NV = one.logits_NV(ids).double()
    taken_N = logits_NV.gather(1, torch.tensor(ids[-len(logits_NV) :], device=logits_NV.device)[:, None])[:, 0]
    behind = float((logits_NV.amax(1) - taken_N).max() / logits_NV.std())
    if not behind <= MAX_BEHIND:  # also for NaN
        other = f"{behind:.1e} standard deviations less likely than another in one pass over the text"
        raise UserError(f"{name}: a token is {other}; expected at most {MAX_BEHIND:g}")


def time_in_turn(every: Sequence[Contestant], settings: CacheTimes) -> list[Timed]:
    """Check all, which also warms them up, then time them in turn, so that other load affects all of them."""
    timed = [Timed(one, []) for one in every]
    with progress("generating", (settings.runs + 1) * len(timed), "runs") as advance:
        for one in every:
            check(one, settings.tokens)
            advance(1)
        for _ in range(settings.runs):
            for found in timed:
                start_s = time.perf_counter()
                found.contestant.generate()
                found.runs_s.append(time.perf_counter() - start_s)
                advance(1)
    return timed


def _by_model(found: Sequence[Timed]) -> Mapping[str, list[Timed]]:
    by_model: dict[str, list[Timed]] = {}
    for one in found:
        by_model.setdefault(one.contestant.model, []).append(one)
    return by_model


def times_table(found: Sequence[Timed], settings: CacheTimes, device: torch.device) -> Table:
    """Models as rows, cache settings as columns; then the gain from caches, and the ratio to the first other model."""
    by_model, other_name = _by_model(found), settings.against[0].name if settings.against else None
    columns = ["model", "parameters", *(one.label for one in SETTINGS), "none / all"]
    columns += [] if other_name is None else [f"{other_name} / model"]
    rows = []
    for name, ways in by_model.items():
        by_setting, best = {way.contestant.caches: way for way in ways}, ways[-1]
        row = [name, f"{best.contestant.parameters:,}"]
        for setting in SETTINGS:
            way = by_setting.get(setting)
            ends = "" if way is None else f"{1e3 * min(way.runs_s):,.1f} to {1e3 * max(way.runs_s):,.1f}"
            row.append(MISSING if way is None else f"{1e3 * way.median_s:,.1f}\n{ends}")
        row.append(f"{ways[0].times_as_long(best):.2f}")
        row += [] if other_name is None else [f"{by_model[other_name][-1].times_as_long(best):.2f}"]
        rows.append(row)
    machine = ", ".join(f"{name} {fact}" for name, fact in describe_machine(device, "float32").items())
    meaning = (
        f"Milliseconds for {settings.tokens} tokens after {settings.prompt_tokens}, the prompt's pass included, one"
        f" stream: the median of {settings.runs} runs, lowest to highest below, all taking turns. Ratios are medians"
        f" over the turns, of all caches that a model has. Each token was checked first. Measured on this machine:"
        f" {machine}."
    )
    busiest = max(scatter(one.runs_s) for one in found)
    meaning += (
        f" The machine was busy: slow runs took {busiest:.1f} times the median." if busiest > SCATTER_LIMIT else ""
    )
    return Table("Time with and without caches", columns, rows, meaning)
