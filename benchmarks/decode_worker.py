"""A model, a state behind a text, and its ordinary step: parts of `compiled_steps.py` that earlier commits run.

`python decode_worker.py` reads a request in one line (JSON: spec, precision, rows, room, threads) and answers `ready`,
then for each number of steps in a line the seconds of a step. It uses only what earlier versions of linnet have too.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from linnet.inference.compiled_step import BUILDS  # where earlier commits have it
from linnet.inference.readers import CachedReader
from linnet.inference.weights import convert_weights
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState

LONG, SHORT = 1024, 32
"""Tokens before the measured ones: where the state grows with the text, and where it does not."""


def decoder_of(spec: ModelSpec) -> Decoder:
    """A decoder with random weights."""
    torch.manual_seed(0)
    return Decoder(spec).eval().requires_grad_(False)


def constant_state(decoder: Decoder) -> bool:
    """True if no layer has a state that grows."""
    return all(mixer.traits.constant_state for mixer in decoder.mixers)


@torch.inference_mode()
def state_behind(decoder: Decoder, rows: int, tokens: int | None, state: DecoderState) -> DecoderState:
    """The state of rows that have read the same tokens, which are read once into an empty state of one row."""
    count = tokens or (SHORT if constant_state(decoder) else LONG)
    tokens_1T = torch.randint(decoder.spec.vocab_size, (1, count), generator=torch.Generator().manual_seed(1))
    decoder.hidden(tokens_1T, state)
    return state if rows == 1 else state.select(torch.zeros(rows, dtype=torch.int64))


def ordinary_step(decoder: Decoder, state: DecoderState) -> Callable[[Tensor], Tensor]:
    """The step that is not compiled."""
    reader = CachedReader(decoder, state)

    def step(tokens_B1: Tensor) -> Tensor:
        before, BUILDS.enabled = BUILDS.enabled, False
        try:
            return reader.logits(tokens_B1)
        finally:
            BUILDS.enabled = before

    return step


@torch.inference_mode()
def seconds_per_step(step: Callable[[Tensor], Tensor], tokens_B1: Tensor, steps: int) -> float:
    """The mean of so many steps, after one that is not counted."""
    step(tokens_B1)
    start_s = time.perf_counter()
    for _ in range(steps):
        step(tokens_B1)
    return (time.perf_counter() - start_s) / steps


def main() -> None:
    """Answer the lines of the standard input."""
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    BUILDS.enabled = False
    torch.set_num_threads(request["threads"])
    decoder = decoder_of(ModelSpec.parse(request["spec"], "spec"))
    if request["precision"] != "float32":
        convert_weights(decoder, request["precision"])
    state = state_behind(decoder, request["rows"], None, decoder.initial_state(1, request["room"]))
    print("ready", flush=True)
    for line in sys.stdin:
        step = ordinary_step(decoder, state.fork())
        print(seconds_per_step(step, torch.ones(request["rows"], 1, dtype=torch.int64), int(line)), flush=True)


if __name__ == "__main__":
    main()
