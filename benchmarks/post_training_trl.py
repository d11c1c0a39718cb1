"""Our runs against TRL's trainers, step by step in turn: the same Llama, the same rows, the same optimizer, float32.

Ours is `train_run`, as `linnet train` calls it; theirs runs in another Python (`trl_trainers.py`), told what we read.
Before anything is timed, loss and gradient norm of the first steps have to be equal. Times are of whole steps: data,
what callbacks do, for GRPO the answers, gradients and update.
"""

import json
import math
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from harness import Contest, gate
from linnet.data.chat_setup import ChatSetup, chat_setup
from linnet.data.chat_template import files_of_template
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.loader import Batch
from linnet.data.preferences import prepare_preferences
from linnet.data.prepare_conversations import prepare_conversations
from linnet.data.prepare_prompts import prepare_prompts
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.interop.exporters import export
from linnet.model.decoder import Decoder
from linnet.model.store import write_model
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.training.callbacks import Callback
from linnet.training.callbacks.rollouts import Rollouts
from linnet.training.data import fit_to_data, training_batches
from linnet.training.rollout_batches import RolloutBatches
from linnet.training.run import resolve_run_config, train_run
from linnet.training.spec import RunSpec
from llamas import llama_spec
from serve_servers import words

HERE = Path(__file__).parent
LR, BETAS, EQUAL_STEPS, TOLERANCE = 1e-4, (0.9, 0.999), 3, 1e-5


@dataclass(frozen=True)
class TrlSizes:
    """vocabulary, width, layers, heads, hidden, context: of the model. rows: conversations, pairs or prompts of a step.

    words: the median of a question or an answer. answer: the tokens of a drawn answer at most, of which `group` are
    drawn to each prompt.
    """

    vocabulary: int = 4096
    width: int = 256
    layers: int = 4
    heads: int = 4
    hidden: int = 688
    context: int = 1024
    rows: int = 8
    pairs: int = 4
    prompts: int = 4
    words: int = 40
    group: int = 8
    answer: int = 64


TINY = TrlSizes(512, 32, 2, 2, 64, 256, rows=4, pairs=2, prompts=2, words=6, group=4, answer=8)
"""Tries the script: no figure of it means anything."""


@dataclass(frozen=True)
class Trainers:
    """What the contests need. python: a Python with TRL."""

    python: Path
    sizes: TrlSizes
    threads: int


def _length(chance: random.Random, median: int) -> int:
    """Of a text in words: log-normal, half of them between 0.58 and 1.72 times the median."""
    return max(2, min(6 * median, round(chance.lognormvariate(math.log(median), 0.8))))


def _files(folder: Path, sizes: TrlSizes, count: int) -> dict[str, Path]:
    """Conversations of one to three turns, pairs of answers, and prompts."""
    chance, rows = random.Random(0), dict[str, list[dict[str, Any]]](sft=[], dpo=[], grpo=[])

    def text() -> str:
        return words(_length(chance, sizes.words), chance.getrandbits(32))

    for _ in range(count):
        turns = [
            {"role": role, "content": text()} for _ in range(chance.randint(1, 3)) for role in ("user", "assistant")
        ]
        rows["sft"].append({"messages": turns})
        rows["dpo"].append({"prompt": text(), "chosen": text(), "rejected": text()})
        rows["grpo"].append({"prompt": text(), "answer": "u"})
    paths = {name: folder / f"{name}.jsonl" for name in rows}
    for name, path in paths.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
    return paths


def base_model(folder: Path, sizes: TrlSizes) -> tuple[Path, Path, ChatSetup]:
    """A Llama with random weights that has a chat template: our folder of it, and that of Transformers."""
    parts = [words(400, seed) for seed in range(100)]
    Tokenizer.train("bpe", parts, sizes.vocabulary).save(folder / "tokenizer.json")
    setup = chat_setup([folder])
    torch.manual_seed(0)
    mixer = {"kind": "attention", "heads": sizes.heads}
    spec = llama_spec(setup.tokenizer.vocab_size, sizes.width, sizes.layers, mixer, sizes.hidden, sizes.context)
    ours, theirs = folder / "model", folder / "transformers"
    template = files_of_template(setup.template.source, setup.template.special_tokens)
    write_model(ours, Decoder(spec), setup.tokenizer, {}, beside=template)
    export(ours, theirs, to="transformers")
    return ours, theirs, setup


class TheirTrainer:
    """TRL's trainer in its own process, which takes a step when it is told to."""

    def __init__(self, python: Path, job: dict[str, Any], folder: Path) -> None:
        (folder / "job.json").write_text(json.dumps(job))
        command = [str(python), str(HERE / "trl_trainers.py"), str(folder / "job.json")]
        self.log = (folder / "trl.log").open("w")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = Path(self.log.name).read_text()[-2000:]
            raise SystemExit(f"{' '.join(map(str, self.process.args))}: ended:\n{last}")  # type: ignore[arg-type]
        found: dict[str, Any] = json.loads(line)
        return found

    def step(self, answers: list[list[int]] | None = None) -> dict[str, Any]:
        """Take a step; answers: instead of drawing some."""
        assert self.process.stdin is not None
        print(json.dumps({"answers": answers}), file=self.process.stdin, flush=True)
        return self._line()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.log.close()


@dataclass
class Found:
    """What each step took, and its loss, gradient norm and drawn tokens."""

    ours: list[dict[str, Any]] = field(default_factory=list)
    theirs: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str) -> None:
        """Stop unless loss and gradient norm of the first steps are equal; of answers, those of the first alone."""
        count = 1 if self.ours[0]["drawn"] else EQUAL_STEPS
        pairs = [(ours[key], theirs[key]) for key in ("loss", "gradient_norm") for ours, theirs in self.pairs[:count]]
        apart = max(abs(ours - theirs) / max(1.0, abs(theirs)) for ours, theirs in pairs)
        shown = ", ".join(f"{ours:.6f} and {theirs:.6f}" for ours, theirs in pairs)
        gate(f"{name}: loss and gradient norm of {count} steps", apart < TOLERANCE, f"{shown}: {apart:.1g} apart")

    @property
    def pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return list(zip(self.ours, self.theirs, strict=True))

    def summary(self) -> dict[str, Any]:
        """The ratios of steps after the first, which warms up; where answers are drawn, by the token."""
        timed = self.pairs[1:]
        times, processor = (
            Contest(*([each[key] / (each["drawn"] or 1) for each in side] for side in zip(*timed, strict=True)))
            for key in ("wall_s", "cpu_s")
        )
        apart = max(abs(ours["loss"] - theirs["loss"]) for ours, theirs in timed)
        drawn = {"drawn": [sum(each["drawn"] for each in side) for side in zip(*timed, strict=True)]}
        return {
            **times.summary(),
            "processor_times_as_fast": round(processor.ratio, 3),
            **(drawn if self.ours[0]["drawn"] else {"losses_apart": float(f"{apart:.2g}")}),
        }


class Turns(Callback):
    """Lets TRL take a step after each of ours; the last one of a run, which then evaluates and saves, is left out."""

    def __init__(self, theirs: TheirTrainer) -> None:
        self.theirs, self.found = theirs, Found()

    def on_load(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._wall_s, self._cpu_s = perf_counter(), process_time()

    def check_update(self, loss: float, gradient_norm: float) -> None:
        self._result = {"loss": loss, "gradient_norm": gradient_norm}

    def after_step(self) -> None:
        took = {"wall_s": perf_counter() - self._wall_s, "cpu_s": process_time() - self._cpu_s}
        if self.context.state.step == self.context.budget.steps:
            return
        answers = self._answers()
        drawn = sum(map(len, answers or ()))
        self.found.ours.append(took | self._result | {"drawn": drawn})
        self.found.theirs.append(self.theirs.step(None if len(self.found.ours) > 1 else answers))
        self._begin()

    def _answers(self) -> list[list[int]] | None:
        """The answers that the model of ours drew for this step."""
        drawing = next((each for each in self.context.callbacks if isinstance(each, Rollouts)), None)
        if drawing is None:
            return None
        batch = next(iter(drawing.batches.current.values()))
        assert batch.weights is not None
        return [targets[weights].tolist() for targets, weights in zip(batch.targets, batch.weights, strict=True)]


def their_rows(run: RunSpec, data: TokenData, steps: int) -> list[Any]:
    """What our run reads, in the same order, as TRL's trainers want it."""
    batches = training_batches(data, run)
    if isinstance(batches, RolloutBatches):
        return [batches.prompts.tokens[row] for number in range(steps) for row in batches.numbers(number)]
    rows: list[Any] = []
    for number in range(steps):
        batch = batches.batch(number)
        found = [_tokens_of(batch, row) for row in range(len(batch))]
        if batch.rows_per_example == 1:
            rows += [{"input_ids": ids, "labels": labels} for ids, labels in found]
            continue
        for (chosen, labels), (rejected, _) in zip(found[::2], found[1::2], strict=True):
            prompt = next(place for place, label in enumerate(labels) if label != IGNORE_INDEX)
            rows.append(
                {"prompt_ids": chosen[:prompt], "chosen_ids": chosen[prompt:], "rejected_ids": rejected[prompt:]}
            )
    return rows


def _tokens_of(batch: Batch, row: int) -> tuple[list[int], list[int]]:
    """The tokens of a row without what fills it up, and the labels of the same places."""
    targets, labels = batch.targets[row].tolist(), batch.labels[row].tolist()
    last = max(place for place, label in enumerate(labels) if label != IGNORE_INDEX)
    return [int(batch.tokens[row, 0]), *targets[: last + 1]], [IGNORE_INDEX, *labels[: last + 1]]


PREPARE: dict[str, Callable[..., Any]] = {
    "sft": prepare_conversations,
    "dpo": prepare_preferences,
    "grpo": prepare_prompts,
}


def against_trl(kind: str, trainers: Trainers, runs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The ratios of `runs` steps of one kind of training, for each way in which TRL does it."""
    sizes, steps = trainers.sizes, runs + 2  # one to warm up, one that is left out
    batch = {"sft": sizes.rows, "dpo": sizes.pairs, "grpo": sizes.prompts}[kind]
    grpo = {
        "group": sizes.group,
        "max_tokens": sizes.answer,
        "held_out": 1,
        "reward": f"{HERE / 'trl_trainers.py'}:reward",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs, setup = base_model(folder, sizes)
        file = _files(folder, sizes, 2 * steps * batch)[kind]
        options = {} if kind == "grpo" else {"limit": LengthLimit(sizes.context, "drop")}
        PREPARE[kind](file, folder / "data", setup.template, setup.tokenizer, **options)
        training = {
            "steps": steps, "batch_size": batch, "precision": "float32", "threads": trainers.threads,
            "optimizer": {"lr": LR, "betas": BETAS, "weight_decay": 0.0},
            "schedule": {"kind": "constant", "warmup_steps": 0}, "evaluate": {"every": steps, "tokens": 1},
            **({"grpo": grpo} if kind == "grpo" else {"preference": {"kind": "dpo"}} if kind == "dpo" else {}),
        }  # fmt: skip
        run = resolve_run_config(folder / "run", data=folder / "data", start_from=ours, training=training)
        data = TokenData.open(folder / "data")
        rows = their_rows(fit_to_data(run, data), data, steps)
        job = {
            "kind": kind, "model": str(theirs), "steps": steps, "threads": trainers.threads, "lr": LR, "betas": BETAS,
            "batch": batch * (sizes.group if kind == "grpo" else 1), "rows": rows, "beta": 0.1, "kl": 0.0,
            "group": sizes.group, "max_tokens": sizes.answer,
        }  # fmt: skip
        for form, fields in FORMS[kind].items():
            turns = Turns(TheirTrainer(trainers.python, job | fields, folder))
            train_run(run, folder / form, callbacks=[turns])
            turns.theirs.close()
            turns.found.check(f"{kind}, {form}")
            yield form, turns.found.summary()


FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "sft": {"padded": {"padding_free": False}, "padding_free": {"padding_free": True}},
    "dpo": {"reference_stored": {"reference_stored": True}, "reference_each_step": {"reference_stored": False}},
    "grpo": {"generate": {}},
}
"""Ways in which TRL does the same: rows of a batch padded or one behind the other; the reference once or each time."""
