"""A training step of `pldr-v51-110m-1`, 2 x 512 tokens, against our plain attention of the same shape.

`python benchmarks/pldr_training_step.py`. The two are one description but for the mixer; PLDR-LLM is timed without and
with the DAG terms. Before that its operators are set to the identity: its loss must then be that of the attention model
with the same weights.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from harness import gate, report, threads_from_command_line
from linnet.core.system import keep_freed_memory
from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.model.calibration import read_calibrations, with_stored_calibration
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec, OptimizerSpec
from linnet.training.step import Stepper

BATCH, LENGTH = 2, 512
KINDS = ("attention", "pldr", "pldr with DAG terms")


def spec_of(kind: str) -> ModelSpec:
    """The preset, or the same with plain attention."""
    spec = ModelSpec.load("pldr-v51-110m-1")
    if kind != "attention":
        return spec
    block = spec.blocks[0].model_dump()
    heads = block["mixer"]["heads"]
    block["mixer"] = {"kind": "attention", "heads": heads, "bias": True, "rotary": {"pairing": "adjacent"}}
    return spec.replace(blocks=[block])


def stepper(kind: str) -> Callable[[], object]:
    """One training step of a fresh model: forward, backward, clipping by value, AdamW."""
    torch.manual_seed(0)
    decoder = Decoder(spec_of(kind))
    penalties = {"dag": {"a_lm": 0.05, "a_p": 0.05, "g": 0.05}} if kind == "pldr with DAG terms" else {}
    objective = partial(next_token_loss, penalties=penalties)
    optimizer = build_optimizer(OptimizerSpec(lr=1e-6), decoder)
    counts = ByteCounts.create([1] * decoder.spec.vocab_size).to("cpu")
    step = Stepper(ParallelModel(decoder), objective, optimizer, ClipSpec(by="value"), torch.float32, counts)
    batch = batch_of(decoder)
    return lambda: step([batch], 1e-6)


def batch_of(decoder: Decoder) -> Batch:
    tokens = torch.randint(decoder.spec.vocab_size, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:])


@torch.no_grad()
def check() -> None:
    """With the identity for an operator PLDR is the attention model."""
    torch.manual_seed(0)
    pldr = Decoder(spec_of("pldr"))
    plain = Decoder(spec_of("attention"))
    fixed = with_stored_calibration(pldr, read_calibrations(pldr, "identity", "benchmark"))
    plain.load_state_dict({name: t for name, t in fixed.state_dict().items() if not name.endswith("operator.g")})
    batch = batch_of(pldr)
    losses = [float(next_token_loss(model, batch).nats) for model in (fixed, plain)]
    gate("loss", abs(losses[0] - losses[1]) < 1e-5 * losses[1], f"{losses[0]:.4f} and {losses[1]:.4f} nats")


def peak_bytes(kind: str) -> int:
    """The peak memory of a process that makes three steps of one kind and nothing else."""
    command = [sys.executable, __file__, "--memory-of", kind, str(torch.get_num_threads())]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(kind: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    step = stepper(kind)
    for _ in range(3):
        step()
    print(high_water_bytes())


def high_water_bytes() -> int:
    """The most memory that this process held; `getrusage` would count what its parent held too."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Check, then time in turn, then measure memory."""
    runs = threads_from_command_line(__doc__)
    keep_freed_memory()  # as `linnet train` does
    check()
    steps = {kind: stepper(kind) for kind in KINDS}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(runs + 2):  # two to warm up: the first also makes the optimizer's moments
        for kind, step in steps.items():
            start_s = time.perf_counter()
            step()
            if number >= 2:
                times[kind].append(time.perf_counter() - start_s)
    memory = {kind: peak_bytes(kind) for kind in KINDS}
    results: dict[str, object] = {"shape": f"pldr-v51-110m-1, {BATCH} x {LENGTH} tokens, float32"}
    for kind in KINDS:
        ratios = [mine / plain for mine, plain in zip(times[kind], times["attention"], strict=True)]
        results[kind] = {
            "median_s": round(statistics.median(times[kind]), 4),
            "times_attention": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
            "peak_memory_mb": round(memory[kind] / 1e6),
            "memory_times_attention": round(memory[kind] / memory["attention"], 3),
        }
    report("pldr_training_step", results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory-of"]:
        print_peak(*sys.argv[2:])
    else:
        main()
