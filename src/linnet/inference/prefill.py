"""Streams that begin with an input: behind it, as its prefix, or beside an encoder that reads it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from linnet.core.errors import UserError
from linnet.layers.batch_layout import Counts, Memory
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, counts


@dataclass(frozen=True)
class PrefillContext:
    """What a decoder reads its first chunk with: an encoder's memory, how many tokens of each row are its prefix."""

    memory: Memory | None = None
    prefixes: Counts | None = None


EMPTY = PrefillContext()


@dataclass(frozen=True)
class PrefillInputs:
    """Prompts as a model reads them, and what it reads beside them.

    prompts: tokens of each row, behind its input where nothing else reads that. inputs: what the encoder reads; None
    where there is none. prefixes: see `PrefillContext`.
    """

    prompts: list[list[int]]
    inputs: list[list[int]] | None = None
    prefixes: Counts | None = None

    @torch.inference_mode()
    def given(self, decoder: Decoder) -> PrefillContext:
        """With the encoder's pass over all inputs."""
        memory = None if self.inputs is None else decoder.encode(*left_pad(self.inputs, decoder.device))
        return PrefillContext(memory, self.prefixes)


def begun(decoder: Decoder, prompts: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]] | None) -> PrefillInputs:
    """Prompts with an input for each: its tokens between two end tokens; a prompt begins with the second of them."""
    rows = [list(prompt) for prompt in prompts]
    if inputs is None:
        return PrefillInputs(rows)
    if decoder.encoder is not None:
        return PrefillInputs(rows, [list(row) for row in inputs])
    joined = [[*own[:-1], *row] for own, row in zip(inputs, rows, strict=True)]
    return PrefillInputs(joined, None, tuple(map(len, inputs)) if decoder.spec.prefix else None)


def check_given(decoder: Decoder, state: DecoderState | None, given: PrefillContext) -> None:
    """`UserError` where the model has an encoder, and nothing that it made of an input is known."""
    if decoder.encoder is not None and given.memory is None and (state is None or not state.has_memory):
        raise UserError("input: missing: the model has an encoder, which reads it; expected some text")


def left_pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, Counts | None]:
    """Token ids `[B, T]` with padding (id 0) before the shorter prompts, and its lengths (None: all 0)."""
    longest = max(len(prompt) for prompt in prompts)
    tokens_BT = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    return tokens_BT, counts([longest - len(prompt) for prompt in prompts])
