"""Carrying a comparison out: prepare the text, train every run with every seed, evaluate all alike."""

from pathlib import Path

from linnet.evaluation.folder import evaluate_folder
from linnet.experiments.comparison.claim import claim
from linnet.experiments.comparison.figures import Breakdown, ComparedFigures, Findings
from linnet.experiments.comparison.given import check_operators
from linnet.experiments.comparison.layout import DATA
from linnet.experiments.comparison.output import write_findings
from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.runs import Runs
from linnet.experiments.comparison.spec import ComparedSpec, ComparisonSpec
from linnet.experiments.runner import Runner
from linnet.training.finished import read_run_folder
from linnet.training.loop import RunResult


def compare(spec: ComparisonSpec, out: str | Path, runner: Runner, origin: str = "comparison") -> Findings:
    """Train and evaluate; write `comparison.json` and `curves.png` into `out`. What is there already is not made again.

    A run that diverges is part of what is found. Raises `UserError` (where it is of the description, with `origin` in
    front) and `ExperimentStopped`.
    """
    folder = Path(out)
    check_operators(spec, folder, origin)
    claim(spec, folder, origin)
    runner.say("preparing the text")
    runs = Runs(spec, prepare_parts(spec, folder / DATA, origin), folder, runner)
    runs.train_all()
    runner.say("evaluating all on the whole validation split")
    findings = Findings(
        spec.name,
        [_figures(run, runs) for run in spec.runs if run.shown],
        [result for result in runs.results.values() if isinstance(result, Breakdown)],
    )
    write_findings(findings, folder)
    return findings


def _figures(run: ComparedSpec, runs: Runs) -> ComparedFigures:
    results = [runs.results[run.name, seed] for seed in runs.spec.seeds]
    trained = [read_run_folder(result.folder) for result in results if isinstance(result, RunResult)]
    evaluations = [evaluate_folder(one.path, runs.parts[run.part - 1]).figures() for one in trained]
    lost = [result for result in results if isinstance(result, Breakdown)]
    return ComparedFigures.of(run.name, trained, evaluations, lost)
