"""The rows of `gpu.py`'s tables: each checks its results, then measures.

Legend: `B` sequences or streams, `T` tokens, `V` vocabulary.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gpu_models import SIZES, TINY, Size, model
from linnet.core.errors import is_out_of_memory
from linnet.core.system import synchronize
from linnet.data.pieces import ByteCounts
from linnet.inference import cuda_graphs
from linnet.inference.cuda_graphs import RecordedGraph
from linnet.inference.decode import decode
from linnet.inference.readers import CachedReader, finish_captured_steps
from linnet.inference.sampling import Sampling
from linnet.inference.step_packages import BUILDS, package_of, start_build
from linnet.inference.weights import convert_weights
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.training.machine import peak_flops_per_s, peak_memory_bytes
from linnet.training.objectives import Objective
from linnet.training.objectives.language_modelling import next_token_loss
from linnet.training.optimizers import build_optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec, OptimizerSpec
from linnet.training.step import Batch, Stepper

GATE_TOKENS = 320
"""Length of the sequence that checks training: long enough for the forms that long sequences take."""

LOSS_ERROR = {"float32": 1e-4, "bfloat16": 0.02}
GRADIENT_ERROR = {"float32": 0.01, "bfloat16": 0.15}
LOGITS_ERROR = {"float32": 1e-3, "bfloat16": 0.05}
"""Largest relative error: norm of the difference over that of the expected result."""

AS_FAR = 1.25
"""Factor of the processor's own error in bfloat16, where that exceeds the bound."""

DECODE_RUNS = 3
MOST_STEPS = 20
READ_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}


@dataclass(frozen=True)
class Row:
    """A row to measure. streams: of decoding; 0 in the table of training."""

    table: str
    kind: str
    size: str
    precision: str
    form: str = "eager"
    streams: int = 0

    def __str__(self) -> str:
        streams = f", {self.streams} streams" if self.streams else ""
        return f"{self.table}, {self.kind}, {self.size}, {self.precision}, {self.form}{streams}"

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.precision)
        return found

    @property
    def of_size(self) -> Size:
        return (SIZES | TINY)[self.size]


class NotCorrectError(ArithmeticError):
    """The results of a row are wrong, so it is not timed."""


def measure(row: Row, device: torch.device) -> dict[str, Any]:
    """Sizes and figures, or `error` if the row cannot be measured here."""
    spec = model(row.kind, row.of_size)
    sizes = {"parameters": model_cost(spec).parameters, "layers": spec.layers}
    return sizes | guarded(device, lambda: (_decoding if row.streams else _training)(row, spec, device))


def guarded(device: torch.device, figures: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures, or the `error`; all memory of the device is released."""
    try:
        return figures()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip()[:500]}"}
    finally:
        _tidy(device)


def _tidy(device: torch.device) -> None:
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def elapsed_s(device: torch.device, run: Callable[[], object]) -> float:
    """The elapsed time in seconds, the device's work included."""
    synchronize(device)
    start_s = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start_s


@cache
def peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large product."""
    return peak_flops_per_s(device, dtype)


@cache
def bandwidth(device: torch.device) -> float:
    """Bytes per second of a plain read."""
    buffer = torch.ones(READ_BYTES[device.type] // 4, device=device)
    buffer.sum()
    return buffer.nbytes / min(elapsed_s(device, buffer.sum) for _ in range(10))


def fresh(spec: ModelSpec) -> Decoder:
    """A decoder with the same weights each time."""
    torch.manual_seed(0)
    return Decoder(spec)


def batch_of(spec: ModelSpec, sequences: int, tokens: int) -> Batch:
    """Random tokens and the next token of each."""
    drawn = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(spec.vocab_size, (sequences, tokens + 1), generator=drawn)
    return Batch(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())


def gate_batch(spec: ModelSpec) -> Batch:
    """The sequence that checks training."""
    return batch_of(spec, 1, min(GATE_TOKENS, spec.context_length))


def loss_and_gradients(
    decoder: Decoder, objective: Objective, batch: Batch, dtype: torch.dtype
) -> tuple[float, list[Tensor]]:
    """Nats per token, and the gradient of their mean by each parameter; the parameters' own gradients are cleared."""
    device = decoder.device
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        mean = objective(decoder, batch.to(device)).total / batch.count
    mean.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in decoder.parameters() if p.grad is not None]
    decoder.zero_grad()
    return mean.item(), gradients


@cache
def reference(kind: str, size: str) -> tuple[float, list[Tensor]]:
    """Losses and gradients on the processor, in float32, of one sequence."""
    return on_the_processor(kind, size, torch.float32)


@cache
def reference_error(kind: str, size: str) -> float:
    """The error of gradients in bfloat16 on the processor."""
    return _apart(on_the_processor(kind, size, torch.bfloat16), reference(kind, size))[1]


def on_the_processor(kind: str, size: str, dtype: torch.dtype) -> tuple[float, list[Tensor]]:
    """Loss and gradients on the device, of the sequence that checks training."""
    spec = model(kind, (SIZES | TINY)[size])
    return loss_and_gradients(fresh(spec), next_token_loss, gate_batch(spec), dtype)


def check_training(row: Row, found: tuple[float, list[Tensor]]) -> str:
    """Compare with the processor's in float32. In bfloat16, gradients may have the error that they have there.

    Those of GLA and cache_policy at their start do, in 12 layers: the norm behind them makes small sums large.
    """
    right = reference(row.kind, row.size)
    try:
        return check_same(row.precision, found, right)
    except NotCorrectError:
        if row.precision == "float32":
            raise
    error = reference_error(row.kind, row.size)
    return f"{check_same(row.precision, found, right, AS_FAR * error)} (on a processor {error:.1e})"


def _apart(found: tuple[float, list[Tensor]], expected: tuple[float, list[Tensor]]) -> tuple[float, float]:
    """Errors of losses and gradients relative to the expected ones."""
    (loss, gradients), (right_loss, right) = found, expected
    pairs = [(g.to(r.device, torch.float32), r) for g, r in zip(gradients, right, strict=True)]
    squares = [(float((g - r).square().sum()), float(r.square().sum())) for g, r in pairs]
    off = (sum(difference for difference, _ in squares) / sum(size for _, size in squares)) ** 0.5
    return abs(loss / right_loss - 1), off


def check_same(
    precision: str,
    found: tuple[float, list[Tensor]],
    expected: tuple[float, list[Tensor]],
    gradient_error: float | None = None,
) -> str:
    """The errors of losses and gradients; `NotCorrectError` above the bound (None: that of the precision)."""
    off_loss, off = _apart(found, expected)
    difference = f"loss off by {off_loss:.1e}, gradients by {off:.1e}"
    most = GRADIENT_ERROR[precision] if gradient_error is None else gradient_error
    if not (off_loss <= LOSS_ERROR[precision] and off <= most):
        raise NotCorrectError(f"not correct, so not timed: {difference}")
    return difference


def _training(row: Row, spec: ModelSpec, device: torch.device) -> dict[str, Any]:
    """Run with half as many sequences each time memory runs out."""
    sequences = row.of_size.sequences
    while True:
        try:
            return _steps(row, spec, device, sequences)
        except Exception as error:
            if sequences == 1 or not is_out_of_memory(error):
                raise
        sequences //= 2
        _tidy(device)


def _steps(row: Row, spec: ModelSpec, device: torch.device, sequences: int) -> dict[str, Any]:
    decoder, objective, figures = fresh(spec).to(device), next_token_loss, {}
    batch = batch_of(spec, sequences, spec.context_length)
    gate = check_training(row, loss_and_gradients(decoder, objective, gate_batch(spec), row.dtype))
    if row.form == "compiled":  # checked by the batch that is timed: another shape would be compiled as well
        expected = loss_and_gradients(decoder, objective, batch, row.dtype)
        objective, start_s = torch.compile(objective), time.perf_counter()
        found = loss_and_gradients(decoder, objective, batch, row.dtype)
        figures["compile_s"] = round(time.perf_counter() - start_s, 1)
        gate = check_same(row.precision, found, expected)
        del found, expected
    optimizer = build_optimizer(OptimizerSpec(lr=1e-6), decoder)
    counts = ByteCounts.create([1] * spec.vocab_size).to(device)
    step = Stepper(ParallelModel(decoder), objective, optimizer, ClipSpec(), row.dtype, counts)
    flops_per_s = peak(device, row.dtype)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times_s = list(_times(device, lambda: step([batch], 1e-6), row.of_size.seconds))
    tokens, median_s = sequences * spec.context_length, statistics.median(times_s)
    flops = sequences * model_cost(spec).training_flops(spec.context_length, with_head=True)
    return {
        "shape": f"{sequences} x {spec.context_length} tokens",
        "correct": gate,
        **figures,
        "tokens_per_s": round(tokens / median_s),
        "lowest": round(tokens / max(times_s)),
        "highest": round(tokens / min(times_s)),
        "steps": len(times_s),
        "share_of_peak": round(flops / median_s / flops_per_s, 4),
        "peak_memory_mb": round(peak_memory_bytes(device) / 1e6),
    }


def _times(device: torch.device, step: Callable[[], object], seconds: float) -> Iterator[float]:
    """The median of at least three steps, after two for warming up."""
    for _ in range(2):
        step()
    spent_s = 0.0
    for number in range(MOST_STEPS):
        if number >= 3 and spent_s > seconds:
            return
        spent_s += (time_s := elapsed_s(device, step))
        yield time_s


def rerun(function: Callable[[], Tensor], _: RecordedGraph | None) -> RecordedGraph:
    """A recorder for a processor, to try this script: the function runs again."""
    out = function()

    def replay() -> None:
        out.copy_(function())

    return RecordedGraph(replay, out)


@contextmanager
def steps_of_form(form: str) -> Iterator[None]:
    """Within the block, streams are decoded by ordinary steps (`eager`), or by recorded ones from the first token.

    Recorded are PyTorch's kernels (`graph`), or Inductor's once they are there (`fused`).
    """
    before = BUILDS.enabled, cuda_graphs.RECORD_AFTER_TOKENS, cuda_graphs.FUSING_DEVICES
    cuda_graphs.RECORDERS.setdefault("cpu", rerun)
    BUILDS.enabled, cuda_graphs.RECORD_AFTER_TOKENS = form in ("graph", "fused"), 0
    cuda_graphs.FUSING_DEVICES = {"cuda", "cpu"} if form == "fused" else set()
    try:
        yield
    finally:
        BUILDS.enabled, cuda_graphs.RECORD_AFTER_TOKENS, cuda_graphs.FUSING_DEVICES = before
        if cuda_graphs.RECORDERS["cpu"] is rerun:
            del cuda_graphs.RECORDERS["cpu"]


def _decoding(row: Row, spec: ModelSpec, device: torch.device) -> dict[str, Any]:
    with steps_of_form(row.form):
        return _decoding_figures(row, spec, device)


def decoder_of(row: Row, spec: ModelSpec, device: torch.device) -> Decoder:
    """The row's model in its precision."""
    decoder = fresh(spec).to(device).eval()
    convert_weights(decoder, row.precision)
    return decoder


@torch.no_grad()
def build_steps(rows: list[Row], device: torch.device, limit_s: float) -> dict[str, int]:
    """Let processes compile the steps of the rows, one for each core at a time; returns how many there are in time."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")  # of each of many processes
    packages, end_s = [], time.monotonic() + limit_s

    def wait_for(running: int) -> None:
        """Wait until at most so many processes run."""
        while sum(each.poll() is None for each in BUILDS.processes.values()) > running and time.monotonic() < end_s:
            time.sleep(0.1)

    for row in rows:
        wait_for((os.cpu_count() or 1) - 1)
        if time.monotonic() > end_s:
            break
        spec = model(row.kind, row.of_size)
        decoder = decoder_of(row, spec, device)
        state = decoder.initial_state(row.streams, 8)
        decoder.hidden(batch_of(spec, row.streams, 4).tokens.to(device), state)
        request, package = package_of(decoder, state, fused=True)
        packages.append(package)
        if not package.is_file():
            start_build(request, package)
    wait_for(0)
    for process in BUILDS.processes.values():  # none may run beside what is measured next
        process.kill()
        process.wait()
    return {"packages": sum(package.is_file() for package in packages)}


def _decoding_figures(row: Row, spec: ModelSpec, device: torch.device) -> dict[str, Any]:
    decoder = decoder_of(row, spec, device)
    prompt, count = spec.context_length // 2, row.of_size.decoded
    if row.form == "fused":
        decode_times(decoder, batch_of(spec, row.streams, prompt).tokens.tolist(), 2, device)
        finish_captured_steps(decoder)
    correctness = check_cuts(row, decoder, prompt)
    prompts = batch_of(spec, row.streams, prompt).tokens.tolist()
    runs = [decode_times(decoder, prompts, count, device) for _ in range(1 + DECODE_RUNS)][1:]
    prompt_s, decode_s = (statistics.median(times) for times in zip(*runs, strict=True))
    element_bytes, cost = row.dtype.itemsize, model_cost(spec)
    matrices = [*cost.blocks.matrices, cost.head_matrix]
    weights = element_bytes * sum(inputs * outputs for inputs, outputs in matrices)
    states = row.streams * cost.state_bytes(prompt + count // 2, element_bytes)
    return {
        "shape": f"{count} tokens of each stream behind a prompt of {prompt}",
        "correct": correctness,
        "tokens_per_s": round(row.streams * count / decode_s, 1),
        "lowest": round(row.streams * count / max(s for _, s in runs), 1),
        "highest": round(row.streams * count / min(s for _, s in runs), 1),
        "replays": graph_in_use(decoder),
        "prompt_tokens_per_s": round(row.streams * prompt / prompt_s),
        "ms_per_step": round(decode_s / count * 1e3, 3),
        "weight_bytes_per_step": weights,
        "state_bytes_per_step": states,
        "share_of_weight_read": round(weights * count / decode_s / bandwidth(device), 4),
        "share_of_bandwidth": round((weights + states) * count / decode_s / bandwidth(device), 4),
    }


def decode_times(decoder: Decoder, prompts: list[list[int]], count: int, device: torch.device) -> tuple[float, float]:
    """Seconds of the prompt with its first token, and of `count` more tokens."""
    steps = decode(decoder, prompts, count + 1, Sampling(temperature=0.0))
    prompt_s = elapsed_s(device, lambda: next(steps))
    return prompt_s, elapsed_s(device, lambda: list(steps))


def recording_problem(decoder: Decoder, form: str) -> str | None:
    """Why the steps of a decoder are not recorded in this form; None if they are."""
    pool = cuda_graphs._POOLS.get(decoder)
    if pool is None:
        return "nothing was recorded"
    if pool.problem is not None or not pool.buffers:
        return pool.problem or "no memory"
    return "not compiled" if form == "fused" and pool.buffers[-1].fused is None else None


def graph_in_use(decoder: Decoder) -> str | None:
    """Which graph the last streams replayed: the faster of `fused` and `graph`; None without one."""
    pool = cuda_graphs._POOLS.get(decoder)
    if pool is None or not pool.buffers or not BUILDS.enabled:
        return None
    buffers = pool.buffers[-1]
    return "fused" if buffers.fused in buffers.fastest.values() else "graph"


@torch.no_grad()
def check_cuts(row: Row, decoder: Decoder, prompt: int) -> str:
    """The gate: behind a prompt, tokens one by one give the same logits as together."""
    count = 4
    rows = row.streams
    tokens_BT = batch_of(decoder.spec, rows, prompt + count).tokens.to(decoder.device)
    whole, cut = (decoder.initial_state(rows, prompt + count) for _ in range(2))
    for state in (whole, cut):
        decoder.hidden(tokens_BT[:, :prompt], state)
    expected = decoder(tokens_BT[:, prompt:], whole).float()
    reader = CachedReader(decoder, cut)
    steps = [reader.logits(tokens_BT[:, at : at + 1]) for at in range(prompt, prompt + count)]
    found = torch.stack(steps, dim=1).float()
    if row.form in ("graph", "fused") and (problem := recording_problem(decoder, row.form)) is not None:
        raise NotCorrectError(f"not recorded, so not timed: {problem}")
    off = float((found - expected).norm() / expected.norm())
    difference = f"logits off by {off:.1e}"
    if not off <= LOGITS_ERROR[row.precision]:
        raise NotCorrectError(f"not correct, so not timed: {difference}")
    return difference
