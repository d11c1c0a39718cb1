"""Captured decoding steps: compiled ones without a compiler, recorded ones on devices without graphs."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from linnet.inference import compiled_step, cuda_graphs
from linnet.inference.captured_step import InPlaceStep, StateTensors, weights_of
from linnet.inference.compiled_step import Candidate, Step, Times
from linnet.inference.cuda_graphs import RecordedGraph
from linnet.inference.step_packages import BUILDS
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


def uncompiled(decoder: Decoder, state: DecoderState) -> Step:
    """The step that would be compiled, as PyTorch runs it."""
    step = InPlaceStep(decoder, StateTensors(state))
    weights = list(weights_of(step.function).values())

    def run(token_B1: Tensor, position_B: Tensor, states: Iterable[Tensor]) -> Tensor:
        return step(token_B1, position_B, list(states), weights)

    return compiled_step._advancing(state, run)


def compile_from_the_first_token(patch: pytest.MonkeyPatch) -> list[int]:
    """Let `CompiledSteps` take the step that would be compiled; returns the number of rows of each batch that does."""
    batches = list[int]()

    def step(decoder: Decoder, state: DecoderState) -> Step:
        batches.append(len(state.positions))
        return uncompiled(decoder, state)

    def candidate_of(decoder: Decoder, _: DecoderState) -> Candidate:
        return Candidate({}, Path(), partial(step, decoder), is_settled=True)

    patch.setattr(compiled_step, "candidate_of", candidate_of)
    patch.setattr(compiled_step, "TIMED_TOKENS", 0)
    patch.setattr(Times, "compiled_is_faster", True)
    patch.setattr(BUILDS, "enabled", True)
    return batches


def rerun(function: Callable[[], Tensor], _: RecordedGraph | None) -> RecordedGraph:
    """A recorder that runs the function again, and writes what it returned the first time."""
    out = function()

    def replay() -> None:
        out.copy_(function())

    return RecordedGraph(replay, out)


def record_from_the_first_token(patch: pytest.MonkeyPatch, device: str = "cpu", min_room: int = 16) -> None:
    """Let the decoding steps of a device be recorded, on one without graphs by `rerun`."""
    if device not in cuda_graphs.RECORDERS:
        patch.setitem(cuda_graphs.RECORDERS, device, rerun)
    patch.setattr(cuda_graphs, "RECORD_AFTER_TOKENS", 0)
    patch.setattr(cuda_graphs, "MIN_ROOM", min_room)
    patch.setattr(BUILDS, "enabled", True)
