"""The training speed of this device, measured by a few real steps of a model.

FLOPs are exact, from the model's description: forward and backward, with the head.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil
import torch

from linnet.core.system import resolve_device, synchronize
from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.present.progress import progress
from linnet.training.machine import configured_precision, measure_precision, peak_flops_per_s
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.runs import training_flops_per_token
from linnet.training.spec import TrainingSpec
from linnet.training.step import Stepper

SHARE_OF_PEAK = 0.3
"""Usual speed of a step relative to that of a large matrix product; only for estimates."""

MAX_STEPS, ENOUGH_S, MAX_STEP_S = 10, 3.0, 3.0
BYTES_PER_PARAMETER = 4 * 4
"""Weight, gradient and two moments in float32."""

MAX_MEMORY_SHARE = 0.4


@dataclass(frozen=True)
class Throughput:
    """Training FLOPs per second. parameters: of the model that was timed on `device`; None if the speed was given."""

    flops_per_s: float
    parameters: int | None = None
    device: str | None = None


def estimate_flops_per_s(device: torch.device) -> float:
    """Estimate the training speed from one large matrix product."""
    stated = configured_precision(TrainingSpec(), device)
    return SHARE_OF_PEAK * peak_flops_per_s(device, torch.float32 if stated is None else stated.dtype)


def max_parameters(device: torch.device, context_length: int) -> float:
    """Return the size up to which a step over one window fits in memory and takes a few seconds."""
    is_cuda = device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(device)[0] if is_cuda else psutil.virtual_memory().available
    fitting = MAX_MEMORY_SHARE * free_bytes / BYTES_PER_PARAMETER
    quick = MAX_STEP_S * estimate_flops_per_s(device) / (6 * context_length)
    return min(fitting, quick)


def measure(model: ModelSpec, batch_size: int, device: torch.device) -> Throughput:
    """Return the median speed of steps of the model, after one warm-up step.

    A step has at most `batch_size` windows of the context length; fewer if it would take longer than a few seconds.
    """
    flops_per_token = training_flops_per_token(model, None)
    window_s = flops_per_token * model.context_length / estimate_flops_per_s(device)
    rows = max(1, min(batch_size, int(MAX_STEP_S / window_s)))
    take_step = training_step(model, TrainingSpec(device=str(device)), rows)
    times_s: list[float] = []
    with progress(f"measure {device}", 1 + MAX_STEPS, "steps") as advance:
        _timed_s(take_step, device)
        advance(1)
        while len(times_s) < 2 or (sum(times_s) < ENOUGH_S and len(times_s) < MAX_STEPS):
            times_s.append(_timed_s(take_step, device))
            advance(1)
        advance(MAX_STEPS - len(times_s))
    flops = flops_per_token * rows * model.context_length
    return Throughput(flops / statistics.median(times_s), model_cost(model).parameters, str(device))


def training_step(model: ModelSpec, training: TrainingSpec, rows: int) -> Callable[[], object]:
    """Return a function that takes a step as `linnet train` does, with random weights, on one batch of random tokens.

    The state of the caller's random numbers does not change.
    """
    device = resolve_device(training.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = Decoder(model).to(device)
        tokens = torch.randint(model.vocab_size, (rows, model.context_length + 1))
    byte_counts = ByteCounts.create([1] * model.vocab_size).to(device)
    batch = Batch(tokens[:, :-1], tokens[:, 1:].contiguous())
    precision = configured_precision(training, device) or measure_precision(decoder, next_token_loss, batch)
    optimizer = build_optimizer(training.optimizer, decoder, precision.dtype)
    step = Stepper(ParallelModel(decoder), next_token_loss, optimizer, training.clip, precision.dtype, byte_counts)
    return lambda: step([batch], lr=1e-4)


def seconds_in_turn(steps: Mapping[str, Callable[[], object]], rounds: int = 15, warm_up: int = 2) -> dict[str, float]:
    """Return the median time of each step; they alternate, so that other load of the machine affects all of them."""
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    with progress("time of a step", rounds + warm_up, "rounds") as advance:
        for number in range(warm_up + rounds):
            for name, step in steps.items():
                start_s = time.perf_counter()
                step()
                if number >= warm_up:
                    times_s[name].append(time.perf_counter() - start_s)
            advance(1)
    return {name: statistics.median(own) for name, own in times_s.items()}


def _timed_s(take_step: Callable[[], object], device: torch.device) -> float:
    start_s = time.perf_counter()
    take_step()
    synchronize(device)
    return time.perf_counter() - start_s
