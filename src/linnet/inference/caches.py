"""Reading a stream step by step: with the state of the tokens before, or by reading the whole text again.

Gokden, arXiv 2502.13502, compares the four settings of `Caches`. Both on is how to generate; the others show what each
cache saves.

Legend: `B` batch, `T` tokens of the chunk, `D` model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.decode_steps import DecodeSteps
from linnet.inference.prefill import EMPTY, PrefillContext
from linnet.layers.batch_layout import AuxiliaryOutputs, Counts
from linnet.layers.cache_policy import CachePolicy, RecalibratingCache
from linnet.layers.registry import kinds_with_calibration
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


@dataclass(frozen=True)
class Caches:
    """What generation keeps between tokens.

    kv: the state of the tokens so far (keys and values, sums). Off: every step reads the whole text again.
    calibration: what layers calibrated on the prompt. Off: they calibrate anew at every step, on the whole text if kv
        is off, else on what they kept of the prompt (`RecalibratingCache`).
    """

    kv: bool = True
    calibration: bool = True

    @property
    def label(self) -> str:
        """Which are on: `KV and calibration`, `KV`, `calibration`, `none`."""
        names = (("KV", self.kv), ("calibration", self.calibration))
        return " and ".join(name for name, on in names if on) or "none"

    def check(self, decoder: Decoder) -> None:
        """`UserError` if nothing can be calibrated anew."""
        if not self.calibration and not any(mixer.traits.calibrates for mixer in decoder.mixers):
            problem = f"the model has no {kinds_with_calibration()} layer that calibrates on its prompt; leave it out"
            raise UserError(problem, field="cache_policy", value=RecalibratingCache.name)

    def cache_policies(self, decoder: Decoder, policies: list[CachePolicy]) -> list[CachePolicy]:
        """The policies of a state, one per layer of the model; those of layers that calibrate follow the setting."""
        if self.calibration:
            return policies
        recalibrate = RecalibratingCache()
        pairs = zip(decoder.mixers, policies, strict=True)
        return [recalibrate if RecalibratingCache in mixer.cache_policies else policy for mixer, policy in pairs]

    def calibrated_bytes(self, decoder: Decoder) -> int:
        """Bytes that are kept of one stream without the KV-cache, its token ids left out."""
        return decoder.dtype.itemsize * model_cost(decoder.spec).blocks.calibrated_elements if self.calibration else 0


class CachedReader:
    """Reads a batch of streams chunk by chunk, the prompt first; each token once, with the state."""

    def __init__(
        self,
        decoder: Decoder,
        state: DecoderState,
        padding: Counts | None = None,
        record: AuxiliaryOutputs | None = None,
        given: PrefillContext = EMPTY,
    ) -> None:
        """`state` is advanced. padding: of the first chunk, which is read with what is `given`.

        record: collects auxiliary outputs; then every step is a pass of the whole decoder.
        """
        self._decoder, self._state, self._padding, self._record = decoder, state, padding, record
        self._given = given
        self._steps: DecodeSteps | None = None
        self._prompt_was_read = False

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
    """Reads the whole text again at each chunk; keeps its tokens and, if asked for, the calibration on the prompt."""

    def __init__(
        self,
        decoder: Decoder,
        padding: Counts | None,
        keep_calibration: bool = True,
        record: AuxiliaryOutputs | None = None,
        given: PrefillContext = EMPTY,
    ) -> None:
        self._decoder, self._padding, self._record, self._given = decoder, padding, record, given
        self._keep_calibration = keep_calibration
        self._text_BT: Tensor | None = None
        self._calibrated: DecoderState | None = None

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """See `CachedReader`."""
        text_BT = tokens_BT if self._text_BT is None else torch.cat([self._text_BT, tokens_BT], dim=1)
        if self._calibrated is None:
            state = self._decoder.initial_state(*text_BT.shape)
        else:
            state = self._calibrated.forget().grown(text_BT.shape[1])
        hidden_B1D = self._decoder.hidden(
            text_BT, state, padding=self._padding, record=self._record, **vars(self._given)
        )[:, -1:]
        if self._keep_calibration and self._calibrated is None:
            self._calibrated = state
        self._text_BT = text_BT
        return self._decoder.logits(hidden_B1D)[:, 0]
