"""The captured step with kernels that Inductor makes for a GPU, of which a graph is recorded (`cuda_graphs`).

A graph of a step starts PyTorch's kernels at once, but each of its hundreds still takes 1 to 2 us. Inductor joins most
of them. A process in the background makes its kernels (`step_packages`) while recorded steps go on.

Legend: `B` batch (rows), `V` vocabulary.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linnet.core.errors import first_line, is_out_of_memory, note
from linnet.inference.step_packages import first_run, kernels_folder, package_of, record_failure, start_build
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

LOADING = Lock()
"""Held while a package is loaded, which waits for the device, and while a graph is recorded, which must not wait."""


@dataclass(frozen=True)
class StepInputs:
    """What a step reads: tokens `[B, 1]`, positions `[B]`, the tensors of states, which it writes, and weights."""

    tokens_B1: Tensor
    positions_B: Tensor
    states: list[Tensor]
    weights: list[Tensor]

    def copied(self) -> "StepInputs":
        """Copies of all but the weights."""
        with torch.inference_mode(False), torch.no_grad():  # they are written in no such mode
            states = [tensor.clone() for tensor in self.states]
            return StepInputs(self.tokens_B1.clone(), self.positions_B.clone(), states, self.weights)

    def tensors(self, values: Sequence[Tensor]) -> list[Tensor]:
        """All of them one after the other, and values of weights, as a `FusedStep` takes them."""
        return [self.tokens_B1, self.positions_B, *self.states, *self.weights, *values]

    @property
    def arguments(self) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """As an `InPlaceStep` takes them."""
        return self.tokens_B1, self.positions_B, self.states, self.weights


@dataclass(frozen=True)
class FusedStep:
    """The functions of a package: the step, and what it needs of weights alone (`step_values`), if anything."""

    run: Callable[[list[Tensor]], list[Tensor]]
    make_values: Callable[[list[Tensor]], list[Tensor]] | None

    def logits(self, inputs: StepInputs, values: Sequence[Tensor]) -> Tensor:
        """The logits `[B, V]`; states are written. values: those of `values_of`."""
        return self.run(inputs.tensors(values))[0]

    def values_of(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The values of these weights, none of which shares their memory, with the strides that the step expects."""
        if self.make_values is None:
            return []
        memory = {weight.untyped_storage().data_ptr() for weight in weights}
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
            if value.untyped_storage().data_ptr() in memory
            else value
            for value in self.make_values(list(weights))
        ]

    def update(self, values: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Write the values of the weights as they are now to the places of earlier ones."""
        for place, value in zip(values, self.values_of(weights), strict=True):
            place.copy_(value)


@dataclass(eq=False)
class Fusion:
    """What this process knows of the package of a decoder's step, for one stream or for several.

    step: once it has been loaded. is_settled: the package is not looked for any more.
    """

    request: dict[str, Any]
    package: Path
    step: FusedStep | None = None
    is_settled: bool = False
    _loading: "Future[FusedStep] | None" = None

    def look(self, decoder: Decoder, inputs: StepInputs, builds: bool) -> None:
        """Go on with what is next: build the package (if `builds`), or load it and run it on copies of the inputs."""
        if self.is_settled:
            return
        try:
            if self._loading is not None:
                if self._loading.done():
                    self.step, self.is_settled = self._loading.result(), True
            elif self.package.is_file():
                self._loading = _in_a_thread(self._load, inputs.copied())
            elif builds:
                nbytes = 4 * model_cost(decoder.spec).parameters
                self.is_settled = not start_build(self.request, self.package, nbytes)
        except Exception as error:  # a cache that cannot be written, a package that cannot be read, kernels that fail
            reason = f"{type(error).__name__}: {first_line(error)}"
            passes = is_out_of_memory(error) or isinstance(error, OSError)
            self.give_up(reason, for_all=not passes)

    def _load(self, inputs: StepInputs) -> FusedStep:
        """Load the package, and run it once, which loads the kernels; takes seconds."""
        parts, folder = json.loads(self.package.read_text()), kernels_folder(self.package)
        make_values, values = first_run(folder / "values", inputs.weights) if parts["values"] else (None, [])
        return FusedStep(first_run(folder / "step", inputs.tensors(values))[0], make_values)

    def give_up(self, problem: str, for_all: bool) -> None:
        """Note that the package is not used; for_all: remove it, and let no process try again today."""
        note(f"{self.package}: the compiled step is not used: {problem}")
        self.step, self.is_settled = None, True
        if for_all:
            with suppress(OSError):  # a cache that cannot be written
                record_failure(self.package, problem)
                self.package.unlink(missing_ok=True)
                shutil.rmtree(kernels_folder(self.package), ignore_errors=True)


def _in_a_thread(load: Callable[[StepInputs], FusedStep], inputs: StepInputs) -> "Future[FusedStep]":
    """Load a package while decoding goes on. The process does not end within it, which could abort it."""
    found: Future[FusedStep] = Future()

    def work() -> None:
        try:
            with LOADING, on_device(inputs.tokens_B1.device), torch.no_grad():
                found.set_result(load(inputs))
        except BaseException as error:
            found.set_exception(error)

    Thread(target=work, name="linnet-load-step").start()
    return found


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Let a GPU be the current one of this thread within the block."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


_FUSIONS: "WeakKeyDictionary[Decoder, dict[Path, Fusion]]" = WeakKeyDictionary()


def fusion_of(decoder: Decoder, states: DecoderState) -> Fusion:
    """The fusion for states of this kind, the same for all buffers of a decoder."""
    request, package = package_of(decoder, states, fused=True)
    return _FUSIONS.setdefault(decoder, {}).setdefault(package, Fusion(request, package))
