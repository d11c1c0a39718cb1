"""Steps that would be compiled, run by PyTorch without a compiler."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from linnet.inference import compiled_step
from linnet.inference.captured_step import InPlaceStep, StateTensors, weights_of
from linnet.inference.compiled_step import BUILDS, Candidate, Step, Times
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


def uncompiled(decoder: Decoder, state: DecoderState) -> Step:
    """The step that would be compiled, as PyTorch runs it."""
    step = InPlaceStep(decoder, StateTensors(state))
    weights = list(weights_of(step.function).values())

    def run(token_B1: Tensor, position_B: Tensor, states: Iterable[Tensor]) -> Tensor:
        return step(token_B1, position_B, list(states), weights)

    return compiled_step._advancing(state, run)


def capture_from_the_first_token(patch: pytest.MonkeyPatch) -> list[int]:
    """Let every step that can be compiled be one of these; returns the number of rows of each such batch."""
    batches = list[int]()

    def step(decoder: Decoder, state: DecoderState) -> Step:
        batches.append(len(state.positions))
        return uncompiled(decoder, state)

    def candidate(decoder: Decoder, _: DecoderState) -> Candidate:
        return Candidate({}, Path("no package"), partial(step, decoder), is_settled=True)

    patch.setattr(BUILDS, "enabled", True)
    patch.setattr(Times, "compiled_is_faster", True)
    patch.setattr(compiled_step, "TIMED_TOKENS", 0)
    patch.setattr(compiled_step, "candidate_of", candidate)
    return batches
