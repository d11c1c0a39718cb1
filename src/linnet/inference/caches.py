"""What generation keeps between tokens: the KV-cache and the G-cache, each to be switched off.

Gokden, arXiv 2502.13502, compares the four settings. Both on is how to generate; the others show what a cache saves.

Legend: `B` batch, `T` tokens of the chunk, `D` model width.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.rows.steps import RowSteps
from linnet.layers.mixers.plga.module import PlgaSpec, PlgaState
from linnet.layers.mixers.plga.operator import PowerLawOperator
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.model.state import DecoderState


@dataclass(frozen=True)
class Caches:
    """Which caches are on.

    kv: keep what the mixers know of the tokens so far (keys and values, for TED its state). Off: every step reads the
        whole text again.
    g: keep the operator that power-law graph attention deduced from the prompt. Off: every step infers it anew, from
        the whole text where kv is off; from the `A` of the prompt, as the paper does, where kv is on.
    """

    kv: bool = True
    g: bool = True

    def check(self, decoder: Decoder) -> None:
        """`UserError` where there is no operator to infer anew."""
        if not self.g and not any(isinstance(module, PowerLawOperator) for module in decoder.modules()):
            raise UserError("--no-g-cache: the model has no plga layer that infers an operator; leave it out")

    def state_bytes(self, spec: ModelSpec, element_bytes: int, tokens: int) -> int:
        """Bytes that are kept of one stream of so many tokens, its token ids left out."""
        if self.kv:
            return model_cost(spec).state_bytes(tokens, element_bytes)
        return element_bytes * sum(_operator_elements(block, spec) for block in spec.blocks) if self.g else 0


def _operator_elements(block: BlockSpec, spec: ModelSpec) -> int:
    """Elements of the operators that the block's layers infer."""
    mixer = block.mixer
    if not isinstance(mixer, PlgaSpec) or mixer.operator == "fixed":
        return 0
    return block.repeat * (block.width or spec.d_model) ** 2 // mixer.heads


class Reader(ABC):
    """Reads a batch of streams chunk by chunk; the first chunk is the prompt."""

    @abstractmethod
    def read(self, tokens_BT: Tensor) -> Tensor:
        """What the head makes logits of, `[B, 1, D]`, at the chunk's last token."""


class CachedReader(Reader):
    """Reads each token once, with the state."""

    def __init__(self, decoder: Decoder, state: DecoderState, caches: Caches = Caches()) -> None:
        """`state` is advanced; without the G-cache its layers keep `A` in place of the operator."""
        self._decoder, self._state = decoder, state
        self._steps: RowSteps | None = None
        self._prompt_was_read = False
        for layer in state.layers:
            if isinstance(layer, PlgaState):
                other = layer.a if caches.g else layer.operator
                if other is not None:
                    raise ValueError("the state was begun with the other setting of the G-cache")
                layer.keep_operator = caches.g

    def read(self, tokens_BT: Tensor) -> Tensor:
        """See `Reader`."""
        if self._steps is not None and tokens_BT.numel() == 1:
            return self._steps.read(tokens_BT)
        hidden_B1D = self._decoder.hidden(tokens_BT, self._state)[:, -1:]
        if not self._prompt_was_read:
            self._steps, self._prompt_was_read = RowSteps.of(self._decoder, self._state), True
        return hidden_B1D


class RecomputingReader(Reader):
    """Reads the whole text again at each chunk; keeps its tokens and, with the G-cache, the prompt's operators."""

    def __init__(self, decoder: Decoder, padding_B: Tensor | None, caches: Caches) -> None:
        self._decoder, self._padding_B, self._keep_operators = decoder, padding_B, caches.g
        self._text_BT: Tensor | None = None
        self._frozen: DecoderState | None = None

    def read(self, tokens_BT: Tensor) -> Tensor:
        """See `Reader`."""
        text_BT = tokens_BT if self._text_BT is None else torch.cat([self._text_BT, tokens_BT], dim=1)
        batch, length = text_BT.shape
        state = self._decoder.initial_state(batch, length, self._padding_B)
        if self._frozen is not None:
            _copy_operators(self._frozen, state)
        hidden_B1D = self._decoder.hidden(text_BT, state)[:, -1:]
        if self._keep_operators and self._frozen is None:
            self._frozen = state
        self._text_BT = text_BT
        return hidden_B1D


def _copy_operators(source: DecoderState, target: DecoderState) -> None:
    for known, fresh in zip(source.layers, target.layers, strict=True):
        if isinstance(known, PlgaState) and isinstance(fresh, PlgaState):
            fresh.operator = known.operator
