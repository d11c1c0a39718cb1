"""The demo from beginning to end: corpus, three trainings, measurements, the page."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from linnet.evaluation.likelihood import Evaluation
from linnet.evaluation.measure import evaluate_split
from linnet.evaluation.models import model_on_data
from linnet.evaluation.name_recall import NameRecall, measure_name_recall
from linnet.experiments.demo import recipes
from linnet.experiments.demo.corpus import DATA, Corpus, Settings, build_corpus, claim
from linnet.experiments.demo.figures import (
    LONG_TOKENS,
    SHORT_TOKENS,
    DemoFigures,
    ModelFigures,
    Point,
    Sample,
)
from linnet.experiments.demo.measure import (
    DECODE_RUNS,
    DECODE_TOKENS,
    check_prompt,
    decode_speeds,
    describe_machine,
    write_story,
)
from linnet.experiments.demo.recipes import Recipe
from linnet.experiments.demo.report import demo_report
from linnet.experiments.runner import Planned, Runner, Say
from linnet.inference.device import resolve_device
from linnet.inference.language_model import LanguageModel, load
from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.present.page import write_page
from linnet.stories import names_of
from linnet.training.run import RunResult
from linnet.training.run_folder import RunFolder
from linnet.training.spec import RunSpec

STATE_CURVE_TOKENS = tuple(2**power for power in range(17))


@dataclass(frozen=True)
class Options:
    """What the user chose; None: the recipes' number."""

    out: Path
    steps: int | None = None
    seed: int = 0
    stories: int | None = None
    prompt: str = recipes.PROMPT
    device: str = "auto"
    command: str = "linnet"
    invocation: str = "linnet demo"


@contextmanager
def timed(parts_s: dict[str, float], name: str) -> Iterator[None]:
    """Keep the seconds that a part takes under its name."""
    start_s = time.monotonic()
    yield
    parts_s[name] = time.monotonic() - start_s


@dataclass(frozen=True)
class Trained:
    """A trained model, evaluated on the whole validation split."""

    recipe: Recipe
    run: RunResult
    evaluation: Evaluation
    names: NameRecall
    model: LanguageModel


def run_demo(options: Options, say: Say) -> DemoFigures:
    """Build, train, measure; write `report.html` into the folder. What is there already is not made again.

    `say` hears of what begins. Raises `UserError`, `ExperimentStopped`, and `DivergedError` where a loss is not
    finite.
    """
    device = resolve_device(options.device)
    plan = recipes.planned(options.steps, options.seed, options.device)
    stories = options.stories or recipes.STORIES
    assert plan[0].training.steps is not None
    claim(options.out, Settings(stories, plan[0].training.steps, options.seed))
    parts_s: dict[str, float] = {}
    with timed(parts_s, "corpus"):
        corpus = build_corpus(options.out / DATA, stories)
    check_prompt(options.prompt, corpus.tokenizer, plan[0].model.context_length)
    _introduce(corpus, say)
    runner = Runner(say, options.invocation)
    runs = [_train(recipe, corpus, options.out, runner) for recipe in plan]
    say("evaluating on the whole validation split, measuring decode speed, writing stories")
    with timed(parts_s, "evaluation"):
        trained = [_evaluate(*pair, corpus, device) for pair in zip(plan, runs, strict=True)]
    figures = _measure(trained, corpus, options, parts_s, device)
    write_page(demo_report(figures), options.out, options.invocation, figures.made)
    return figures


def _introduce(corpus: Corpus, say: Say) -> None:
    made, figures = "reused" if corpus.reused else "written", corpus.figures
    say(
        f"corpus: {numbers.grouped(figures.train_stories)} short stories to train on,"
        f" {numbers.grouped(figures.validation_stories)} held out, {made} ({corpus.folder});"
        f" {numbers.metric(figures.train_bytes)}B of text as {numbers.metric(figures.train_tokens)} tokens"
    )


def _train(recipe: Recipe, corpus: Corpus, out: Path, runner: Runner) -> RunResult:
    run = RunSpec(model=recipe.model, data=corpus.folder, training=recipe.training)
    parameters, tokens = numbers.metric(model_cost(recipe.model).parameters), numbers.grouped(recipe.tokens_per_step)
    runner.say(f"{recipe.title}: {parameters} parameters, {run.steps} steps of {tokens} tokens")
    return runner.train(Planned(recipe.title, out / recipe.key, run))


def _evaluate(recipe: Recipe, run: RunResult, corpus: Corpus, device: torch.device) -> Trained:
    name: str = "cuda" if device.type == "cuda" else "cpu"
    held_out = model_on_data(run.folder, corpus.folder, device=name)
    names = measure_name_recall(held_out, names_of(recipes.NAMES))
    return Trained(recipe, run, evaluate_split(held_out), names, load(run.folder, str(device)))


def _measure(
    trained: Sequence[Trained], corpus: Corpus, options: Options, parts_s: dict[str, float], device: torch.device
) -> DemoFigures:
    models = [one.model for one in trained]
    sampling = recipes.sampling(options.seed)
    with timed(parts_s, "decode speed"):
        speeds = decode_speeds(models, options.prompt, sampling)
    with timed(parts_s, "stories"):
        samples = [write_story(model, options.prompt, sampling) for model in models]
    return DemoFigures(
        models=[_model_figures(*each) for each in zip(trained, speeds, samples, strict=True)],
        corpus=corpus.figures,
        context_length=models[0].spec.context_length,
        seed=options.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        decode_tokens=DECODE_TOKENS,
        decode_runs=DECODE_RUNS,
        parts_s=parts_s,
        machine=describe_machine(device, trained[0].run.summary["machine"]["precision"]),
        command=options.command,
        invocation=options.invocation,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )


def _model_figures(trained: Trained, decode_tokens_per_s: float, sample: Sample) -> ModelFigures:
    recipe, summary, evaluation = trained.recipe, trained.run.summary, trained.evaluation
    cost = model_cost(trained.model.spec)
    whole = evaluation.whole_sequence
    training_curve, validation_curve = curves(RunFolder(trained.run.folder).lines_to_end(summary["step"]))
    return ModelFigures(
        key=recipe.key,
        title=recipe.title,
        idea=recipe.idea,
        folder=str(trained.run.folder),
        parameters=cost.parameters,
        bits_per_byte=evaluation.causal.bits_per_byte,
        whole_sequence_bits_per_byte=None if whole is None else whole.bits_per_byte,
        leak=evaluation.leak,
        names_kept=trained.names.share,
        tokens=summary["tokens"],
        training_s=summary["seconds"],
        training_tokens_per_s=summary["tokens_per_s"],
        decode_tokens_per_s=decode_tokens_per_s,
        state_bytes={n: cost.state_bytes(n) for n in (*STATE_CURVE_TOKENS, SHORT_TOKENS, LONG_TOKENS)},
        training_curve=training_curve,
        validation_curve=validation_curve,
        sample=sample,
    )


def curves(lines: list[dict[str, Any]]) -> tuple[list[Point], list[Point]]:
    """Training and validation points (tokens, bits per byte) of a run's lines of figures."""
    training = [(line["tokens"], line["bits_per_byte"]) for line in lines]
    evaluated = [line for line in lines if "validation" in line]
    return training, [(line["tokens"], line["validation"]["bits_per_byte"]) for line in evaluated]
