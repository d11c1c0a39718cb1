"""Carrying out a suite: prepare the text, train every run with every seed, measure all, write the result table."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from linnet.core.atomic import refuse_link
from linnet.core.checksum import write_checked_json
from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.core.spec import flatten
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.models import ModelOptions
from linnet.experiments.data import file_hashes, prepare_data, text_hash
from linnet.experiments.executors import Executor, InProcessExecutor, JobContext, read_suite_folder
from linnet.experiments.jobs import Job, Log, Runner, job_spec, job_title, origin
from linnet.experiments.measures import (
    NGRAM,
    Measures,
    ModelMeasures,
    decode_speeds,
    measure_models,
    tokens_with_room,
)
from linnet.experiments.report import write_report
from linnet.experiments.results import (
    ABILITY,
    LIKELIHOOD,
    NAME_RECALL,
    TRAINING,
    Findings,
    ResultRow,
    ResultTable,
    description_hash,
    hash_of,
    inputs_of,
    read_rows,
    summarize,
    write_rows,
)
from linnet.experiments.suite import CALIBRATIONS, CURVES, RESULTS, SUITE, Suite
from linnet.experiments.suite_report import curves_plot, load_published, side_by_side
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.model.calibration import check_calibration, check_calibration_fits, save_calibration
from linnet.model.decoder import Decoder
from linnet.model.folder import TOKENIZER, read_description
from linnet.model.spec import calibration_file
from linnet.model.store import load_decoder
from linnet.scaling.throughput import seconds_in_turn, training_step
from linnet.training.checkpoint import checkpoint_steps
from linnet.training.metrics import CHECKPOINTS, finished_summary
from linnet.training.ngram.interface import evaluate_ngram, train_ngram
from linnet.training.run_folder import RunFolder
from linnet.training.spec import RunSpec

RowKey = tuple[str, int, str]
"""Run, seed and measure."""

SPEED, TRAINING_SPEED, DECODING_SPEED = "speed", "training_speed", "decoding_speed"
STEP_FIELDS = ("batch_size", "gradient_accumulation", "context_length", "windows", "precision", "clip")
"""Fields of a training that decide how long a step takes, besides the kind of optimizer."""

DECODED_PROMPT = "Once upon a time"
"""What every run continues where the speed of decoding is measured, greedily."""

STEPS_TOLERANCE = 1.1
"""A training for equal time is made again if its number of steps has changed by more than this ratio: measured times
always differ a little."""


def compare(
    comparison: str | Path | Mapping[str, Any],
    out: str | Path,
    log: Log | None = None,
    against: str | Path | None = None,
) -> Findings:
    """Train every run of a suite with every seed and evaluate all alike, causally; `.to_dict()` has the figures.

    comparison: a YAML file, or its plain data: text, tokenizer, model, training, seeds, runs (docs/comparison.md).
    out: the folder to create or continue; it gets the page (report.html), the Markdown table (report.md), the result
    table (results.jsonl), curves.png, the prepared text and every run. log: gets messages. against: a JSON file with a
    paper's table, which the page shows with the own numbers. Raises `UserError` that names the field that is wrong.
    """
    if isinstance(comparison, Mapping):
        suite, source = Suite.checked(dict(comparison), "comparison"), "comparison"
    else:
        suite, source = Suite.load(comparison), str(comparison)
    published = load_published(against, suite.measures)
    findings = run_suite(suite, out, Runner(log or (lambda line: None)), source)
    write_report(side_by_side(findings, published), Path(out), "linnet.compare")
    return findings


def run_suite(
    suite: Suite,
    out: str | Path,
    runner: Runner,
    origin: str = "suite",
    executor: Executor | None = None,
    record: ResultTable | None = None,
) -> Findings:
    """Train and measure; write `results.jsonl` and `curves.png` into `out`. Existing results are not made again.

    A run that diverges is a result. record: results of earlier calls, perhaps of other machines; what it has, made with
    the same inputs, is not trained, and new results are added to it. Raises `UserError` (about the description, with
    `origin` in front) and `ExperimentStopped`.
    """
    if not suite.runs:
        raise UserError(f"{origin}: has no runs to train; linnet evaluate MODEL... --protocol measures finished models")
    folder = Path(out)
    check_calibrations(suite, folder, origin)
    suite.measures.check(f"{origin}: measures")
    text = claim(suite, folder, origin)
    prepare_data(suite, folder, origin, runner.log)
    earlier = {(row.run, row.seed, row.measure): row for row in read_rows(folder / RESULTS)}
    return _SuiteRun(suite, folder, runner, text, executor or InProcessExecutor(), record, earlier).run()


def claim(suite: Suite, folder: Path, origin: str = "suite") -> str:
    """Record the suite in its folder; `UserError` if the folder holds another one, or a file that it names is missing.

    Models, the text and calibration files are compared by their content, whatever their names. Seeds and runs may be
    added. Returns the hash of the text.
    """
    names = {model for model in (suite.model, *(run.model for run in suite.runs)) if isinstance(model, str)}
    described: dict[str, Any] = {
        **suite.model_dump(mode="json"),
        "models": {name: read_description(name) for name in sorted(names)},
        "files": file_hashes(suite.text, origin),
    }
    # Calibration files that are named anywhere, except those that the suite itself makes.
    whole = _by_content(described, {})
    values = flatten([[part["model"], part["set"]] for part in (whole, *whole["runs"])]).values()
    named = sorted({value for value in values if isinstance(value, str)})
    files = {name: file for name in named if (file := calibration_file(name)) is not None and file.is_file()}
    own = (folder / CALIBRATIONS).resolve()
    hashes = {name: sha256_of(file) for name, file in files.items() if file.resolve().parent != own}
    refuse_link(folder / CALIBRATIONS)
    text = None
    if (folder / SUITE).exists():
        _, before = read_suite_folder(folder)
        text, known = before.get("text_hash"), before.get("calibrations", {})
        hashes = {**known, **hashes}  # a file that no longer exists keeps its recorded content
        before = {**before, "models": before.get("models", described["models"])}
        earlier, now = _by_content(before, known), _by_content(described, hashes)
        fields = ["text", "data", "tokenizer", "model", "start_from", "training", *(["seeds"] if suite.flat else [])]
        if change := _difference(*({name: plain.get(name) for name in fields} for plain in (earlier, now))):
            problem = f"holds a suite with {change}"
            raise UserError(f"{folder}: {problem}; choose another `out`, or the same settings to continue")
        if earlier.get("files") != now["files"]:
            raise UserError(f"{folder}: holds a suite with another content of the files; choose another `out`")
        runs = {run["name"]: run for run in now["runs"]}
        for run in earlier["runs"]:
            if change := _difference(run, runs.get(run["name"], run)):
                problem = f"holds another run {run['name']!r} with {change}"
                raise UserError(f"{folder}: {problem}; rename it, or choose another `out`")
    text = text or text_hash(suite)
    write_checked_json(folder / SUITE, {**described, "calibrations": hashes, "text_hash": text})
    return str(text)


def _difference(earlier: Any, now: Any) -> str:
    """The first field that differs, as `training.steps: 2, not 3`; empty if none does."""
    old, new = flatten(earlier), flatten(now)
    paths = (path for path in {**old, **new} if old.get(path) != new.get(path))
    return next((f"{path}: {old.get(path)!r}, not {new.get(path)!r}" for path in paths), "")


def _by_content(described: Mapping[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
    """The suite with descriptions for the names of models, and hashes for the names of calibration files."""
    models = described["models"]

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(part) for key, part in value.items()}
        if isinstance(value, list):
            return [replaced(part) for part in value]
        return f"a file with SHA-256 {hashes[value]}" if isinstance(value, str) and value in hashes else value

    def content(part: Mapping[str, Any]) -> dict[str, Any]:
        model = part["model"]
        description = models.get(model, model) if isinstance(model, str) else model
        return {**part, "model": replaced(description), "set": replaced(part.get("set"))}

    return {**content(described), "runs": [content(run) for run in described["runs"]]}


def check_calibrations(suite: Suite, out: Path, origin: str) -> None:
    """`UserError` naming the run, the field and the calibration file that cannot be read or do not fit.

    Two kinds of files may be missing: those that an earlier run will have made by then, and those of runs that have
    begun with every seed, whose checkpoints hold the calibration.
    """
    seed, made = suite.seeds[0], set[Path]()
    for run in suite.runs:
        where = f"{origin}: runs: {run.name}"
        model = suite.run_spec(run, seed, Path("data")).model
        source = model.initialization.calibration
        file = calibration_file(source)
        begun = all(
            checkpoint_steps(folder / CHECKPOINTS) or finished_summary(folder) is not None
            for folder in (suite.run_folder(out, run, seed) for seed in suite.seeds)
        )
        if file is None or file.exists() or not (file.resolve() in made or begun):
            named = [field for field, value in run.set.items() if value == source]
            field_name = f"set: {named[0]}" if named else "model.initialization.calibration"
            check_calibration(model, f"{where}: {field_name}")
        if run.calibration_of is not None:
            teacher = suite.run(run.calibration_of)
            where = f"{where}: calibration_of: {teacher.name}"
            try:
                model = suite.run_spec(run, seed, Path("data"), Path("calibration.safetensors")).model
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            check_calibration_fits(suite.run_spec(teacher, seed, Path("data")).model, model, where)
            made.add(suite.calibration_file(out, teacher, seed).resolve())


def passed_calibration(suite: Suite, out: Path, job: Job) -> Path | None:
    """The calibration file that a run takes from another, which has been trained; None if it takes none.

    It is inferred from the empty prompt, the end token alone.
    """
    run = suite.run(job.run)
    if run.calibration_of is None:
        return None
    teacher = suite.run(run.calibration_of)
    path = suite.calibration_file(out, teacher, job.seed)
    if not path.exists():
        model = RunFolder(suite.run_folder(out, teacher, job.seed)).model
        end = Tokenizer.load(model / TOKENIZER).end_id
        save_calibration(load_decoder(model), torch.tensor([[end]]), str(path))
    return path


@dataclass
class _SuiteRun:
    """The state of one call of `run_suite`. rows: the results so far, by run, seed and measure; earlier: those of
    earlier calls in the same folder.
    """

    suite: Suite
    out: Path
    runner: Runner
    text: str
    executor: Executor
    record: ResultTable | None
    earlier: dict[RowKey, ResultRow]
    rows: dict[RowKey, ResultRow] = field(default_factory=dict)

    def run(self) -> Findings:
        suite, steps = self.suite, dict[str, int]()
        if suite.measures.training_speed is not None or suite.equal_time_as is not None:
            specs = self._specs()
            step_s = self.step_seconds(specs)
            # The reference's training is that of another suite; each other run gets as many steps as fit into its time.
            if (reference := suite.equal_time_as) is not None:
                others = {name: spec.steps for name, spec in specs.items() if name != reference}
                steps = {name: round(count * step_s[reference] / step_s[name]) for name, count in others.items()}
        # Whole seeds first: an interrupted suite has results of all runs for its first seeds.
        jobs = [Job(run=run.name, seed=seed, steps=steps.get(run.name)) for seed in suite.seeds for run in suite.runs]
        self._execute([job for job in jobs if job.run != suite.equal_time_as])
        if suite.more_seeds is not None:
            self._execute([Job(run=name, seed=seed) for seed in suite.more_seeds.seeds for name in self._best_runs()])
        self._save()
        findings = summarize_suite(suite, list(self.rows.values()))
        curves_plot(findings.runs, findings.name).write(self.out / CURVES)
        if suite.measures.ngram is not None:
            self._measure_ngram(suite.measures.ngram.order)
        if suite.measures.decoding_speed is not None:
            self._measure_decoding(self._specs())
        self._measure_models()
        write_rows(self.out / RESULTS, self.rows.values())
        return summarize_suite(suite, list(self.rows.values()))

    def _specs(self) -> dict[str, RunSpec]:
        """The training of each run with the first seed, by name."""
        suite, data = self.suite, self.suite.data_folders(self.out)[0]
        return {run.name: suite.run_spec(run, suite.seeds[0], data).resolved() for run in suite.runs}

    def _save(self) -> None:
        """Write the results so far, with those of earlier calls that this one has not come to yet."""
        write_rows(self.out / RESULTS, {**self.earlier, **self.rows}.values())

    def _add(self, rows: Sequence[ResultRow]) -> None:
        self.rows |= {(row.run, row.seed, row.measure): row for row in rows}
        if self.record is not None:
            self.record.add(rows)

    def _known(self, run: str, seed: int, measure: str, inputs: Mapping[str, str]) -> ResultRow | None:
        """A result of an earlier call, in the record or in this folder, that was made with these inputs."""
        recorded = None if self.record is None else self.record.find(self.suite.name, run, seed, measure)
        for row in (recorded, self.earlier.get((run, seed, measure))):
            if row is not None and row.outdated_by(inputs) is None:
                return row
        return None

    def _execute(self, jobs: Sequence[Job]) -> None:
        """Carry out the jobs that the record does not have; add their rows."""
        if self.record is not None:
            jobs = [job for job in jobs if not self._take_from_record(job)]
            self.runner.log(f"{self.suite.name}: {len(jobs)} to train; {len(self.rows)} rows are in the record")
        context = JobContext(
            self.suite, self.out, self.runner, self.text, lambda job: passed_calibration(self.suite, self.out, job)
        )
        rest = list(jobs)
        while rest:
            if isinstance(self.executor, InProcessExecutor):
                group = rest[:1]  # in order, so that an interrupted suite has whole seeds
            else:  # those whose teachers are trained may run at the same time
                names = {(job.run, job.seed) for job in rest}
                group = [job for job in rest if (self.suite.run(job.run).calibration_of, job.seed) not in names]
            rest = [job for job in rest if job not in group]
            ready = [job for job in group if not self._skip_without_teacher(job)]
            try:
                self.executor.run(ready, context)
            finally:  # where workers were stopped, there are rows of the jobs that are complete
                for job in ready:
                    rows = read_rows(self.suite.run_folder(self.out, self.suite.run(job.run), job.seed) / RESULTS)
                    if job.steps is not None:
                        rows = [row.model_copy(update={"values": {**row.values, "steps": job.steps}}) for row in rows]
                    self._add(rows)

    def _skip_without_teacher(self, job: Job) -> bool:
        """Add a row for a job whose teacher (the run that it takes its calibration from) has no result."""
        teacher = self.suite.run(job.run).calibration_of
        found = None if teacher is None else self.rows[teacher, job.seed, TRAINING]
        if found is None or found.status == "measured":
            return False
        why = "it was not trained" if found.status == "skipped" else "it diverged"
        reason = f"the calibration of {teacher} is missing: {why}"
        self.runner.log(f"{job_title(self.suite, job)}: not trained: {reason}")
        about = {"suite": self.suite.name, "run": job.run, "seed": job.seed, "origin": origin()}
        self._add([ResultRow(**about, measure=TRAINING, status="skipped", values={"reason": reason})])
        return True

    def _take_from_record(self, job: Job) -> bool:
        """Take the rows of a job from the record, if they were made with the same inputs; log why not."""
        assert self.record is not None
        name, text = self.suite.name, self.suite.text
        needed = LIKELIHOOD if self.suite.measures.name_recall is None else NAME_RECALL
        needed = ABILITY if text is not None and text.ability is not None else needed
        found = self.record.find(name, job.run, job.seed, needed)
        inputs = inputs_of(job_spec(self.suite, self.out, job.model_copy(update={"steps": None})), self.text)
        reason = "missing" if found is None else found.outdated_by(inputs)
        before = None if found is None else found.values.get("steps")
        if reason is None and job.steps is not None and before is not None:
            ratio = max(job.steps, before) / min(job.steps, before)
            reason = f"{before} steps then, {job.steps} by measured times" if ratio > STEPS_TOLERANCE else None
        if reason is not None:
            self.runner.log(f"{name}: {job_title(self.suite, job)}: {reason}")
            return False
        rows = [row for row in self.record.rows.values() if row.key[:3] == (name, job.run, job.seed)]
        self.rows |= {(row.run, row.seed, row.measure): row for row in rows}
        return True

    def _best_runs(self) -> list[str]:
        """The best runs by the first seed, and those that have further seeds already."""
        assert self.suite.more_seeds is not None
        seed, rows = self.suite.seeds[0], self.rows
        rated = [
            (row.values["bits_per_byte"], run) for (run, s, m), row in rows.items() if (s, m) == (seed, LIKELIHOOD)
        ]
        best = {run for _, run in sorted(rated)[: self.suite.more_seeds.best]}
        recorded = [] if self.record is None else self.record.of(self.suite.name, LIKELIHOOD)
        best |= {row.run for row in recorded if row.seed != seed}
        return [run for _, run in rated if run in best]

    def step_seconds(self, runs: Mapping[str, RunSpec]) -> dict[str, float]:
        """Seconds of a training step of each run: from an earlier call, or measured now if any is missing there."""
        inputs = {name: training_speed_inputs(run) for name, run in runs.items()}
        rows = self._speeds(TRAINING_SPEED, "the time of a step", inputs, lambda: training_speeds(runs))
        return {name: float(row.values["step_s"]) for name, row in rows.items()}

    def _measure_decoding(self, runs: Mapping[str, RunSpec]) -> None:
        """Add the speed of decoding of each run: of an earlier call, or measured now if any is missing there."""
        inputs = {name: decoding_speed_inputs(run) for name, run in runs.items()}
        data = self.suite.data_folders(self.out)[0]
        self._speeds(DECODING_SPEED, "the speed of decoding", inputs, lambda: decoding_speeds(runs, data))

    def _speeds(
        self,
        measure: str,
        title: str,
        inputs: Mapping[str, dict[str, str]],
        measured: Callable[[], Mapping[str, dict[str, float]]],
    ) -> dict[str, ResultRow]:
        """Add the rows of a speed, by run: those of earlier calls, or of all runs measured now if any is missing there.

        Speeds of the same runs in other suites serve as well.
        """
        recorded = [] if self.record is None else list(self.record.rows.values())
        known = {
            row.run: row
            for row in (*self.earlier.values(), *recorded)
            if row.measure == measure and row.run in inputs and row.outdated_by(inputs[row.run]) is None
        }
        if known.keys() != inputs.keys():
            self.runner.log(f"measuring {title} of every run")
            about: dict[str, Any] = {"suite": self.suite.name, "seed": self.suite.seeds[0], "origin": origin()}
            known = {
                name: ResultRow(**about, run=name, measure=measure, values=values, inputs=inputs[name])
                for name, values in measured().items()
            }
        self._add(list(known.values()))
        self._save()  # the next call takes these, and trains for the same number of steps
        return known

    def _measure_ngram(self, order: int) -> None:
        """Add the bits per byte of an n-gram model that counts all of the training text, beside the runs."""
        inputs, seed = {"text": self.text, "order": hash_of(order)}, 0
        row = self._known(NGRAM, seed, LIKELIHOOD, inputs)
        if row is None:
            data, model = self.suite.data_folders(self.out)[0], self.out / f"{NGRAM}-{order}"
            self.runner.log(f"counting n-grams up to order {order}")
            if not model.exists():
                train_ngram(data, model, order, self.runner.command)
            bits = evaluate_ngram(model, data, "validation").to_dict()["bits_per_byte"]
            row = ResultRow(
                suite=self.suite.name, run=NGRAM, seed=seed, measure=LIKELIHOOD,
                values={"bits_per_byte": bits, "order": order}, inputs=inputs, origin=origin(),
            )  # fmt: skip
        self._add([row])
        self._save()

    def _measure_models(self) -> None:
        """Measure the models of the first seed of each shown run that was trained to its end, one measure at a time.

        The results of an earlier call are kept if weights and settings are the same; of speeds, which are compared with
        each other, for all models or for none.
        """
        chosen: dict[str, ResultRow] = {}
        for run in (run for run in self.suite.runs if run.shown):
            trained = [self.rows.get((run.name, seed, TRAINING)) for seed in self.suite.seeds]
            first = next((row for row in trained if row is not None and row.status == "measured"), None)
            chosen |= {} if first is None else {run.name: first}
        models: dict[str, LanguageModel] = {}
        for measure in (name for name in ModelMeasures.model_fields if name != "seed"):
            settings = getattr(self.suite.measures, measure)
            if settings is None:
                continue
            setting = hash_of(settings.model_dump(mode="json"))
            inputs = {run: {"weights": row.inputs["weights"], "measure": setting} for run, row in chosen.items()}
            found = {run: self._known(run, row.seed, measure, inputs[run]) for run, row in chosen.items()}
            rows = {run: row for run, row in found.items() if row is not None}
            if measure == SPEED and len(rows) < len(chosen):
                rows = {}
            if missing := {run: row.seed for run, row in chosen.items() if run not in rows}:
                self.runner.log(f"measuring {measure} of the models of the first seed")
                self._load(models, missing)
                rows |= self._measured(Measures(**{measure: settings}), measure, models, missing, inputs)
            self._add([rows[run] for run in chosen])
            self._save()

    def _load(self, models: dict[str, LanguageModel], seeds: Mapping[str, int]) -> None:
        """Add the models of runs that are not there yet."""
        options = ModelOptions(device=self.suite.training.get("device", "auto"))
        for run, seed in seeds.items():
            if run not in models:
                models[run] = options.load(self.suite.run_folder(self.out, self.suite.run(run), seed))

    def _measured(
        self,
        measures: Measures,
        measure: str,
        models: Mapping[str, LanguageModel],
        seeds: Mapping[str, int],
        inputs: Mapping[str, dict[str, str]],
    ) -> dict[str, ResultRow]:
        """Rows of one measure of the runs of `seeds`."""
        start_s = time.monotonic()
        found = measure_models({run: models[run] for run in seeds}, measures)
        about: dict[str, Any] = {"suite": self.suite.name, "measure": measure}
        about["origin"] = {**origin(), "seconds": time.monotonic() - start_s}
        rows = {}
        for run, one in found.items():
            values = {"result": one.model_dump(mode="json")[measure]}
            rows[run] = ResultRow(**about, run=run, seed=seeds[run], values=values, inputs=inputs[run])
        return rows


def training_speed_inputs(run: RunSpec) -> dict[str, str]:
    """Hashes of what the time of a training step depends on besides the machine."""
    training = run.resolved().training.model_dump(mode="json")
    step = {name: training[name] for name in STEP_FIELDS} | {"optimizer": training["optimizer"]["kind"]}
    return {"model": description_hash(run.model), "step": hash_of(step)}


def decoding_speed_inputs(run: RunSpec) -> dict[str, str]:
    """The hash of what the speed of decoding depends on besides the machine."""
    return {"model": description_hash(run.model)}


def training_speeds(runs: Mapping[str, RunSpec]) -> dict[str, dict[str, float]]:
    """Seconds of a training step and training tokens per second, with random weights: medians, the runs in turn.

    Rows that were recorded when decoding was a part of this measure have `decode_tokens_per_s` as well, which nothing
    reads: compiled steps have made it several times as fast since.
    """
    steps = {name: training_step(run.model, run.training, run.training.batch_size) for name, run in runs.items()}
    step_s = seconds_in_turn(steps)
    tokens = {name: run.training.batch_size * run.model.context_length for name, run in runs.items()}
    return {name: {"step_s": own, "training_tokens_per_s": tokens[name] / own} for name, own in step_s.items()}


def decoding_speeds(runs: Mapping[str, RunSpec], data: Path) -> dict[str, dict[str, float]]:
    """Decoded tokens per second of one stream, with random weights: medians, the runs in turn (`decode_speeds`)."""
    tokenizer = Tokenizer.load(data / TOKENIZER)
    models = [LanguageModel(Decoder(run.model).eval(), tokenizer) for run in runs.values()]
    tokens = tokens_with_room(models, DECODED_PROMPT)
    speeds = decode_speeds(models, DECODED_PROMPT, Sampling(temperature=0.0), tokens)
    return {name: {"decode_tokens_per_s": speed} for name, speed in zip(runs, speeds, strict=True)}


def summarize_suite(suite: Suite, rows: Sequence[ResultRow]) -> Findings:
    """The runs of a suite that are shown, by its rows."""
    shown = [run.name for run in suite.runs if run.shown]
    return summarize(suite.name, rows, shown, suite.measures.likelihood == "recorded")


def check_finished(suite: Suite, rows: Sequence[ResultRow], folder: Path) -> None:
    """`UserError` naming the first run and seed that has no result."""
    known = {(row.run, row.seed) for row in rows if row.measure == TRAINING}
    for run in suite.runs:
        for seed in suite.seeds:
            if run.shown and (run.name, seed) not in known and not (suite.equal_time_as == run.name):
                raise UserError(
                    f"{folder}: the suite is not finished ({run.name}, seed {seed});"
                    " go on with it by the same command that began it"
                )
