"""What generation keeps between tokens: the KV-cache and the G-cache, each to be switched off.

Gokden, arXiv 2502.13502, compares the four settings. Both on is how to generate; the others show what a cache saves.

Legend: `B` batch, `T` tokens of the chunk, `D` model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.decode_steps import DecodeSteps
from linnet.inference.prefill import EMPTY, PrefillContext
from linnet.layers.batch_layout import AuxiliaryOutputs, Counts
from linnet.layers.registry import kinds_with_calibration
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
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

    @property
    def said(self) -> str:
        """Which are on: `KV and G`, `KV`, `G`, `none`."""
        return " and ".join(name for name, on in (("KV", self.kv), ("G", self.g)) if on) or "none"

    def check(self, decoder: Decoder) -> None:
        """`UserError` where there is no operator to infer anew."""
        if not self.g and not any(mixer.traits.calibrates for mixer in decoder.mixers):
            kinds = kinds_with_calibration()
            raise UserError(
                f"the model has no {kinds} layer that infers an operator; leave it out", field="g_cache", value=False
            )

    def calibrated_bytes(self, decoder: Decoder) -> int:
        """Bytes that are kept of one stream where kv is off, its token ids left out."""
        return decoder.dtype.itemsize * model_cost(decoder.spec).blocks.calibrated_elements if self.g else 0


class CachedReader:
    """Reads a batch of streams chunk by chunk, the prompt first; each token once, with the state."""

    def __init__(
        self,
        decoder: Decoder,
        state: DecoderState,
        caches: Caches = Caches(),
        padding: Counts | None = None,
        record: AuxiliaryOutputs | None = None,
        given: PrefillContext = EMPTY,
    ) -> None:
        """`state` is advanced; without the G-cache its layers keep `A` in place of the operator.

        padding: of the first chunk, which is read with what is `given`. record: what layers leave; then every step is a
        pass of the whole decoder.
        """
        self._decoder, self._state, self._padding, self._record = decoder, state, padding, record
        self._given = given
        self._steps: DecodeSteps | None = None
        self._prompt_was_read = False
        for layer in state.layers:
            layer.keep_settled(caches.g)

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """`[B, V]`, at the chunk's last token."""
        if self._steps is not None and tokens_BT.numel() == 1:
            return self._steps.logits(tokens_BT)
        hidden_B1D = self._decoder.hidden(
            tokens_BT, self._state, padding=self._padding, record=self._record, **vars(self._given)
        )[:, -1:]
        self._padding, self._given = None, EMPTY
        if not self._prompt_was_read and self._record is None:
            self._steps, self._prompt_was_read = DecodeSteps.of(self._decoder, self._state), True
        return self._decoder.logits(hidden_B1D)[:, 0]


class RecomputingReader:
    """Reads the whole text again at each chunk; keeps its tokens and, with the G-cache, the prompt's operators."""

    def __init__(
        self,
        decoder: Decoder,
        padding: Counts | None,
        caches: Caches,
        record: AuxiliaryOutputs | None = None,
        given: PrefillContext = EMPTY,
    ) -> None:
        self._decoder, self._padding, self._keep_operators, self._record = decoder, padding, caches.g, record
        self._given = given
        self._text_BT: Tensor | None = None
        self._frozen: DecoderState | None = None

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """See `CachedReader`."""
        text_BT = tokens_BT if self._text_BT is None else torch.cat([self._text_BT, tokens_BT], dim=1)
        state = self._decoder.initial_state(*text_BT.shape)
        if self._frozen is not None:
            for fresh, known in zip(state.layers, self._frozen.layers, strict=True):
                fresh.settle_as(known)
        hidden_B1D = self._decoder.hidden(
            text_BT, state, padding=self._padding, record=self._record, **vars(self._given)
        )[:, -1:]
        if self._keep_operators and self._frozen is None:
            self._frozen = state
        self._text_BT = text_BT
        return self._decoder.logits(hidden_B1D)[:, 0]
