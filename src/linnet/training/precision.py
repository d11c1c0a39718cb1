"""Which precision the products of a run have. Weights, moments and sums are float32 in any case.

On a CUDA device the hardware decides. Processors differ more: with AVX512-BF16 or AMX a step in bfloat16 takes a third
to nine tenths of the time, where it is emulated forty times as long, and small models gain least. So it is measured.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch

from linnet.core.spec import Spec
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.training.distributed import Batch
from linnet.training.machine import fastest_product_s, peak_flops_per_s
from linnet.training.objective import Objective
from linnet.training.spec import RunSpec, TrainingSpec

WORTH_MEASURING_FLOPS = 2e12
"""Of a whole run, half a minute of a laptop: below that the measurement takes longer than what it may save."""

WIDTH = 512
"""Of the product that tells a processor with bfloat16 from one without it: milliseconds, or half a second."""

FASTER = 0.9
"""So much of the time of float32 a step, or a product, in bfloat16 takes at most where it is chosen."""

PASS_S = 0.5
"""About so long one pass in float32 takes: of fewer sequences than a batch has, where need be."""

PASSES = 3


class Precision(Spec):
    """The precision of a run's products, and why. `measured`: by time; then it is kept with the run."""

    name: Literal["float32", "bfloat16"]
    reason: str
    measured: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """As PyTorch has it."""
        return torch.bfloat16 if self.name == "bfloat16" else torch.float32

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def configured_precision(spec: TrainingSpec, device: torch.device) -> Precision | None:
    """The precision that was asked for, or that the device has anyway; None where it has to be measured."""
    if spec.precision != "auto":
        return Precision(name=spec.precision, reason="asked for")
    if device.type != "cuda":
        return None
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    if native:
        return Precision(name="bfloat16", reason="the device has it")
    return Precision(name="float32", reason="the device has no bfloat16")


def too_short_to_measure(run: RunSpec) -> Precision | None:
    """Float32 for a resolved run that ends before a measurement pays; None for a longer one."""
    spec = run.training
    assert spec.steps is not None and spec.context_length is not None, "an unresolved run"
    tokens = spec.steps * spec.gradient_accumulation * spec.batch_size * spec.context_length
    flops = 3 * model_cost(run.model).flops_per_token(spec.context_length, with_head=True) * tokens
    return Precision(name="float32", reason="too short a run to measure") if flops < WORTH_MEASURING_FLOPS else None


@dataclass(frozen=True)
class Measurement:
    """What is timed: forward and backward passes of a model over some sequences of a batch; nothing is updated."""

    decoder: Decoder
    objective: Objective
    batch: Batch

    @classmethod
    def of(cls, decoder: Decoder, objective: Objective, batch: Batch) -> Self:
        """With as many sequences of the batch as take about `PASS_S` in float32."""
        inputs_BT, targets_BT = batch
        tokens = inputs_BT.shape[1]
        flops = model_cost(decoder.spec).training_flops(tokens, with_head=True)
        rows = max(1, min(len(inputs_BT), int(PASS_S * peak_flops_per_s(decoder.device, torch.float32) / flops)))
        return cls(decoder, objective, (inputs_BT[:rows], targets_BT[:rows]))

    def pass_s(self, dtype: torch.dtype) -> float:
        """How long one forward and backward pass takes. No gradient stays."""
        device = self.decoder.device
        inputs_BT, targets_BT = (part.to(device) for part in self.batch)
        start_s = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = self.objective(self.decoder, inputs_BT, targets_BT)
        loss.total.backward()  # type: ignore[no-untyped-call]
        elapsed_s = time.perf_counter() - start_s
        self.decoder.zero_grad()
        return elapsed_s


def measure_precision(
    decoder: Decoder, objective: Objective, batch: Batch, product_s: Callable[..., float] = fastest_product_s
) -> Precision:
    """The faster of the two for this model on this processor; float32 unless bfloat16 takes `FASTER` of its time.

    A large product is timed first, so that a processor that emulates bfloat16 is not kept with whole passes.
    """
    wide_s, narrow_s = (product_s(WIDTH, decoder.device, dtype) for dtype in (torch.float32, torch.bfloat16))
    if narrow_s > FASTER * wide_s:
        times = f"a product takes {narrow_s / wide_s:.2g} times as long in bfloat16 on this processor"
        return Precision(name="float32", reason=times, measured=True)
    timed = Measurement.of(decoder, objective, batch)
    wide_s, narrow_s = _fastest_passes_s(timed)
    shape = f"{timed.batch[0].shape[0]} x {timed.batch[0].shape[1]} tokens"
    told = f"{shape} take {narrow_s:.2g} s in bfloat16, {wide_s:.2g} s in float32"
    return Precision(name="bfloat16" if narrow_s <= FASTER * wide_s else "float32", reason=told, measured=True)


def _fastest_passes_s(timed: Measurement) -> tuple[float, float]:
    """In float32 and in bfloat16, in turn, after a first pass in each that does not count."""
    times: list[tuple[Any, ...]] = [
        tuple(timed.pass_s(dtype) for dtype in (torch.float32, torch.bfloat16)) for _ in range(1 + PASSES)
    ]
    wide_s, narrow_s = zip(*times[1:], strict=True)
    return min(wide_s), min(narrow_s)
