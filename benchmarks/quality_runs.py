"""The trainings behind `time_to_quality.py`: each in a process of its own, with one thread, kept in a work folder.

Old is what somebody trains today: for attention a Transformers Llama, for the others our layer, all with AdamW, a
cosine, and the best of five learning rates. New is our model of the same text, vocabulary and number of parameters with
linnet's recipe `auto`, and for attention with the fields that won (`experiments/LOG.md`).
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

import linnet
from linnet.core.files import write_json
from linnet.core.system import keep_freed_memory
from linnet.data.loader import Batch, Batches
from linnet.data.prepare import prepare_texts
from linnet.data.token_data import TokenData
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model
from linnet.training.schedule import learning_rate
from linnet.training.sections import ScheduleSpec
from linnet.training.spec import RunSpec, read_run
from llamas import llama_spec, transformers_llama, with_weights_of

WIDTH, LAYERS, HEADS, HIDDEN, VOCABULARY, CONTEXT = 128, 4, 4, 344, 2048, 256
OLD_BATCH = 8
OLD_SCHEDULE = {"kind": "cosine", "final_fraction": 0.1}
OLD_WARMUP_SHARE = 0.05
MEASURED_TOKENS = 1 << 18

WON: dict[str, Any] = {"query_key_norm": {}, "value_residual": {}}
"""Fields of attention that trained better in as much time; `embedding.skip` is the third."""

FAMILIES: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", "heads": HEADS},
    "ted": {"kind": "ted"},
    "pldr": {"kind": "plga", "heads": HEADS, "metric_hidden": 43, "residual_units": 2, "start": "identity"},
}


@dataclass(frozen=True)
class Task:
    """One training: of a family, `old` or `new`, in a precision; `lr` of an old one. device: cpu or cuda."""

    family: str
    side: str
    precision: str
    seed: int
    tokens: int
    lr: float = 0.0
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.family}-{self.side}-{self.precision}-{self.lr:g}-{self.tokens}-seed-{self.seed}"


def documents(files: Sequence[str]) -> list[str]:
    """Stories between `<|endoftext|>`, or articles that begin with ` = Title = `."""
    found = []
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        parts = text.split("<|endoftext|>") if "<|endoftext|>" in text else re.split(r"(?m)^(?= = [^=].* = $)", text)
        found += [part.strip() for part in parts if part.strip()]
    return found


def prepare(train: Sequence[str], validation: Sequence[str], work: Path) -> TokenData:
    """The data of all trainings, made once."""
    if not (work / "data").exists():
        texts = documents(train), documents(validation)
        prepare_texts(*texts, work / "data", tokenizer="bpe", vocab_size=VOCABULARY)
    return TokenData.open(work / "data")


def llama(seed: int) -> LlamaForCausalLM:
    """The baseline, with the weights that it starts with."""
    torch.manual_seed(seed)
    return transformers_llama(model("attention", False))


def model(family: str, won: bool) -> ModelSpec:
    """Our model of the Llama's shape; `won`: with the fields that won."""
    attention = family == "attention"
    mixer = {**FAMILIES[family], **(WON if won and attention else {})}
    sections = {"name": f"{family}-1m", "embedding": {"skip": won and attention}}
    return llama_spec(VOCABULARY, WIDTH, LAYERS, mixer, HIDDEN, CONTEXT, tied=True, **sections)


class LlamaStep:
    """A training step of the baseline as its users write it: autocast, mean loss, clipping, PyTorch's fused AdamW."""

    def __init__(self, baseline: LlamaForCausalLM, precision: str, device: str = "cpu") -> None:
        self.model, self.narrow, self.device = baseline.to(device), precision == "bfloat16", device
        matrices = [p for p in baseline.parameters() if p.dim() > 1]
        vectors = [p for p in baseline.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)

    def __call__(self, batch: Batch, lr: float) -> None:
        inputs, targets = batch.tokens.to(self.device), batch.targets.to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.narrow):
            loss = self.model(input_ids=inputs, labels=inputs, shift_labels=targets, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def described(task: Task, work: Path) -> RunSpec:
    """A training by linnet."""
    training: dict[str, Any] = {"tokens": task.tokens, "seed": task.seed, "threads": 1, "precision": task.precision}
    training |= {"device": task.device, "evaluate": {"every": 1 << 40}, "checkpoint": {"every": 500, "keep": 1}}
    if task.side == "new":
        return read_run(model=model(task.family, True), data=work / "data", recipe="auto", training=training)
    schedule = {**OLD_SCHEDULE, "warmup_share": OLD_WARMUP_SHARE}
    old = {"batch_size": OLD_BATCH, "optimizer": {"lr": task.lr, "betas": [0.9, 0.95]}, "schedule": schedule}
    return read_run(model=model(task.family, False), data=work / "data", training=training | old)


def carry_out(task: Task, work: Path) -> None:
    """Train and measure, in this process; `result.json` is written last."""
    torch.set_num_threads(1)
    keep_freed_memory()
    out, data = work / "runs" / task.name, TokenData.open(work / "data")
    if (task.family, task.side) == ("attention", "old"):
        _train_llama(task, data, out)
    else:
        run = described(task, work)
        linnet.train(out, model=run.model, data=run.data, training=run.training.model_dump(mode="json"))
    found = linnet.evaluate(out / "model", work / "data", limit_tokens=MEASURED_TOKENS, device=task.device)
    write_json(out / "result.json", {**asdict(task), "bits_per_byte": found.causal.bits_per_byte})


def _train_llama(task: Task, data: TokenData, out: Path) -> None:
    """Train it, and keep it as a model folder of linnet, of the same function."""
    baseline = llama(task.seed)
    step = LlamaStep(baseline, task.precision, task.device)
    batches = Batches(data.split("train"), OLD_BATCH, CONTEXT, task.seed)
    steps = -(-task.tokens // batches.tokens_per_batch)
    schedule = ScheduleSpec.parse({**OLD_SCHEDULE, "warmup_steps": round(OLD_WARMUP_SHARE * steps)}, "old")
    for number in range(steps):
        step(batches.batch(number), learning_rate(schedule, task.lr, number + 1, steps))
    decoder = with_weights_of(baseline.cpu(), model("attention", False))
    write_model(out / "model", decoder, data.tokenizer, asdict(task))


def measured(tasks: Sequence[Task], work: Path, jobs: int) -> dict[Task, float]:
    """Bits per byte of each; what is there already is not made again."""

    def one(task: Task) -> float:
        result = work / "runs" / task.name / "result.json"
        if not result.is_file():
            command = [sys.executable, __file__, str(work), json.dumps(asdict(task))]
            subprocess.run(command, check=True)
        found: float = json.loads(result.read_text())["bits_per_byte"]
        print(f"{task.name}: {found:.4f} bits/byte", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(tasks, pool.map(one, tasks), strict=True))


if __name__ == "__main__":
    carry_out(Task(**json.loads(sys.argv[2])), Path(sys.argv[1]))
