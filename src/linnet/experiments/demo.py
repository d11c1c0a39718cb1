"""The demo: a suite of three tiny models on the same stories, measured and shown on one page, in minutes."""

import lzma
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from linnet.core.atomic import is_leftover
from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError
from linnet.core.system import resolve_device
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.experiments.data import prepare_data
from linnet.experiments.demo_report import (
    LONG_TOKENS,
    SHORT_TOKENS,
    CorpusFigures,
    DemoFigures,
    ModelFigures,
    Point,
)
from linnet.experiments.jobs import Log, Runner
from linnet.experiments.measures import DecodingSpeed, MemoryFigures, WrittenText, describe_machine
from linnet.experiments.results import LIKELIHOOD, NAME_RECALL, TRAINING, ResultRow, read_rows
from linnet.experiments.run import claim, run_suite
from linnet.experiments.suite import RESULTS, SUITE, Suite
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.present.page import timestamp, write_page
from linnet.stories import names_of
from linnet.training.run_folder import DivergedError, RunFolder

# What the demo trains and how. The three models differ in their preset alone; the stories, the batches and their order,
# the number of tokens, the optimizer and its learning rate are shared. Chosen by how well names persist after a minute
# of training for each model (experiments/LOG.md).
STORIES, NAMES, VOCAB_SIZE = 6000, 3, 1024
STEPS, BATCH_SIZE = 2700, 4
LEARNING_RATE, SENSITIVE_RATE = 4e-3, 8e-5
WARMUP_SHARE = 0.05
PROMPT = "Once upon a time"
TEMPERATURE, TOP_P = 0.4, 0.95

EVALUATIONS, LINES, VALIDATION_TOKENS = 12, 100, 8192
"""Points of a validation curve, points of a training curve, and tokens that each validation point is measured on."""

STATE_TOKENS = sorted({*(2**power for power in range(17)), SHORT_TOKENS, LONG_TOKENS})
"""Lengths of text for which the decode state is computed."""


@dataclass(frozen=True)
class Recipe:
    """One model of the demo. key: its folder; idea: how it makes use of earlier text, for people."""

    key: str
    title: str
    preset: str
    idea: str


RECIPES = (
    Recipe(
        key="attention",
        title="attention",
        preset="tiny-attention",
        idea="compares a query with the key of every earlier token, and takes most from those that match best.",
    ),
    Recipe(
        key="pldr",
        title="PLDR-LLM",
        preset="tiny-pldr",
        idea="is attention through an operator that a small net deduces from the text; once deduced from the prompt,"
        " the operator is kept and the net is not run again.",
    ),
    Recipe(
        key="ted",
        title="TED",
        preset="tiny-ted",
        idea="compares nothing: every token leaves a quantity that fades at a rate that it chose itself.",
    ),
)


@dataclass(frozen=True)
class Options:
    """The user's choices; None: the recipe's number. command: how `linnet` is called; invocation: this command line."""

    out: Path
    steps: int | None = None
    seed: int = 0
    stories: int | None = None
    prompt: str = PROMPT
    device: str = "auto"
    command: str = "linnet"
    invocation: str = "linnet demo"


def demo_suite(options: Options) -> Suite:
    """The demo as a suite."""
    steps = options.steps or STEPS
    training = {
        "batch_size": BATCH_SIZE,
        "steps": steps,
        "windows": "documents",
        "optimizer": {"kind": "muon", "lr": LEARNING_RATE, "low_lr": SENSITIVE_RATE, "betas": [0.9, 0.99]},
        "schedule": {"kind": "linear", "warmup_share": WARMUP_SHARE, "final_fraction": 0.0},
        "clip": {"by": "norm", "at": 1.0},
        "device": options.device,
        "evaluate": {"every": max(1, steps // EVALUATIONS), "tokens": VALIDATION_TOKENS},
        "log": {"every": max(1, steps // LINES)},
        "checkpoint": {"every": steps, "keep": 1},
    }
    sampling = {"temperature": TEMPERATURE, "top_p": TOP_P, "seed": options.seed}
    plain = {
        "name": "demo",
        "text": {"stories": options.stories or STORIES, "names": NAMES},
        "tokenizer": {"kind": "bpe", "vocab_size": VOCAB_SIZE},
        "training": training,
        "seeds": [options.seed],
        "runs": [{"name": recipe.key, "model": recipe.preset} for recipe in RECIPES],
        "measures": {
            "name_recall": {},
            "speed": {"prompt": options.prompt, **sampling},
            "samples": {"prompts": [options.prompt], "tokens": None, **sampling},
        },
        "flat": True,
    }
    return Suite.parse(plain, "demo")


def run_demo(options: Options, log: Log) -> DemoFigures:
    """Build the corpus, train, measure; write `report.html` into the folder. Existing results are not made again.

    Raises `UserError`, `ExperimentStopped`, and `DivergedError` if a model diverges.
    """
    device, suite, out = resolve_device(options.device), demo_suite(options), options.out
    specs = [ModelSpec.load(recipe.preset) for recipe in RECIPES]
    check_folder(out)
    claim(suite, out, "demo")
    (data_folder,), before, start_s = suite.data_folders(out), time.time(), time.monotonic()
    prepare_data(suite, out, "demo")
    corpus_s = time.monotonic() - start_s
    data = TokenData.open(data_folder)
    check_prompt(options.prompt, data.tokenizer, specs[0].context_length)
    corpus = corpus_figures(data)
    made = "written" if (data_folder / MANIFEST).stat().st_mtime >= before else "reused"
    log(
        f"corpus: {numbers.grouped(corpus.train_stories)} short stories to train on,"
        f" {numbers.grouped(corpus.validation_stories)} held out, {made} ({data_folder});"
        f" {numbers.metric(corpus.train_bytes)}B of text as {numbers.metric(corpus.train_tokens)} tokens"
    )
    sizes = ", ".join(numbers.metric(model_cost(spec).parameters) for spec in specs)
    tokens = numbers.grouped(BATCH_SIZE * specs[0].context_length)
    log(f"models: {', '.join(recipe.title for recipe in RECIPES)}; {sizes} parameters; steps of {tokens} tokens")
    findings = run_suite(suite, out, Runner(log, options.invocation), "demo")
    for failure in findings.failures:
        raise DivergedError(failure.step or 0, failure.reason, None)
    rows = {(row.run, row.measure): row for row in read_rows(out / RESULTS)}
    first = RECIPES[0].key
    speed = DecodingSpeed.parse(rows[first, "speed"].values["result"], RESULTS)
    measured_s = {measure: rows[first, measure].origin["seconds"] for measure in ("speed", "samples")}
    figures = DemoFigures(
        models=[
            _model_figures(recipe, out / recipe.key, rows, spec) for recipe, spec in zip(RECIPES, specs, strict=True)
        ],
        corpus=corpus,
        context_length=specs[0].context_length,
        seed=options.seed,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        decode_tokens=speed.tokens,
        decode_runs=speed.runs,
        parts_s={"corpus": corpus_s, "decode speed": measured_s["speed"], "stories": measured_s["samples"]},
        machine=_describe_machine(device, {recipe.title: rows[recipe.key, TRAINING] for recipe in RECIPES}),
        command=options.command,
        invocation=options.invocation,
        made=timestamp(),
    )
    write_page(figures, out, options.invocation, figures.made)
    return figures


def _describe_machine(device: torch.device, trained: Mapping[str, ResultRow]) -> dict[str, str]:
    """Facts about this machine; the precision of training is measured for each model, by whose title the rows are."""
    titles: dict[str, list[str]] = {}
    for title, row in trained.items():
        titles.setdefault(row.values["precision"], []).append(title)
    machine = describe_machine(device, next(iter(titles)))
    if len(titles) > 1:
        each = " and ".join(f"{precision} ({', '.join(models)})" for precision, models in titles.items())
        machine["precision"] = f"products in training in {each}, else float32"
    return machine


def check_folder(out: Path) -> None:
    """`UserError` if `out` is a file, or holds anything but a demo."""
    accepted = "a new folder or that of a demo"
    if out.exists() and not out.is_dir():
        raise UserError("is a file", field="out", value=out, accepted=accepted)
    if out.is_dir() and not (out / SUITE).is_file() and not all(map(is_leftover, out.iterdir())):
        raise UserError(f"holds other files (no {SUITE})", field="out", value=out, accepted=accepted)


def check_prompt(prompt: str, tokenizer: Tokenizer, context_length: int) -> None:
    """`UserError` for a prompt that leaves less than half of the context for the story."""
    tokens, limit = len(tokenizer.encode(prompt)), context_length // 2
    if tokens > limit:
        shown = prompt if len(prompt) <= 40 else f"{prompt[:40]}…"
        raise UserError(f"{tokens} tokens", field="prompt", value=repr(shown), accepted=f"at most {limit}")


def corpus_figures(data: TokenData) -> CorpusFigures:
    """Size of the corpus, and bits per byte of a general compressor (xz) on the held-out text."""
    train, validation = (data.manifest.splits[split] for split in ("train", "validation"))
    sequence = data.split("validation")
    text = data.tokenizer.decode(sequence.read(0, len(sequence)).tolist()).encode()
    return CorpusFigures(
        folder=str(data.folder),
        vocab_size=data.manifest.tokenizer.vocab_size,
        names=len(names_of(NAMES)),
        train_stories=train.documents,
        train_tokens=train.tokens,
        train_bytes=train.bytes,
        validation_stories=validation.documents,
        validation_tokens=validation.tokens,
        validation_bytes=validation.bytes,
        xz_bits_per_byte=8 * len(lzma.compress(text, preset=9)) / len(text),
    )


def _model_figures(
    recipe: Recipe, folder: Path, rows: Mapping[tuple[str, str], ResultRow], spec: ModelSpec
) -> ModelFigures:
    """The figures of one model by the rows of the suite, by run and measure."""
    own = {measure: row.values for (run, measure), row in rows.items() if run == recipe.key}
    training, evaluation = own[TRAINING], own[LIKELIHOOD]
    training_curve, validation_curve = curves(RunFolder(folder).lines_to_end(training["steps"]))
    return ModelFigures(
        key=recipe.key,
        title=recipe.title,
        idea=recipe.idea,
        folder=str(folder),
        parameters=training["parameters"],
        bits_per_byte=evaluation["bits_per_byte"],
        whole_sequence_bits_per_byte=evaluation.get("whole_sequence_bits_per_byte"),
        leak=evaluation.get("leak"),
        name_recall=own[NAME_RECALL]["name_recall"]["share"],
        tokens=training["tokens"],
        training_s=training["seconds"],
        training_tokens_per_s=training["tokens_per_s"],
        decode_tokens_per_s=own["speed"]["result"]["tokens_per_s"],
        memory=MemoryFigures.from_spec(spec, STATE_TOKENS),
        training_curve=training_curve,
        validation_curve=validation_curve,
        sample=WrittenText.parse(own["samples"]["result"][0], RESULTS),
    )


def curves(lines: list[dict[str, Any]]) -> tuple[list[Point], list[Point]]:
    """Training and validation points (tokens, bits per byte) of a run's metrics."""
    training = [(line["tokens"], line["bits_per_byte"]) for line in lines]
    evaluated = [line for line in lines if "validation" in line]
    return training, [(line["tokens"], line["validation"]["bits_per_byte"]) for line in evaluated]
