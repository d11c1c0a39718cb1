"""Generation of token ids: the prompts in one pass, then one token of each row at a time.

A stream is read with the state of the tokens before it (`CachedReader`), or by reading the whole text again at every
step (`RecomputingReader`). The default of `Caches` is how to generate; the other settings show what each cache saves
(Gokden, arXiv 2502.13502). The input of a stream stands before its prompt, is its prefix, or is read by an encoder.

Legend: `B` batch (rows), `T` tokens of the longest prompt or of a chunk, `V` vocabulary, `D` model width.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor

from linnet.core.errors import UserError, note
from linnet.core.system import available_bytes
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.compiled_step import CompiledSteps, can_compile
from linnet.inference.decode_steps import DecodeSteps
from linnet.inference.device import one_thread_in_forks
from linnet.inference.sampling import (
    Sampling,
    TokenCounts,
    adjust,
    check_bias,
    choose,
    counts_of,
    fresh_seed,
    row_uniforms,
)
from linnet.layers.batch_layout import AuxiliaryOutputs, Counts, Memory
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.registry import kinds_with_calibration
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, padding_counts

Step = list[int | None]
"""The next token id of each row; None for a row that has ended."""


@dataclass(frozen=True)
class PrefillContext:
    """Context of the first chunk: an encoder's memory, and the number of prefix tokens of each row."""

    memory: Memory | None = None
    prefixes: Counts | None = None


EMPTY = PrefillContext()


@dataclass(frozen=True)
class PrefillInputs:
    """Prompts and inputs as a model reads them.

    prompts: tokens of each row, behind its input unless an encoder reads that. inputs: tokens for the encoder; None
    without one. prefixes: see `PrefillContext`.
    """

    prompts: list[list[int]]
    inputs: list[list[int]] | None = None
    prefixes: Counts | None = None

    @torch.inference_mode()
    def context(self, decoder: Decoder) -> PrefillContext:
        """The context of the first chunk; the encoder reads all inputs for it."""
        memory = None if self.inputs is None else decoder.encode(*left_pad(self.inputs, decoder.device))
        return PrefillContext(memory, self.prefixes)


def prefill_inputs(
    decoder: Decoder, prompts: Sequence[Sequence[int]], inputs: Sequence[Sequence[int]] | None
) -> PrefillInputs:
    """Prompts, with an input for each or none.

    An input stands between two end tokens; the prompt begins with the second. `UserError` for an encoder's input that
    is longer than learned positions; one that is longer than the context length otherwise is noted.
    """
    rows = [list(prompt) for prompt in prompts]
    if inputs is None:
        return PrefillInputs(rows)
    if decoder.encoder is not None:
        longest, known = max(map(len, inputs), default=0), decoder.spec.context_length
        if longest > known and decoder.embedding.positions is not None:
            problem = f"{longest} tokens with the end tokens around it: the model's learned positions end at {known}"
            raise UserError(problem, field="input")
        if longest > known:
            note(f"{longest} tokens of input are more than the model's context length of {known} (context_length)")
        return PrefillInputs(rows, [list(row) for row in inputs])
    joined = [[*own[:-1], *row] for own, row in zip(inputs, rows, strict=True)]
    return PrefillInputs(joined, None, tuple(map(len, inputs)) if decoder.spec.prefix else None)


def left_pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, Counts | None]:
    """Token ids `[B, T]` with padding (id 0) before shorter prompts, and the lengths of the padding (None: all 0)."""
    longest = max(len(prompt) for prompt in prompts)
    tokens_BT = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    return tokens_BT, padding_counts([longest - len(prompt) for prompt in prompts])


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
    pass of the whole decoder.
    """

    decoder: Decoder
    state: DecoderState
    padding: Counts | None = None
    record: AuxiliaryOutputs | None = None
    context: PrefillContext = EMPTY
    _steps: DecodeSteps | CompiledSteps | None = field(default=None, init=False)
    _prompt_was_read: bool = field(default=False, init=False)

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Logits `[B, V]` at the last token of a chunk `[B, T]`."""
        if self._steps is not None and tokens_BT.numel() == 1:
            return self._steps.logits(tokens_BT)
        logits_BV = self._pass(tokens_BT)
        if not self._prompt_was_read and self.record is None:
            steps, self._prompt_was_read = DecodeSteps.of(self.decoder, self.state), True
            ordinary = self._pass if steps is None else steps.logits
            can_be_compiled = can_compile(self.decoder, self.state)
            self._steps = CompiledSteps(self.decoder, self.state, ordinary, steps) if can_be_compiled else steps
        return logits_BV

    def _pass(self, tokens_BT: Tensor) -> Tensor:
        """Read the chunk in one pass of the whole decoder."""
        hidden_B1D = self.decoder.hidden(
            tokens_BT, self.state, padding=self.padding, record=self.record, **vars(self.context)
        )[:, -1:]
        self.padding, self.context = None, EMPTY
        return self.decoder.logits(hidden_B1D)[:, 0]


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


def new_state(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_tokens: int, cache_policy: CachePolicies = FULL
) -> DecoderState:
    """An empty state with room for the longest prompt and `max_tokens` more; `UserError` as from `decode`.

    `cache_policy`: see `cache_policy_state`.
    """
    _check_prompts(decoder, prompts, max_tokens)
    capacity = max(map(len, prompts)) + max_tokens
    try:
        planned = cache_policy_state(decoder, len(prompts), capacity, cache_policy, device=torch.device("meta"))
        if planned.nbytes > available_bytes(decoder.device):
            raise MemoryError
        return cache_policy_state(decoder, len(prompts), capacity, cache_policy)
    except (RuntimeError, MemoryError, TypeError, OverflowError):  # the last two: more than a tensor can have
        rows = f"{len(prompts)} times " if len(prompts) > 1 else ""
        problem = f"no memory for the state of {rows}{capacity} tokens"
        raise UserError(problem, field="max_tokens", value=max_tokens) from None


def decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int] = (),
    *,
    state: DecoderState | None = None,
    vocab_size: int | None = None,
    caches: Caches = Caches(),
    record: AuxiliaryOutputs | None = None,
    context: PrefillContext = EMPTY,
    counts: Sequence[TokenCounts] | None = None,
) -> Iterator[Step]:
    """Continue every prompt by up to `max_tokens` tokens; yields one `Step` after another until all rows have ended.

    A row ends before the first token that is in `stop_ids`. The prompts are ONE chunk of the stream, so a mixer that
    calibrates on its first chunk calibrates on the whole prompt. Only the first `vocab_size` ids are chosen from (None:
    all of them).

    `state` is advanced, with its own cache policies (None: `new_state`); `ValueError` if it has no room. It does not
    contain the last token yielded. Without the KV-cache (`caches`) no state can be given. record: collects auxiliary
    outputs of every pass. context: of the prompts. counts: of the tokens of each row for penalties, prompts included,
    which are advanced (None: of the prompts). Processes that are forked from now on compute with one
    thread (`one_thread_in_forks`).

    Raises `UserError` at once for an empty prompt, an id outside the vocabulary, more tokens than learned positions, or
    if there is no calibration to leave out.
    """
    _check_prompts(decoder, prompts, max_tokens, 0 if state is None else state.position)
    check_bias(sampling, vocab_size or decoder.spec.vocab_size)
    if not caches.calibration and not any(mixer.traits.calibrates for mixer in decoder.mixers):
        problem = f"the model has no {kinds_with_calibration()} layer that calibrates on its prompt; leave it out"
        raise UserError(problem, field="cache_policy", value=RecalibratingCache.name)
    if decoder.encoder is not None and context.memory is None and (state is None or not state.has_memory):
        raise UserError("missing: the model has an encoder, which reads it", field="input", accepted="some text")
    one_thread_in_forks()
    tokens_BT, padding = left_pad(prompts, decoder.device)
    if not caches.kv:
        if state is not None:
            raise ValueError("a state is a KV-cache: with caches.kv off none can be given")
        reader: CachedReader | RecomputingReader = RecomputingReader(
            decoder, padding, caches.calibration, record, context
        )
    else:
        if state is None:
            policies: list[CachePolicy] = [FULL] * decoder.spec.layers
            state = new_state(decoder, prompts, max_tokens, caches.cache_policies(decoder, policies))
        needed, room = tokens_BT.shape[1] + max_tokens, state.capacity - state.position
        if needed > room:
            raise ValueError(f"the state has room for {room} more tokens, {needed} are needed")
        reader = CachedReader(decoder, state, padding, record, context)
    return steps(
        lambda tokens_BT: reader.logits(tokens_BT)[:, :vocab_size],
        tokens_BT,
        sampling,
        max_tokens,
        frozenset(stop_ids),
        counts_of(prompts) if counts is None else counts,
    )


@torch.inference_mode()
def steps(
    next_logits: Callable[[Tensor], Tensor],
    tokens_BT: Tensor,
    sampling: Sampling,
    max_tokens: int,
    stop_ids: Collection[int],
    counts: Sequence[TokenCounts] | None = None,
) -> Iterator[Step]:
    """Continue the prompts `[B, T]` with any function of logits; yields steps as `decode`.

    next_logits: from tokens `[B, T]`, which continue the ones before, to the logits `[B, V]` at the last of them.
    counts: see `decode`; None: of the prompts, which have no padding.
    """
    rows = len(tokens_BT)
    counts = counts_of(tokens_BT.tolist()) if counts is None else counts
    running = [True] * rows
    uniforms: Iterator[Tensor | None] = repeat(None)
    if not sampling.greedy:
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        uniforms = row_uniforms(seed, rows, sampling.drawn)
    for count, uniform_B in enumerate(uniforms, start=1):
        chosen_B = choose(adjust(next_logits(tokens_BT), sampling, counts), sampling, uniform_B)
        chosen = chosen_B.tolist()
        for row, token in zip(counts, chosen, strict=True):
            row.add(token)
        running = [runs and token not in stop_ids for runs, token in zip(running, chosen, strict=True)]
        yield [token if runs else None for runs, token in zip(running, chosen, strict=True)]
        if not any(running) or count == max_tokens:
            return
        tokens_BT = chosen_B[:, None]


def _check_prompts(decoder: Decoder, prompts: Sequence[Sequence[int]], max_tokens: int, position: int = 0) -> None:
    """`UserError` for prompts that a decoder cannot read, or continue by `max_tokens`, behind `position` tokens."""
    if max_tokens < 1:
        raise UserError(field="max_tokens", value=max_tokens, accepted="at least 1")
    if not prompts or not all(prompts):
        raise UserError("empty", field="prompt", accepted="at least one token in every prompt")
    vocab_size = decoder.spec.vocab_size
    for token in (token for prompt in prompts for token in prompt):
        if not 0 <= token < vocab_size:
            accepted = f"0 to {vocab_size - 1}, the model's vocabulary"
            raise UserError(field="prompt", value=f"token id {token}", accepted=accepted)
    length, longest = decoder.spec.context_length, max(map(len, prompts))
    end = position + longest + max_tokens
    if decoder.embedding.positions is not None and end > length:
        read = f"{position} tokens so far, " if position else ""
        raise UserError(
            f"{read}{longest} tokens of prompt and {max_tokens} new ones (`max_tokens`) are {end}: "
            f"the model's learned positions end at {length}"
        )
