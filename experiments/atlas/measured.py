"""What the trainings do not tell: speed, bytes of state, names that persist, and what counting n-grams reaches."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from provenance import hashed, is_unknown, of_model, of_speed, plan_said, why
from record import AtlasRecord, Figure
from trainings import Text, models_of, runs_of

from linnet.data.loader import Batches
from linnet.data.token_data import TokenData
from linnet.evaluation.models import model_on_data
from linnet.evaluation.name_recall import measure_name_recall
from linnet.experiments.demo.measure import decode_speeds
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.stories.casting import names_of
from linnet.training.ngram.interface import evaluate_ngram, train_ngram
from linnet.training.objectives import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.spec import RunSpec
from linnet.training.step import Stepper

ROUNDS, WARM_UP = 15, 2
SHORT, LONG = 1024, 65_536
PROMPT = "Once upon a time"
ORDER = 5
FIELDS = ("step_s", "training_tokens_per_s", "decode_tokens_per_s")

Say = Callable[[str], None]


def keep_sizes(text: Text, record: AtlasRecord) -> None:
    """Of every mixer: exact, and computed anew each time; what is as before keeps its origin."""
    for name, model in models_of(text).items():
        known, of, found = record.mixer(name).get("size"), of_model(model), size(model)
        if known is None or why(known["made"], of) or any(known[field] != value for field, value in found.items()):
            record.mixer(name)["size"] = {**found, "made": record.made(of)}


def size(model: ModelSpec) -> dict[str, Any]:
    """Parameters, and bytes of state of a short and a long text: exact."""
    cost = model_cost(model)
    return {
        "parameters": cost.parameters,
        "state_bytes": {str(tokens): cost.state_bytes(tokens) for tokens in (SHORT, LONG)},
    }


def keep_speeds(text: Text, work: Path, record: AtlasRecord) -> None:
    """Measure all anew, in turn."""
    for name, found in speeds(text, work).items():
        record.mixer(name)["speed"] = {**found, "made": record.made(of_speed(runs_of(text)[name]))}
    record.write()


def known_seconds(text: Text, record: AtlasRecord, say: Say) -> dict[str, float]:
    """Of a step of each mixer as the record has it; says which have none, or that of another model."""
    known = {name: record.mixer(name).get("speed") for name in runs_of(text)}
    made = {name: speed and speed["made"] for name, speed in known.items()}
    now = {name: of_speed(run) for name, run in runs_of(text).items()}
    reasons = {name: why(made[name], now[name]) for name in known}
    say(plan_said("speeds (by --speeds alone)", reasons, [name for name in known if is_unknown(made[name], now[name])]))
    return {name: float(speed["step_s"]) for name, speed in known.items() if speed and reasons[name] is None}


def speeds(text: Text, work: Path) -> dict[str, dict[str, float]]:
    """Of each: seconds of a training step, tokens per second of one decoded stream; their weights are drawn at random.

    Medians; all take turns, so that what else the machine does meets all of them.
    """
    runs = runs_of(text)
    data = TokenData.open(text.prepare(work))
    seconds = step_seconds({name: training_step(run, data) for name, run in runs.items()})
    models = [LanguageModel(Decoder(run.model).eval(), data.tokenizer) for run in runs.values()]
    decoded = decode_speeds(models, PROMPT, Sampling(temperature=0.0))
    found = {}
    for (name, run), tokens_per_s in zip(runs.items(), decoded, strict=True):
        read = run.training.batch_size * run.model.context_length
        found[name] = dict(zip(FIELDS, (seconds[name], read / seconds[name], tokens_per_s), strict=True))
    return found


def training_step(run: RunSpec, data: TokenData) -> Callable[[], object]:
    """One step on one batch, again and again."""
    spec, decoder = run.training, Decoder(run.model)
    optimizer = build_optimizer(spec.optimizer, decoder, torch.bfloat16)
    ones = torch.ones(run.model.vocab_size)
    step = Stepper(ParallelModel(decoder), next_token_loss, optimizer, spec.clip, torch.bfloat16, ones)
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


def names(text: Text) -> Callable[[Path, Path], Figure]:
    """How often a model that is trained on the stories names the right one again, on those held out."""

    def measure(run: Path, data: Path) -> Figure:
        kept = measure_name_recall(model_on_data(run, data), names_of(text.described["names"]))
        return {"right": kept.right, "mentions": kept.mentions}

    return measure


def keep_counted(compared: Sequence[Text], work: Path, record: AtlasRecord, say: Say) -> None:
    """What counting reaches on each text, where the record lacks it or the text is another."""
    known = record.content.setdefault("n_gram", {"order": ORDER, "bits_per_byte": {}})["bits_per_byte"]
    of = {text.key: {"text": text.hash, "order": hashed(ORDER)} for text in compared}
    made = {text.key: known.get(text.key, {}).get("made") for text in compared}
    reasons = {key: why(made[key], of[key]) for key in of}
    say(plan_said("counting", reasons, [key for key in of if is_unknown(made[key], of[key])]))
    for text in compared:
        if reasons[text.key]:
            known[text.key] = {"bits_per_byte": counted(text, work), "made": record.made(of[text.key])}
            record.write()


def counted(text: Text, work: Path) -> float:
    """Bits per byte of an n-gram model of order 5 (modified Kneser-Ney), of all of the training text."""
    out, data = work / text.key / f"ngram-{ORDER}-{text.hash}", text.prepare(work)
    if not out.exists():
        train_ngram(data, out, ORDER, "atlas")
    bits: float = evaluate_ngram(out, data, "validation").figures()["bits_per_byte"]
    return bits
