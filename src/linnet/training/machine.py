"""The machine of a run: its memory, threads and peak speed, and the precision of products that is fastest on it.

Weights, optimizer state and sums are float32 in any case. On a CUDA device the hardware decides the precision of
products. Processors differ more: with AVX512-BF16 or AMX a step in bfloat16 takes a third to nine tenths of the time,
with emulation forty times as long, and small models gain least. Therefore it is measured.
"""

import datetime
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch

from linnet.core.atomic import file_lock
from linnet.core.bounds import MAX_THREADS_PER_PROCESSOR
from linnet.core.errors import UserError
from linnet.core.files import cache_folder, read_json, write_json
from linnet.core.spec import Spec
from linnet.core.system import available_bytes, processor_name, synchronize
from linnet.data.loader import Batch
from linnet.model.cost import QUANTIZED_NBYTES, model_cost
from linnet.model.decoder import Decoder
from linnet.model.folder import CONFIG, find_model_folder
from linnet.model.spec import ModelSpec
from linnet.present.numbers import decimal
from linnet.training.distributed import SINGLE_PROCESS, Processes
from linnet.training.objectives import Objective
from linnet.training.spec import RunSpec, TrainingSpec

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

BATCH_TOKEN_BYTES = 16
"""Of a batch per token: input and target, 64 bits each."""

BFLOAT16_SHARE = {"cpu": 0.65, "cuda": 0.5}
"""Activation memory in bfloat16 relative to float32; autocast keeps some tensors in both. Measured on a CPU: 0.66 to
0.79 with four kinds of mixers. Not measured on a GPU: that of products alone."""

PEAK_SHARE = {"cpu": 1.25, "cuda": 1.0}
"""Peak memory of a step relative to its activations: temporary tensors of the backward pass, and fragmentation.
Measured on a CPU, by resident memory over the batch: 1.3 with ten layers of attention, 1.4 to 2.2 with two layers of
four kinds of mixers, in either precision."""

PEAKS = "peak-speeds.json"
"""In the cache folder: the peak speeds of machines, with their dates."""

MIN_PROCESSOR_SHARE = 0.8
"""Share of its threads' time that a process must have had while a peak was measured: else other programs took part."""

FLOPS_PER_CYCLE = {"AVX2": 32, "AVX512": 64}
"""Of a thread in float32, by PyTorch's name for the instructions: two fused multiply-adds in vectors of 8 or 16."""

PLAUSIBLE_SHARES = (0.1, 1.1)
"""Of the processor's arithmetic limit, at the clock rate that the system states."""

PEAK_BUDGET_S = 0.15
PEAK_WIDTHS = {"cpu": 1024, "cuda": 8192}
MEASURED_RUN_FLOPS = 2e12
"""Half a minute of a laptop; in shorter runs measuring the precision takes longer than it may save."""

PROBE_WIDTH = 512
"""Of the product that shows whether a processor has bfloat16; it takes milliseconds, or half a second."""

MAX_RELATIVE_TIME = 0.9
"""Bfloat16 is chosen if a step, and a product, takes at most this share of the time in float32."""

PASS_S = 0.5
"""The intended duration of a measured pass in float32, which may have fewer sequences than a batch."""

MEASURED_PASSES = 3


def check_memory(
    run: RunSpec,
    device: torch.device,
    precision: torch.dtype,
    processes: Processes = SINGLE_PROCESS,
    mean_lengths: tuple[float, float] | None = None,
) -> None:
    """`UserError`, before a model is made, if a step of the run needs more memory than there is.

    mean_lengths: the mean tokens of an example of rows that do not count, and that count; None: windows of the context.
    An example is a row, both rows of a pair, or a group of answers.

    The prediction is a lower bound: `BFLOAT16_SHARE` and `PEAK_SHARE` are the smallest measured values, what fills rows
    up is not counted, and recomputed activations (`training.parallel.checkpointing`) are not either. Several processes
    on one CPU share its memory.
    """
    spec, cost = run.training, model_cost(run.model)
    rows = rows_per_example(spec)
    context = spec.context_length or run.model.context_length
    tokens = context if mean_lengths is None else min(context, math.ceil(sum(mean_lengths) / rows))
    share = BFLOAT16_SHARE[device.type] if precision is torch.bfloat16 else 1.0
    saved_share = 0.0 if spec.parallel.checkpointing else PEAK_SHARE[device.type] * share
    # Between two steps: two moments of each parameter, with Muon one of each matrix; an average.
    optimizer_elements = 2 * cost.parameters
    if spec.optimizer.kind == "muon" and spec.optimizer.muon.every == 1:
        optimizer_elements -= sum(inputs * outputs for inputs, outputs in cost.blocks.matrices)
    if spec.lora is not None:
        optimizer_elements = 0  # few parameters are trained
    optimizer_bytes = 4 * (optimizer_elements + (cost.parameters if spec.averaging else 0))
    other_bytes = 4 * _elements_of_other_models(run)

    saved_bytes = 0
    if spec.lora is not None and spec.lora.precision != "float32":
        nbytes = QUANTIZED_NBYTES[spec.lora.precision]
        saved_bytes = sum(4 * inputs * outputs - nbytes(outputs, inputs) for inputs, outputs in cost.blocks.matrices)

    def needed(examples: int) -> int:
        found = cost.training_memory(rows * -(-examples // processes.count), tokens)
        batches = spec.gradient_accumulation * rows * examples * tokens * BATCH_TOKEN_BYTES
        gradients = found.gradients if spec.lora is None else 0
        sharded = (found.weights + gradients + optimizer_bytes) // spec.parallel.shard
        of_step = sharded - saved_bytes + int(saved_share * found.activations) + batches
        # A run begins with the weights in float32.
        return other_bytes + (max(found.weights, of_step) if saved_bytes else of_step)

    free = available_bytes(device) // (1 if device.type == "cuda" else processes.local_count)
    if needed(spec.batch_size) <= free:
        return
    of_one = needed(1)
    if of_one > free:
        example, accepted = f"one sequence of {tokens:,} tokens", "a smaller model, or a shorter context"
        if spec.grpo is not None:
            example = f"a group of {rows} answers of {tokens:,} tokens each"
            accepted = "a smaller model, or a smaller training.grpo.group or max_tokens"
        elif spec.preference is not None:
            example = f"both answers of a pair of {tokens:,} tokens each"
        problem = f"{decimal(of_one)} of memory for {example}, {decimal(free)} are free"
        raise UserError(problem, field="model", value=run.model.name, accepted=accepted)
    most = max(1, int((free - of_one) // max(1, needed(2) - of_one)))
    raise UserError(
        f"{decimal(needed(spec.batch_size))} of memory for a step, {decimal(free)} are free",
        field="training.batch_size",
        value=spec.batch_size,
        accepted=f"about {most} at the most (gradient_accumulation takes more of them for a step)",
    )


def rows_per_example(spec: TrainingSpec) -> int:
    """The rows that stand for one of the `batch_size` examples: answers of a group, or both of a pair."""
    if spec.grpo is not None:
        return spec.grpo.group
    return 1 if spec.preference is None else 2


def _elements_of_other_models(run: RunSpec) -> int:
    """The parameters that are held besides those that are trained: of a reference, a reward model and a teacher."""
    spec, models = run.training, list[ModelSpec]()
    if spec.grpo is not None and spec.grpo.kl and spec.lora is None:  # without low-rank parts the model is its own
        models.append(run.model)
    named = (spec.grpo and spec.grpo.reward, spec.distillation and spec.distillation.teacher)
    folders = (find_model_folder(Path(each)) for each in named if each)
    models += [ModelSpec.load(folder / CONFIG) for folder in folders if folder is not None]
    return sum(model_cost(model).parameters for model in models)


def check_threads(count: int, field: str) -> None:
    """`UserError`, which names the field or option, for a number of threads that this machine cannot have."""
    processors = os.cpu_count() or 1
    most = MAX_THREADS_PER_PROCESSOR * processors
    if not 1 <= count <= most:
        accepted = f"at least 1 and, on {processors} processors, at most {most:,}"
        raise UserError(field=field, value=count, accepted=accepted)


@contextmanager
def threads(count: int | None, field: str = "training.threads") -> Iterator[None]:
    """Compute with `count` CPU threads (None: as many as before); restored afterwards. field: names it in errors."""
    if count is not None:
        check_threads(count, field)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """The speed of one large matrix product here and now, multiply and add counted as two.

    Its own memory does not count in `peak_memory_bytes` of a GPU.
    """
    width = PEAK_WIDTHS[device.type]
    fastest_s = fastest_product_s(width, device, dtype)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return 2 * width**3 / fastest_s


@dataclass(frozen=True)
class Peak:
    """The speed of a large matrix product on this machine, and the day when it was measured."""

    flops_per_s: float
    measured: str


def kept_peak(device: torch.device, dtype: torch.dtype) -> Peak | None:
    """The peak of this machine in a precision: measured once, then read from the cache folder.

    None if it cannot be trusted, because other programs took processors or the processor cannot be so slow or fast;
    then it is not kept, and the next run measures again.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    key = f"{platform.node()}, {name}, {torch.get_num_threads()} threads, {dtype}, PyTorch {torch.__version__}"
    try:
        kept = read_json(cache_folder() / PEAKS)
        return Peak(float(kept[key]["flops_per_s"]), str(kept[key]["measured"]))
    except (UserError, LookupError, TypeError, ValueError):
        pass
    start_s, processor_start_s = time.perf_counter(), time.process_time()
    flops_per_s = peak_flops_per_s(device, dtype)
    elapsed_s, processor_s = time.perf_counter() - start_s, time.process_time() - processor_start_s
    if device.type == "cpu":
        is_busy = processor_s < MIN_PROCESSOR_SHARE * elapsed_s * torch.get_num_threads()
        if is_busy or not is_plausible(flops_per_s, dtype):
            return None
    peak = Peak(flops_per_s, datetime.date.today().isoformat())
    with suppress(OSError, UserError):  # no place for it, or another process is writing its own: measured again
        _keep(cache_folder() / PEAKS, key, peak)
    return peak


def _keep(path: Path, key: str, peak: Peak) -> None:
    """Add a peak to those in a file, which other processes may write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock"), "the process {} is writing its peak"):
        try:
            kept = read_json(path)
        except UserError:
            kept = None
        write_json(path, {**(kept if isinstance(kept, dict) else {}), key: asdict(peak)})


def is_plausible(flops_per_s: float, dtype: torch.dtype) -> bool:
    """Whether the processor can have this speed in float32; True if its limit is unknown, as in other precisions."""
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    per_cycle = FLOPS_PER_CYCLE.get(torch.backends.cpu.get_cpu_capability())
    if frequency is None or per_cycle is None or dtype != torch.float32 or not (frequency.max or frequency.current):
        return True
    limit = torch.get_num_threads() * per_cycle * 1e6 * max(frequency.max, frequency.current)
    return bool(PLAUSIBLE_SHARES[0] * limit <= flops_per_s <= PLAUSIBLE_SHARES[1] * limit)


def fastest_product_s(width: int, device: torch.device, dtype: torch.dtype) -> float:
    """The shortest of several times of a product of two square matrices."""
    a, b = (torch.full((width, width), 0.5, device=device, dtype=dtype) for _ in range(2))
    a @ b
    times_s: list[float] = []
    while sum(times_s) < PEAK_BUDGET_S:
        synchronize(device)
        start_s = time.perf_counter()
        a @ b
        synchronize(device)
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def peak_memory_bytes(device: torch.device) -> int:
    """The highest memory use so far: what PyTorch allocated on a GPU, else the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))  # the peak of Windows
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return resident if sys.platform == "darwin" else resident * 1024


class Precision(Spec):
    """The precision of a run's products and the reason for it. measured: by time; then it is stored with the run."""

    name: Literal["float32", "bfloat16"]
    reason: str
    measured: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.name == "bfloat16" else torch.float32


def configured_precision(spec: TrainingSpec, device: torch.device) -> Precision | None:
    """The precision that the configuration or the device determines; None if it has to be measured."""
    if spec.precision != "auto":
        return Precision(name=spec.precision, reason="configured")
    if device.type != "cuda":
        return None
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision(name="bfloat16", reason="the device has it")
    return Precision(name="float32", reason="the device has no bfloat16")


def too_short_to_measure(run: RunSpec) -> Precision | None:
    """Float32 for a resolved run that is too short for a measurement to pay; None for a longer one."""
    spec = run.training
    assert spec.steps is not None and spec.context_length is not None, "an unresolved run"
    tokens = spec.steps * spec.gradient_accumulation * spec.batch_size * spec.context_length
    flops = 3 * model_cost(run.model).flops_per_token(spec.context_length, with_head=True) * tokens
    return Precision(name="float32", reason="too short a run to measure") if flops < MEASURED_RUN_FLOPS else None


def measure_precision(
    decoder: Decoder, objective: Objective, batch: Batch, product_s: Callable[..., float] = fastest_product_s
) -> Precision:
    """The faster precision for this model on this processor; float32 unless bfloat16 is faster by a tenth.

    A large product is timed first, so that a processor that emulates bfloat16 does not compute whole passes in it.
    """
    float32_s, bfloat16_s = (product_s(PROBE_WIDTH, decoder.device, dtype) for dtype in (torch.float32, torch.bfloat16))
    if bfloat16_s > MAX_RELATIVE_TIME * float32_s:
        times = f"a product takes {bfloat16_s / float32_s:.2g} times as long in bfloat16 on this processor"
        return Precision(name="float32", reason=times, measured=True)
    # As many examples as take about `PASS_S` in float32; the first pass in each precision does not count.
    tokens = batch.tokens.shape[1]
    flops = batch.rows_per_example * model_cost(decoder.spec).training_flops(tokens, with_head=True)
    examples = max(1, min(batch.examples, int(PASS_S * peak_flops_per_s(decoder.device, torch.float32) / flops)))
    part = batch.part(0, examples)
    times_s = [
        [pass_s(decoder, objective, part, dtype) for dtype in (torch.float32, torch.bfloat16)]
        for _ in range(1 + MEASURED_PASSES)
    ]
    float32_s, bfloat16_s = map(min, zip(*times_s[1:], strict=True))
    reason = f"{len(part)} x {tokens} tokens take {bfloat16_s:.2g} s in bfloat16, {float32_s:.2g} s in float32"
    faster = bfloat16_s <= MAX_RELATIVE_TIME * float32_s
    return Precision(name="bfloat16" if faster else "float32", reason=reason, measured=True)


def pass_s(decoder: Decoder, objective: Objective, batch: Batch, dtype: torch.dtype) -> float:
    """The duration of one forward and backward pass with products in `dtype`; its gradients are deleted."""
    device = decoder.device
    on_device = batch.to(device)
    start_s = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = objective(decoder, on_device)
    loss.total.backward()  # type: ignore[no-untyped-call]
    elapsed_s = time.perf_counter() - start_s
    decoder.zero_grad()
    return elapsed_s
