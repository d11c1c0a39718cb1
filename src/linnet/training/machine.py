"""The machine under a run: precision, threads, its peak and its memory."""

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from linnet.core.errors import UserError
from linnet.core.system import available_bytes
from linnet.model.cost import model_cost
from linnet.present.numbers import decimal
from linnet.training.distributed import ALONE, Processes
from linnet.training.spec import RunSpec

TOKEN_BYTES = 16
"""Of a batch: input and target, 64 bits each."""

KEPT_SHARE = {"cpu": 0.65, "cuda": 0.5}
"""Of what float32 keeps for the backward pass, in bfloat16: autocast keeps float32 beside it. Measured on a CPU: 0.66
to 0.67 with attention, 0.70 with TED, 0.77 with Mamba, 0.79 with PLGA. On a
GPU neither share is measured, and they are what products alone keep."""

PEAK_SHARE = {"cpu": 1.25, "cuda": 1.0}
"""Of what is kept, the memory that a step takes at its peak: what the backward pass makes on its way, and what was
freed in pieces that fit nothing. Measured on a CPU, by resident memory over the batch: 1.3 with ten layers of
attention, 1.4 to 2.2 with two layers of attention, TED, Mamba and PLGA, in either precision."""

PEAK_BUDGET_S = 0.15
PEAK_WIDTHS = {"cpu": 1024, "cuda": 8192}
MOST_THREADS_PER_PROCESSOR = 16
"""More gain nothing, and far more end the process: the system refuses them, and PyTorch does not expect it."""


def check_memory(run: RunSpec, device: torch.device, precision: torch.dtype, processes: Processes = ALONE) -> None:
    """`UserError`, before anything is allocated, for a run of which one step takes more memory than there is.

    What is predicted is a lower bound: `KEPT_SHARE` and `PEAK_SHARE` are the least that was measured, and what is
    computed anew in the backward pass (`training.parallel.checkpointing`) counts nothing. Several processes on one CPU
    share its memory.
    """
    spec, cost = run.training, model_cost(run.model)
    context = spec.context_length or run.model.context_length
    share = KEPT_SHARE[device.type] if precision is torch.bfloat16 else 1.0
    kept = 0.0 if spec.parallel.checkpointing else PEAK_SHARE[device.type] * share

    def needed(sequences: int) -> int:
        found = cost.training_memory(-(-sequences // processes.count), context)
        batches = spec.gradient_accumulation * sequences * context * TOKEN_BYTES
        sharded = (found.weights + found.gradients + _kept_bytes(run)) // spec.parallel.shard
        return sharded + int(kept * found.activations) + batches

    free = available_bytes(device) // (1 if device.type == "cuda" else processes.on_this_machine)
    if needed(spec.batch_size) <= free:
        return
    of_one = needed(1)
    if of_one > free:
        problem = f"{decimal(of_one)} of memory for one sequence of {context:,} tokens, {decimal(free)} are free"
        raise UserError(problem, field="model", value=run.model.name, accepted="a smaller model, or a shorter context")
    most = max(1, int((free - of_one) // max(1, needed(2) - of_one)))
    raise UserError(
        f"{decimal(needed(spec.batch_size))} of memory for a step, {decimal(free)} are free",
        field="training.batch_size",
        value=spec.batch_size,
        accepted=f"about {most} at the most (gradient_accumulation takes more of them for a step)",
    )


def _kept_bytes(run: RunSpec) -> int:
    """What stays between two steps beside the weights: two moments of each parameter, one of Muon's; an average."""
    spec, cost = run.training, model_cost(run.model)
    kept = 2 * cost.parameters
    if spec.optimizer.kind == "muon" and spec.optimizer.muon.every == 1:
        kept -= sum(inputs * outputs for inputs, outputs in cost.blocks.matrices)
    return 4 * (kept + (cost.parameters if spec.averaging else 0))


def check_threads(count: int, field: str) -> None:
    """`UserError`, which names the field or option, for a number of threads that this machine cannot have."""
    processors = os.cpu_count() or 1
    most = MOST_THREADS_PER_PROCESSOR * processors
    if not 1 <= count <= most:
        accepted = f"at least 1 and, on {processors} processors, at most {most:,}"
        raise UserError(field=field, value=count, accepted=accepted)


@contextmanager
def threads(count: int | None, field: str = "training.threads") -> Iterator[None]:
    """Compute with `count` CPU threads (None: as many as before); put back afterwards. `field`: where it was said."""
    if count is not None:
        check_threads(count, field)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """The speed of one large matrix product here and now, multiply and add counted as two: the peak of a share.

    Its own memory does not count in `peak_memory_bytes` of a GPU.
    """
    width = PEAK_WIDTHS[device.type]
    fastest_s = fastest_product_s(width, device, dtype)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return 2 * width**3 / fastest_s


def fastest_product_s(width: int, device: torch.device, dtype: torch.dtype) -> float:
    """The shortest time of a product of two square matrices, of several."""
    a, b = (torch.full((width, width), 0.5, device=device, dtype=dtype) for _ in range(2))
    a @ b
    times_s: list[float] = []
    while sum(times_s) < PEAK_BUDGET_S:
        _synchronize(device)
        start_s = time.perf_counter()
        a @ b
        _synchronize(device)
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def _synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory used so far: what PyTorch allocated on a GPU, else the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else resident * 1024
