"""Carrying a comparison out: prepare the text, train every run with every seed, evaluate all alike.

A run that diverges is recorded, and the others go on.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from linnet.evaluation.models import ModelOptions
from linnet.evaluation.text import evaluate_folder
from linnet.experiments.comparison.abilities import ability_figures
from linnet.experiments.comparison.claim import claim
from linnet.experiments.comparison.figures import Breakdown, ComparedFigures, Findings, validation_curve
from linnet.experiments.comparison.given import check_calibrations, taught_calibration
from linnet.experiments.comparison.output import write_findings
from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.spec import DATA, ComparedSpec, ComparisonSpec, run_folder
from linnet.experiments.runner import Diverged, Planned, Runner
from linnet.experiments.side_by_side.measure import measure_beside
from linnet.experiments.side_by_side.record import Beside
from linnet.training.run import RunResult
from linnet.training.run_folder import RunFolder
from linnet.training.runs import read_run_folder


@dataclass(frozen=True)
class Runs:
    """The runs of a comparison in its folder; `results` holds what became of those that had their turn."""

    spec: ComparisonSpec
    parts: list[Path]
    out: Path
    runner: Runner
    results: dict[tuple[str, int], RunResult | Breakdown] = field(default_factory=dict)

    def train_all(self) -> None:
        """Train every run with every seed, the seeds one by one: an interrupted comparison has whole seeds.

        `UserError`; `ExperimentStopped` where it was asked to stop.
        """
        for seed in self.spec.seeds:
            for run in self.spec.runs:
                self.results[run.name, seed] = self._without_teacher(run, seed) or self._trained(run, seed)

    def _without_teacher(self, run: ComparedSpec, seed: int) -> Breakdown | None:
        teacher = None if run.calibration_of is None else self.results[run.calibration_of, seed]
        if not isinstance(teacher, Breakdown):
            return None
        what = "it was not trained" if teacher.step is None else "it diverged"
        missing = Breakdown(run.name, seed, None, f"there is no calibration of {teacher.run}: {what}")
        self.runner.say(str(missing))
        return missing

    def _trained(self, run: ComparedSpec, seed: int) -> RunResult | Breakdown:
        folder = run_folder(self.out, run, seed)
        taught = taught_calibration(self.spec, run, seed, self.out)
        described = self.spec.run_of(run, seed, self.parts[run.part - 1], taught)
        result = self.runner.attempt(Planned(f"{run.name}, seed {seed}", folder, described))
        if isinstance(result, Diverged):
            curve = validation_curve(RunFolder(folder).metrics.read())
            return Breakdown(run.name, seed, result.step, result.reason, curve)
        return result


def compare(spec: ComparisonSpec, out: str | Path, runner: Runner, origin: str = "comparison") -> Findings:
    """Train and evaluate; write `comparison.json` and `curves.png` into `out`. What is there already is not made again.

    A run that diverges is part of what is found. Raises `UserError` (where it is of the description, with `origin` in
    front) and `ExperimentStopped`.
    """
    folder = Path(out)
    check_calibrations(spec, folder, origin)
    if spec.evaluate is not None:
        spec.evaluate.check(f"{origin}: evaluate")
    claim(spec, folder, origin)
    runner.say("preparing the text")
    runs = Runs(spec, prepare_parts(spec, folder / DATA, origin, runner.say), folder, runner)
    runs.train_all()
    runner.say("evaluating all on the whole validation split")
    figures = {run.name: _figures(run, runs) for run in spec.runs if run.shown}
    lost = [result for result in runs.results.values() if isinstance(result, Breakdown)]
    findings = Findings(spec.name, [*figures.values()], lost)
    write_findings(findings, folder)
    if beside := _beside(runs):  # after what was trained for is safe: questions can turn out not to fit
        told = [replace(of_run, beside=beside.get(name)) for name, of_run in figures.items()]
        write_findings(findings := Findings(spec.name, told, lost), folder)
    return findings


def _beside(runs: Runs) -> dict[str, Beside]:
    """What is wanted beside the likelihood, of each shown run's model of the first seed that was trained to the end."""
    if runs.spec.evaluate is None:
        return {}
    chosen: dict[str, tuple[int, Path]] = {}
    for run in (run for run in runs.spec.runs if run.shown):
        for seed in reversed(runs.spec.seeds):
            if isinstance(result := runs.results[run.name, seed], RunResult):
                chosen[run.name] = (seed, result.folder)
    if not chosen:
        return {}
    runs.runner.say("measuring what `evaluate` wants beside")
    found = measure_beside({name: folder for name, (_, folder) in chosen.items()}, runs.spec.evaluate, ModelOptions())
    return {name: one.model_copy(update={"seed": chosen[name][0]}) for name, one in found.items()}


def _figures(run: ComparedSpec, runs: Runs) -> ComparedFigures:
    results = [runs.results[run.name, seed] for seed in runs.spec.seeds]
    trained = [read_run_folder(result.folder) for result in results if isinstance(result, RunResult)]
    data, text = runs.parts[run.part - 1], runs.spec.text
    evaluations = [evaluate_folder(one.path, data).figures() for one in trained]
    if text.ability is not None:
        for one, found in zip(trained, evaluations, strict=True):
            found.update(ability_figures(text, run.part, one.path, data))
    lost = [result for result in results if isinstance(result, Breakdown)]
    return ComparedFigures.of(run.name, trained, evaluations, lost)
