"""Logits of the next tokens of streams: with a state of the tokens before, or by reading the whole text again.

The default of `Caches` is how to generate; the other settings show what each cache saves (Gokden, arXiv 2502.13502).

Legend: `B` batch (rows), `T` tokens of the longest prompt or of a chunk, `V` vocabulary, `D` model width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from linnet.inference.compiled_step import CompiledSteps, can_compile, finish_builds
from linnet.inference.cuda_graphs import GraphSteps, can_record, finish_fusions
from linnet.inference.native_step import NativeStep
from linnet.inference.prefill import EMPTY, PrefillContext
from linnet.layers.batch_layout import AuxiliaryOutputs, Counts
from linnet.layers.cache_policy import CachePolicy, RecalibratingCache
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

Step = list[int | None]
"""The next token id of each row; None for a row that has ended."""


@dataclass(frozen=True)
class Caches:
    """What generation keeps between tokens.

    kv: the state of the tokens so far (keys and values, sums). Off: every step reads the whole text again.
    calibration: what layers calibrated on the prompt. Off: they calibrate again at every step, on the whole text if kv
        is off, else on what they kept of the prompt (`RecalibratingCache`).
    """

    kv: bool = True
    calibration: bool = True

    @property
    def label(self) -> str:
        """The caches that are on: `KV and calibration`, `KV`, `calibration` or `none`."""
        names = (("KV", self.kv), ("calibration", self.calibration))
        return " and ".join(name for name, on in names if on) or "none"

    def cache_policies(self, decoder: Decoder, policies: list[CachePolicy]) -> list[CachePolicy]:
        """The policies of a state, one per layer of the model; those of layers that calibrate follow the setting."""
        if self.calibration:
            return policies
        recalibrate = RecalibratingCache()
        pairs = zip(decoder.mixers, policies, strict=True)
        return [recalibrate if RecalibratingCache in mixer.cache_policies else policy for mixer, policy in pairs]

    def calibrated_bytes(self, decoder: Decoder) -> int:
        """Bytes that are kept of one stream without the KV-cache, not counting its token ids."""
        return decoder.dtype.itemsize * model_cost(decoder.spec).blocks.calibrated_elements if self.calibration else 0


@dataclass
class CachedReader:
    """Reads a batch of streams chunk by chunk, the prompts first; each token once, with the state.

    `state` is advanced. padding, context: of the first chunk. record: collects auxiliary outputs; then every step is a
    pass of the whole decoder. native: the native step, once it is in use; None for other steps.
    """

    decoder: Decoder
    state: DecoderState
    padding: Counts | None = None
    record: AuxiliaryOutputs | None = None
    context: PrefillContext = EMPTY
    native: NativeStep | None = field(default=None, init=False)
    _step: Callable[[Tensor], Tensor] | None = field(default=None, init=False)
    _numbered_step: Callable[[Sequence[int]], Tensor] | None = field(default=None, init=False)
    _compiled: CompiledSteps | None = field(default=None, init=False)
    _graphs: GraphSteps | None = field(default=None, init=False)

    @cached_property
    def on_cpu(self) -> bool:
        """True if the decoder is on the CPU, where token ids need not be copied."""
        return self.decoder.device.type == "cpu"

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits `[B, V]` at the last token of a chunk `[B, T]`."""
        has_begun = min(self.state.positions) > 0 and self.padding is None and self.context is EMPTY
        if tokens_BT.shape[1] > 1 or not has_begun or self.record is not None:
            self._step = self._numbered_step = self._compiled = self.native = None  # they may hold tensors of the state
            return self._pass(tokens_BT)
        if self._step is None:
            self._step = self._one_token_step()
        return self._step(tokens_BT)

    def logits_behind(self, tokens: Sequence[int]) -> Tensor:
        """Logits `[B, V]` behind one more token of each row; the next call may overwrite them."""
        if self._numbered_step is not None:
            return self._numbered_step(tokens)
        tokens_B1 = torch.tensor([[token] for token in tokens])
        return self.logits(tokens_B1 if self.on_cpu else tokens_B1.to(self.decoder.device))

    def _one_token_step(self) -> Callable[[Tensor], Tensor]:
        """What reads one token of each row from here on: recorded, native or compiled steps, or ordinary passes."""
        # Not a method of this reader: a reference to itself would keep its state until the next garbage collection.
        ordinary = partial(_ordinary_step, self.decoder, self.state)
        if can_record(self.decoder, self.state):
            if self._graphs is None:
                self._graphs = GraphSteps(self.decoder, self.state, ordinary)
            self._numbered_step = self._graphs.logits_behind
            return self._graphs.logits
        self.native = NativeStep.of(self.decoder, self.state)
        if self.native is not None:
            self._numbered_step = self.native.logits_behind
            return self.native.logits
        if can_compile(self.decoder, self.state):
            self._compiled = CompiledSteps(self.decoder, self.state, ordinary)
            self._numbered_step = self._compiled.logits_behind
            return self._compiled.logits
        return ordinary

    @property
    def is_comparing(self) -> bool:
        """True while the next steps decide which form of them goes on."""
        return self._compiled is not None and self._compiled.is_comparing

    def count_pass(self, tokens: int, spent_s: float) -> None:
        """Count a pass of the decoder that read several tokens instead of steps.

        Captured steps are made, or looked for, after some decoding, which passes would delay.
        """
        if self._compiled is not None:
            self._compiled.count_pass(tokens, spent_s)
        if self._graphs is not None:
            self._graphs.count_pass(tokens)

    def release(self) -> None:
        """Let other streams use the places of recorded steps; the state stays as it is."""
        if self._graphs is not None:
            self._graphs.release()

    def read(self, tokens_BT: Tensor) -> Tensor:
        """The output of the layers `[B, T, D]` for a chunk of a prompt that goes on: its logits are not needed."""
        hidden_BTD = self.decoder.hidden(
            tokens_BT, self.state, padding=self.padding, record=self.record, **vars(self.context)
        )
        self.padding, self.context = None, EMPTY
        return hidden_BTD

    def _pass(self, tokens_BT: Tensor) -> Tensor:
        """Read the chunk in one pass of the whole decoder."""
        return self.decoder.logits(self.read(tokens_BT)[:, -1:])[:, 0]


def _ordinary_step(decoder: Decoder, state: DecoderState, tokens_B1: Tensor) -> Tensor:
    """Logits `[B, V]` of one token of each row by a pass of the whole decoder."""
    return decoder.logits(decoder.hidden(tokens_B1, state))[:, 0]


def finish_captured_steps(decoder: Decoder) -> None:
    """Compile what streams of the decoder so far would use, and wait for it; for measurements."""
    finish_builds(decoder)
    finish_fusions(decoder)


@dataclass
class RecomputingReader:
    """Reads the whole text again at each chunk; keeps its tokens and, if requested, the calibration on the prompt."""

    decoder: Decoder
    padding: Counts | None
    keep_calibration: bool = True
    record: AuxiliaryOutputs | None = None
    context: PrefillContext = EMPTY
    _text_BT: Tensor | None = field(default=None, init=False)
    _calibrated: DecoderState | None = field(default=None, init=False)

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits `[B, V]` at the last token of a chunk `[B, T]`."""
        text_BT = tokens_BT if self._text_BT is None else torch.cat([self._text_BT, tokens_BT], dim=1)
        if self._calibrated is None:
            state = self.decoder.initial_state(*text_BT.shape)
        else:
            state = self._calibrated.forget().grown(text_BT.shape[1])
        hidden_B1D = self.decoder.hidden(
            text_BT, state, padding=self.padding, record=self.record, **vars(self.context)
        )[:, -1:]
        if self.keep_calibration and self._calibrated is None:
            self._calibrated = state
        self._text_BT = text_BT
        return self.decoder.logits(hidden_B1D)[:, 0]
