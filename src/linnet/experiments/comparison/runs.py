"""The runs of a comparison, each with every seed; one that diverges is recorded, and the others go on."""

from dataclasses import dataclass, field
from pathlib import Path

from linnet.experiments.comparison.figures import Breakdown, validation_curve
from linnet.experiments.comparison.given import taught_operators
from linnet.experiments.comparison.layout import run_folder
from linnet.experiments.comparison.spec import ComparedSpec, ComparisonSpec
from linnet.experiments.runner import Diverged, Planned, Runner
from linnet.training.loop import RunResult
from linnet.training.record import RunFolder


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
        teacher = None if run.operator_of is None else self.results[run.operator_of, seed]
        if not isinstance(teacher, Breakdown):
            return None
        what = "it was not trained" if teacher.step is None else "it diverged"
        missing = Breakdown(run.name, seed, None, f"there are no operators of {teacher.run}: {what}")
        self.runner.say(str(missing))
        return missing

    def _trained(self, run: ComparedSpec, seed: int) -> RunResult | Breakdown:
        folder = run_folder(self.out, run, seed)
        taught = taught_operators(self.spec, run, seed, self.out)
        described = self.spec.run_of(run, seed, self.parts[run.part - 1], taught)
        result = self.runner.attempt(Planned(f"{run.name}, seed {seed}", folder, described))
        if isinstance(result, Diverged):
            curve = validation_curve(RunFolder(folder).metrics.read())
            return Breakdown(run.name, seed, result.step, result.reason, curve)
        return result
