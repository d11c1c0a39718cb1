"""Generating token ids: the prompt in one pass, then one token of each row at a time.

Legend: `B` batch (rows), `T` tokens of the longest prompt, `V` vocabulary.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import repeat

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.system import available_bytes
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.caches import CachedReader, Caches, RecomputingReader
from linnet.inference.forks import one_thread_in_forks
from linnet.inference.prefill import EMPTY, PrefillContext, check_given, left_pad
from linnet.inference.sampling import Sampling, choose, fresh_seed, row_uniforms
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

Step = list[int | None]
"""The next token id of each row; None for a row that has ended."""


def new_state(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_tokens: int, cache_policy: CachePolicies = FULL
) -> DecoderState:
    """An empty state with room for the longest prompt and `max_tokens` more; `UserError` as from `decode`.

    `cache_policy`: see `cache_policy_state`.
    """
    _check_prompts(decoder, prompts, max_tokens)
    _check_positions(decoder, 0, _longest(prompts), max_tokens)
    capacity = _longest(prompts) + max_tokens
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
    given: PrefillContext = EMPTY,
) -> Iterator[Step]:
    """Continue every prompt by up to `max_tokens` tokens; yields one `Step` after another until all rows have ended.

    A row ends before the first token that is in `stop_ids`. The prompts are ONE chunk of the stream, so a mixer that
    calibrates on its first chunk calibrates on the whole prompt. Only the first `vocab_size` ids are chosen from (None:
    all of them).

    `state` is advanced, with its own cache policies (None: `new_state`); `ValueError` where it has no room. The
    last token yielded is not in it yet.
    Without the KV-cache (`caches`) no state can be given. `record`: what layers leave in every pass. `given`: what the
    prompts are read with. A process that is forked from here on computes with one thread (`one_thread_in_forks`).

    Raises `UserError` at once for an empty prompt, an id outside the vocabulary, more tokens than learned positions, or
    no calibration to leave out.
    """
    _check_prompts(decoder, prompts, max_tokens)
    caches.check(decoder)
    check_given(decoder, state, given)
    one_thread_in_forks()
    tokens_BT, padding = left_pad(prompts, decoder.device)
    if not caches.kv:
        if state is not None:
            raise ValueError("a state is a KV-cache: with caches.kv off none can be given")
        _check_positions(decoder, 0, _longest(prompts), max_tokens)
        reader: CachedReader | RecomputingReader = RecomputingReader(
            decoder, padding, caches.calibration, record, given
        )
    else:
        if state is None:
            policies: list[CachePolicy] = [FULL] * decoder.spec.layers
            state = new_state(decoder, prompts, max_tokens, caches.cache_policies(decoder, policies))
        _check_room(decoder, state, _longest(prompts), max_tokens)
        reader = CachedReader(decoder, state, padding, record, given)

    def next_logits(tokens_BT: Tensor) -> Tensor:
        return reader.logits(tokens_BT)[:, :vocab_size]

    return steps(next_logits, tokens_BT, sampling, max_tokens, frozenset(stop_ids))


def _check_room(decoder: Decoder, state: DecoderState, longest: int, max_tokens: int) -> None:
    _check_positions(decoder, state.position, longest, max_tokens)
    if state.position + longest + max_tokens > state.capacity:
        room = state.capacity - state.position
        raise ValueError(f"the state has room for {room} more tokens, {longest + max_tokens} are needed")


@torch.inference_mode()
def steps(
    next_logits: Callable[[Tensor], Tensor],
    tokens_BT: Tensor,
    sampling: Sampling,
    max_tokens: int,
    stop_ids: Collection[int],
) -> Iterator[Step]:
    """What follows the prompts `[B, T]`, whoever computes it: one `Step` after another, as from `decode`.

    next_logits: `[B, V]` behind the tokens `[B, T]`, which go on where those before ended.
    """
    rows = len(tokens_BT)
    running = [True] * rows
    for count, uniform_B in enumerate(_uniforms(sampling, rows), start=1):
        chosen_B = choose(next_logits(tokens_BT), sampling, uniform_B)
        chosen = chosen_B.tolist()
        running = [runs and token not in stop_ids for runs, token in zip(running, chosen, strict=True)]
        yield [token if runs else None for runs, token in zip(running, chosen, strict=True)]
        if not any(running) or count == max_tokens:
            return
        tokens_BT = chosen_B[:, None]


def _uniforms(sampling: Sampling, rows: int) -> Iterator[Tensor | None]:
    if sampling.greedy:
        return repeat(None)
    return row_uniforms(fresh_seed() if sampling.seed is None else sampling.seed, rows, sampling.drawn)


def _longest(prompts: Sequence[Sequence[int]]) -> int:
    return max(len(prompt) for prompt in prompts)


def _check_prompts(decoder: Decoder, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    if max_tokens < 1:
        raise UserError(field="max_tokens", value=max_tokens, accepted="at least 1")
    if not prompts or not all(prompts):
        raise UserError("empty", field="prompt", accepted="at least one token in every prompt")
    vocab_size = decoder.spec.vocab_size
    for token in (token for prompt in prompts for token in prompt):
        if not 0 <= token < vocab_size:
            accepted = f"0 to {vocab_size - 1}, the model's vocabulary"
            raise UserError(field="prompt", value=f"token id {token}", accepted=accepted)


def _check_positions(decoder: Decoder, position: int, longest: int, max_tokens: int) -> None:
    known, end = decoder.spec.context_length, position + longest + max_tokens
    if decoder.embedding.positions is not None and end > known:
        seen = f"{position} tokens so far, " if position else ""
        raise UserError(
            f"{seen}{longest} tokens of prompt and {max_tokens} new ones (`max_tokens`) are {end}: "
            f"the model's learned positions end at {known}"
        )
