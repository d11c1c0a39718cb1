"""Carrying a comparison out: prepare the text, train every run with every seed, evaluate all alike."""

from pathlib import Path

from linnet.core.files import write_json
from linnet.evaluation.folder import evaluate_folder
from linnet.experiments.comparison.claim import claim
from linnet.experiments.comparison.figures import (
    Breakdown,
    ComparedFigures,
    Findings,
    Outcome,
    validation_curve,
)
from linnet.experiments.comparison.given import check_operators
from linnet.experiments.comparison.layout import CURVES, DATA, FIGURES
from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.plot import draw
from linnet.experiments.comparison.runs import Runs
from linnet.experiments.comparison.spec import ComparedSpec, ComparisonSpec
from linnet.experiments.runner import Runner, Say
from linnet.training.loop import RunResult


def compare(
    spec: ComparisonSpec, out: str | Path, say: Say, command: str | None = None, origin: str = "comparison"
) -> Findings:
    """Train and evaluate; write `comparison.json` and `curves.png` into `out`. What is there already is not made again.

    A run that diverges is part of what is found. `say` hears of what begins. Raises `UserError` (where it is of the
    description, with `origin` in front) and `ExperimentStopped`.
    """
    folder = Path(out)
    check_operators(spec, folder, origin)
    claim(spec, folder, origin)
    say("preparing the text")
    runs = Runs(spec, prepare_parts(spec, folder / DATA, origin), folder, Runner(say, command))
    runs.train_all()
    say("evaluating all on the whole validation split")
    findings = Findings(
        spec.name,
        [_figures(run, runs) for run in spec.runs if run.shown],
        [result for result in runs.results.values() if isinstance(result, Breakdown)],
    )
    write_json(folder / FIGURES, findings.plain())
    draw(findings.runs, folder / CURVES, spec.name)
    return findings


def _figures(run: ComparedSpec, runs: Runs) -> ComparedFigures:
    results = [runs.results[run.name, seed] for seed in runs.spec.seeds]
    trained = [result for result in results if isinstance(result, RunResult)]
    outcomes = [
        Outcome(
            result.summary["seed"],
            evaluate_folder(result.folder, runs.parts[run.part - 1]),
            validation_curve(result.folder),
        )
        for result in trained
    ]
    parameters, tokens = (trained[0].summary[name] if trained else None for name in ("parameters", "tokens"))
    lost = [result for result in results if isinstance(result, Breakdown)]
    return ComparedFigures(run.name, parameters, tokens, outcomes, lost)
