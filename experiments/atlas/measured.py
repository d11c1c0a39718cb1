"""What the trainings do not tell: speed, bytes of state, names that persist, and what counting n-grams reaches."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from record import Record
from trainings import Text, common, models_of, runs_of

from linnet.core.errors import UserError
from linnet.data.loader import Batches
from linnet.data.shards import TokenData
from linnet.evaluation.folder import model_on_data
from linnet.evaluation.names import names_kept
from linnet.experiments.comparison.parts import prepare_parts
from linnet.experiments.comparison.spec import DATA, ComparisonSpec
from linnet.experiments.demo.measure import decode_speeds, describe_machine
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.stories.casting import names_of
from linnet.training.ngram.interface import evaluate_ngram, train_ngram
from linnet.training.objective import next_token_loss
from linnet.training.optimisers.optimiser import build_optimiser
from linnet.training.parallel import Parallel
from linnet.training.record.finished import read_run_folder
from linnet.training.spec import RunSpec
from linnet.training.step import Stepper

ROUNDS, WARM_UP = 15, 2
SHORT, LONG = 1024, 65_536
PROMPT = "Once upon a time"
ORDER = 5
SPEEDS = "speeds.json"
FIELDS = ("step_s", "training_tokens_per_s", "decode_tokens_per_s")


def data_of(text: Text, work: Path) -> Path:
    """The tokens that a comparison makes of a text; made unless they are there."""
    (data,) = prepare_parts(ComparisonSpec.parse(common(text), "atlas"), work / text.key / DATA)
    return data


def known_speeds(work: Path, earlier: Record) -> dict[str, dict[str, float]]:
    """Of each mixer: those measured here, else those of the record."""
    if (work / SPEEDS).is_file():
        found: dict[str, dict[str, float]] = json.loads((work / SPEEDS).read_text())["mixers"]
        return found
    timed = (mixer for mixer in earlier.mixers.values() if "step_s" in mixer)
    return {mixer["name"]: {field: mixer[field] for field in FIELDS} for mixer in timed}


def machine_of_speeds(work: Path, earlier: Record) -> Mapping[str, str]:
    """What they were measured on."""
    here = json.loads((work / SPEEDS).read_text()) if (work / SPEEDS).is_file() else earlier.content
    machine: Mapping[str, str] = here["machine"]
    return machine


def size(model: ModelSpec) -> dict[str, Any]:
    """Parameters, and bytes of state of a short and a long text: exact."""
    cost = model_cost(model)
    return {
        "parameters": cost.parameters,
        "state_bytes": {str(tokens): cost.state_bytes(tokens) for tokens in (SHORT, LONG)},
    }


def speeds(text: Text, work: Path) -> dict[str, Any]:
    """Of each: seconds of a training step, tokens per second of one decoded stream; their weights are drawn at random.

    Medians; all take turns, so that what else the machine does meets all of them.
    """
    runs = runs_of(text, data_of(text, work))
    data = TokenData.open(data_of(text, work))
    seconds = step_seconds({name: training_step(run, data) for name, run in runs.items()})
    models = [LanguageModel(Decoder(run.model).eval(), data.tokenizer) for run in runs.values()]
    decoded = decode_speeds(models, PROMPT, Sampling(temperature=0.0))
    found = {}
    for (name, run), tokens_per_s in zip(runs.items(), decoded, strict=True):
        read = run.training.batch_size * run.model.context_length
        found[name] = dict(zip(FIELDS, (seconds[name], read / seconds[name], tokens_per_s), strict=True))
    return {"mixers": found, "machine": describe_machine(torch.device("cpu"), "bfloat16")}


def training_step(run: RunSpec, data: TokenData) -> Callable[[], object]:
    """One step on one batch, again and again."""
    spec, decoder = run.training, Decoder(run.model)
    optimiser = build_optimiser(spec.optimiser, decoder, torch.bfloat16)
    ones = torch.ones(run.model.vocab_size)
    step = Stepper(Parallel(decoder), next_token_loss, optimiser, spec.clip, torch.bfloat16, ones)
    batch = Batches(data.split("train"), spec.batch_size, run.model.context_length, 0).batch(0)
    return lambda: step([batch], 1e-4)


def step_seconds(steps: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median of each."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM_UP + ROUNDS):
        for name, step in steps.items():
            start_s = time.perf_counter()
            step()
            if number >= WARM_UP:
                times[name].append(time.perf_counter() - start_s)
    return {name: statistics.median(own) for name, own in times.items()}


def trained(folder: Path, name: str, seed: int = 0) -> Path:
    """The folder of a run's model."""
    return folder / "runs" / f"{name.replace(' ', '-')}-seed-{seed}"


def names(text: Text, work: Path) -> dict[str, Any]:
    """How often each that is trained names the right one again, on the held-out stories."""
    found = {}
    for name in models_of(text):
        if not finished(trained(work / text.key, name)):
            continue
        model = model_on_data(trained(work / text.key, name), data_of(text, work))
        kept = names_kept(model, names_of(text.described["names"]))
        found[name] = {"right": kept.right, "mentions": kept.mentions}
    return found


def finished(run: Path) -> bool:
    """Whether a training came to its end."""
    try:
        read_run_folder(run)
    except UserError:
        return False
    return True


def counted(text: Text, work: Path) -> float:
    """Bits per byte of an n-gram model of order 5 (modified Kneser-Ney), of all of the training text."""
    out = work / f"{text.key}-ngram"
    if not out.exists():
        train_ngram(data_of(text, work), out, ORDER, "atlas")
    bits: float = evaluate_ngram(out, data_of(text, work), "validation").figures()["bits_per_byte"]
    return bits
