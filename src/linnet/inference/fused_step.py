"""The captured step with kernels that Inductor makes for a GPU, of which a graph is recorded (`cuda_graphs`).

A graph of a step starts PyTorch's kernels at once, but each of its hundreds still takes 1 to 2 us. Inductor joins most
of them. A process in the background makes its kernels (`step_packages`) while recorded steps go on.

Legend: `B` batch (rows), `V` vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from linnet.core.errors import note
from linnet.inference.captured_step import InPlaceStep, StateTensors
from linnet.inference.compiled_step import MAX_ERRORS, is_near
from linnet.inference.step_packages import (
    kernels_folder,
    open_kernels,
    package_of,
    record_failure,
    start_build,
)
from linnet.inference.weights import precision_of
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


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

    @property
    def arguments(self) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """As an `InPlaceStep` takes them."""
        return self.tokens_B1, self.positions_B, self.states, self.weights


@dataclass(eq=False)
class FusedStep:
    """The function of a package.

    make_values: what it needs of weights alone (`step_values`); values: their places, which graphs read.
    """

    run: Callable[[list[Tensor]], list[Tensor]]
    make_values: Callable[[list[Tensor]], list[Tensor]] | None
    values: list[Tensor] = field(default_factory=list)

    def logits(self, inputs: StepInputs) -> Tensor:
        """The logits `[B, V]`; states are written."""
        outputs = self.run([inputs.tokens_B1, inputs.positions_B, *inputs.states, *inputs.weights, *self.values])
        return outputs[0]

    def update_values(self, weights: Sequence[Tensor]) -> None:
        """Compute the values again: the weights may have changed in their places."""
        if self.make_values is None:
            return
        made = self.make_values(list(weights))
        if not self.values:
            self.values = made  # with the strides that the step was compiled for
            return
        for place, value in zip(self.values, made, strict=True):
            if place.data_ptr() != value.data_ptr():  # else a part of a weight
                place.copy_(value)


@dataclass(eq=False)
class Fusion:
    """What this process knows of the package of a decoder's step, for one stream or for several.

    step: once it has been loaded and compared. is_settled: the package is not looked for any more.
    """

    request: dict[str, Any]
    package: Path
    step: FusedStep | None = None
    is_settled: bool = False
    _loading: "Future[FusedStep] | None" = None

    def look(self, decoder: Decoder, states: DecoderState, inputs: StepInputs, builds: bool) -> None:
        """Go on with what is next: build the package (if `builds`), load it, and compare its step with the model's.

        states: of the inputs, which are not changed.
        """
        if self.is_settled:
            return
        try:
            if self._loading is not None:
                if self._loading.done():
                    self._compare(self._loading.result(), decoder, states, inputs)
            elif self.package.is_file():
                self._loading = _in_a_thread(self._load, inputs.copied())
            elif builds:
                nbytes = 4 * model_cost(decoder.spec).parameters
                self.is_settled = not start_build(self.request, self.package, nbytes)
        except Exception as error:  # a cache that cannot be written, a package that cannot be read, kernels that fail
            self._give_up(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")

    def _load(self, inputs: StepInputs) -> FusedStep:
        """Load the package, and run it once, which loads the kernels; takes seconds."""
        parts, folder = json.loads(self.package.read_text()), kernels_folder(self.package)
        step = FusedStep(open_kernels(folder / "step"), open_kernels(folder / "values") if parts["values"] else None)
        step.update_values(inputs.weights)
        step.logits(inputs)
        return step

    def _compare(self, step: FusedStep, decoder: Decoder, states: DecoderState, inputs: StepInputs) -> None:
        """Accept the step if it gives what the model gives for the inputs."""
        problem = _difference(decoder, StateTensors(states), step, inputs)
        if problem is not None:
            self._give_up(problem)
            return
        self.step, self.is_settled = step, True

    def _give_up(self, problem: str) -> None:
        """Note and record that the package is not used."""
        note(f"{self.package}: the compiled step is not used: {problem}")
        self.step, self.is_settled = None, True
        try:
            record_failure(self.package, problem)
            self.package.unlink(missing_ok=True)
        except OSError:
            pass  # a cache that cannot be written; this process does not try again


def _in_a_thread(load: Callable[[StepInputs], FusedStep], inputs: StepInputs) -> "Future[FusedStep]":
    """Load a package while decoding goes on."""
    found: Future[FusedStep] = Future()

    def work() -> None:
        try:
            with torch.no_grad():
                found.set_result(load(inputs))
        except BaseException as error:
            found.set_exception(error)

    Thread(target=work, name="linnet-load-step", daemon=True).start()
    return found


_FUSIONS: "WeakKeyDictionary[Decoder, dict[Path, Fusion]]" = WeakKeyDictionary()


def fusion_of(decoder: Decoder, states: DecoderState) -> Fusion:
    """The fusion for states of this kind, the same for all buffers of a decoder."""
    request, package = package_of(decoder, states, fused=True)
    return _FUSIONS.setdefault(decoder, {}).setdefault(package, Fusion(request, package))


def _difference(decoder: Decoder, states: StateTensors, step: FusedStep, inputs: StepInputs) -> str | None:
    """The difference from the step as PyTorch runs it, in words; None if they are the same."""
    ours, theirs = inputs.copied(), inputs.copied()
    with torch.inference_mode(False), torch.no_grad():
        step.update_values(inputs.weights)
        found_BV, expected_BV = step.logits(theirs).float(), InPlaceStep(decoder, states)(*ours.arguments).float()
    limit = MAX_ERRORS[precision_of(decoder)]
    error = float((found_BV - expected_BV).abs().max() / expected_BV.std())
    if not error <= limit:
        return f"logits differ by {error:.1e} of their spread"
    pairs = zip(states.tensors, theirs.states, ours.states, strict=True)
    return next((f"the state {name} differs" for name, one, other in pairs if not is_near(one, other, limit)), None)
