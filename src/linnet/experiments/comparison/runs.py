"""Training the runs of a comparison; one that diverges is recorded, and the others go on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import PositiveInt

from linnet.core.files import read_json, write_json
from linnet.core.spec import Spec
from linnet.data.shards import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.comparison.figures import Breakdown, CurvePoint
from linnet.experiments.comparison.layout import run_folder, taught_file
from linnet.experiments.comparison.spec import ComparedSpec, ComparisonSpec
from linnet.model.deductive import operators
from linnet.model.operator_file import save_operators
from linnet.model.store import TOKENIZER, load_decoder
from linnet.training.bar_watch import model_watch
from linnet.training.loop import BrokenDownError, RunResult, fitted, train
from linnet.training.record import DIVERGED, RunFolder
from linnet.training.spec import RunSpec
from linnet.training.watch import Watch

Say = Callable[[str], None]


class ComparisonStopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """Training was asked to stop, and saved."""


class DivergedRecord(Spec):
    """What `diverged.json` holds: the step at which training stopped, and what was measured there."""

    step: PositiveInt
    reason: str


@dataclass(frozen=True)
class Runs:
    """The runs of a comparison in its folder; `results` holds what became of those that had their turn."""

    spec: ComparisonSpec
    parts: list[Path]
    out: Path
    say: Say
    command: str | None
    results: dict[tuple[str, int], RunResult | Breakdown] = field(default_factory=dict)

    def train(self, run: ComparedSpec, seed: int) -> None:
        """Train a run with a seed, unless it is finished, has diverged before, or lacks the operators of another run.

        Runs that it depends on have had their turn. `UserError`; `ComparisonStopped` where it was asked to stop.
        """
        result: RunResult | Breakdown | None = self._without_teacher(run, seed)
        if result is None:
            described = self._described(run, seed)
            result = self._diverged_before(run, seed, described) or self._train(run, seed, described)
        self.results[run.name, seed] = result

    def _without_teacher(self, run: ComparedSpec, seed: int) -> Breakdown | None:
        teacher = None if run.operator_of is None else self.results[run.operator_of, seed]
        if not isinstance(teacher, Breakdown):
            return None
        what = "it was not trained" if teacher.step is None else "it diverged"
        missing = Breakdown(run.name, seed, None, f"there are no operators of {teacher.run}: {what}")
        self.say(str(missing))
        return missing

    def _described(self, run: ComparedSpec, seed: int) -> RunSpec:
        taught = None
        if run.operator_of is not None:
            teacher = self.spec.run(run.operator_of)
            taught = taught_file(self.out, teacher, seed)
            if not taught.exists():
                save_inferred(run_folder(self.out, teacher, seed) / "model", taught)
        return self.spec.run_of(run, seed, self.parts[run.part - 1], taught)

    def _diverged_before(self, run: ComparedSpec, seed: int, described: RunSpec) -> Breakdown | None:
        folder = RunFolder(run_folder(self.out, run, seed))
        if not (folder.path / DIVERGED).is_file() or folder.finished() is not None:
            return None
        folder.check(fitted(described, TokenData.open(described.data), Watch()))
        breakdown = self._breakdown(run, seed)
        self.say(f"{breakdown}; not trained again (remove {folder.path} to train it anew)")
        return breakdown

    def _train(self, run: ComparedSpec, seed: int, described: RunSpec) -> RunResult | Breakdown:
        folder = run_folder(self.out, run, seed)
        try:
            with model_watch(f"{run.name}, seed {seed}", described.steps) as watch:
                result = train(described, folder, watch, command=self.command)
        except BrokenDownError as error:
            write_json(folder / DIVERGED, DivergedRecord(step=error.step, reason=error.reason).model_dump())
            breakdown = self._breakdown(run, seed)
            self.say(str(breakdown))
            return breakdown
        if not result.finished:
            raise ComparisonStopped(f"stopped at step {result.summary['step']} of {described.steps} of {run.name}")
        return result

    def _breakdown(self, run: ComparedSpec, seed: int) -> Breakdown:
        folder = run_folder(self.out, run, seed)
        record = DivergedRecord.parse(read_json(folder / DIVERGED), str(folder / DIVERGED))
        return Breakdown(run.name, seed, record.step, record.reason, validation_curve(folder))


def save_inferred(model: Path, path: Path) -> None:
    """Infer a model's operators from the empty prompt, the end token alone, and save them."""
    end = Tokenizer.load(model / TOKENIZER).end_id
    save_operators(operators(load_decoder(model), torch.tensor([[end]])), path)


def validation_curve(folder: Path) -> list[CurvePoint]:
    """The evaluations of a run while it was trained."""
    lines = [line for line in RunFolder(folder).metrics.read() if "validation" in line]
    return [
        CurvePoint(line["step"], line["validation"]["nats_per_token"], line["validation"]["accuracy"]) for line in lines
    ]
