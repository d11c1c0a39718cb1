"""Carrying a comparison out: prepare the text, train every run with every seed, evaluate all alike."""

from collections.abc import Callable
from pathlib import Path

import torch

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.comparison.claim import claim
from linnet.evaluation.comparison.figures import ComparedFigures, CurvePoint, Outcome
from linnet.evaluation.comparison.given import check_operators
from linnet.evaluation.comparison.layout import CURVES, DATA, FIGURES, run_folder, taught_file
from linnet.evaluation.comparison.plot import draw
from linnet.evaluation.comparison.spec import ComparedSpec, ComparisonSpec
from linnet.evaluation.comparison.text import prepare_parts
from linnet.evaluation.folder import evaluate_folder
from linnet.files import write_json
from linnet.model.deductive import operators
from linnet.model.folder import TOKENIZER, load_decoder
from linnet.model.operator_file import save_operators
from linnet.training.bar_watch import model_watch
from linnet.training.loop import RunResult, train
from linnet.training.record import RunFolder

Say = Callable[[str], None]


class ComparisonStopped(Exception):  # noqa: N818 - not an error: somebody asked for it
    """Training was asked to stop, and saved."""


def compare(
    spec: ComparisonSpec, out: str | Path, say: Say, command: str | None = None, origin: str = "comparison"
) -> list[ComparedFigures]:
    """Train and evaluate; write `comparison.json` and `curves.png` into `out`. What is there already is not made again.

    Seeds are the outer loop: an interrupted comparison has whole seeds. `say` hears of what begins. Raises `UserError`
    (where it is of the description, with `origin` in front), `ComparisonStopped`, and `BrokenDownError` where a loss is
    not finite.
    """
    folder = Path(out)
    check_operators(spec, folder, origin)
    claim(spec, folder)
    say("preparing the text")
    parts = prepare_parts(spec, folder / DATA)
    results: dict[str, list[RunResult]] = {run.name: [] for run in spec.runs}
    for seed in spec.seeds:
        for run in spec.runs:
            results[run.name].append(_train(spec, run, seed, parts, folder, command))
    say("evaluating all on the whole validation split")
    figures = [_figures(spec, run, results[run.name], parts) for run in spec.runs if run.shown]
    write_json(folder / FIGURES, {"name": spec.name, "runs": [one.plain() for one in figures]})
    draw(figures, folder / CURVES, spec.name)
    return figures


def _train(
    spec: ComparisonSpec, run: ComparedSpec, seed: int, parts: list[Path], out: Path, command: str | None
) -> RunResult:
    taught = None
    if run.operator_of is not None:
        teacher = spec.run(run.operator_of)
        taught = taught_file(out, teacher, seed)
        if not taught.exists():
            save_inferred(run_folder(out, teacher, seed) / "model", taught)
    described = spec.run_of(run, seed, parts[run.part - 1], taught)
    with model_watch(f"{run.name}, seed {seed}", described.steps) as watch:
        result = train(described, run_folder(out, run, seed), watch, command=command)
    if not result.finished:
        raise ComparisonStopped(f"stopped at step {result.summary['step']} of {described.steps} of {run.name}")
    return result


def save_inferred(model: Path, path: Path) -> None:
    """Infer a model's operators from the empty prompt, the end token alone, and save them."""
    end = Tokenizer.load(model / TOKENIZER).end_id
    save_operators(operators(load_decoder(model), torch.tensor([[end]])), path)


def _figures(spec: ComparisonSpec, run: ComparedSpec, results: list[RunResult], parts: list[Path]) -> ComparedFigures:
    outcomes = [
        Outcome(seed, evaluate_folder(result.folder, parts[run.part - 1]), _curve(result.folder))
        for seed, result in zip(spec.seeds, results, strict=True)
    ]
    summary = results[0].summary
    return ComparedFigures(run.name, summary["parameters"], summary["tokens"], outcomes)


def _curve(folder: Path) -> list[CurvePoint]:
    lines = [line for line in RunFolder(folder).metrics.read() if "validation" in line]
    return [
        CurvePoint(line["step"], line["validation"]["nats_per_token"], line["validation"]["accuracy"]) for line in lines
    ]
