"""Continue a list of prompts as one batch of streams, on an engine of their own.

Legend: `B` batch (rows), `T` tokens of the longest prompt or of a chunk.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from linnet.core.errors import UserError
from linnet.core.system import one_thread_in_forks
from linnet.inference.constrained import Grammar
from linnet.inference.engine import Engine
from linnet.inference.prefill import EMPTY, PrefillContext, check_prompts, left_pad, new_state
from linnet.inference.readers import Caches, RecomputingReader, Step
from linnet.inference.request_checks import check_memory_of_encoder
from linnet.inference.sampling import (
    Sampling,
    TokenCounts,
    check_bias,
    check_sampling,
    counts_of,
    following_seed,
    fresh_seed,
)
from linnet.inference.speculative import Speculation
from linnet.inference.streams import Request, Stream, streams_of
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.layers.cache_policy import FULL, CachePolicy, RecalibratingCache
from linnet.layers.registry import kinds_with_calibration
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState


class DecodeSettings(TypedDict, total=False):
    """The keywords of `decode`, which explains them."""

    state: DecoderState | None
    vocab_size: int | None
    caches: Caches
    record: AuxiliaryOutputs | None
    context: PrefillContext
    counts: Sequence[TokenCounts] | None


def decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
    stop_ids: Collection[int] = (),
    **settings: Unpack[DecodeSettings],
) -> Iterator[Step]:
    """Continue every prompt by up to `max_tokens` tokens; yields one `Step` after another until all rows have ended.

    A row ends before the first token that is in `stop_ids`, and is then no longer computed. The prompts are ONE chunk
    of the stream, so a mixer that calibrates on its first chunk calibrates on the whole prompt. Only the first
    `vocab_size` ids are chosen from (None: all of them). Row `b` has the seed of `sampling` plus `b`.

    `state` is advanced, with its own cache policies (None: `new_state`); `ValueError` if it has no room. It does not
    contain the last token yielded; if one of several rows ends before the others, it is up to date at the end of the
    iterator only. Without the KV-cache (`caches`) no state can be given. record: collects auxiliary outputs of every
    pass. context: of the prompts. counts: of the tokens of each row for penalties, prompts included, which are advanced
    (None: of the prompts). Processes that are forked from now on compute with one thread (`one_thread_in_forks`).

    Raises `UserError` at once for an empty prompt, an id outside the vocabulary, more tokens than learned positions, or
    if there is no calibration to leave out.
    """
    streams = decode_streams(decoder, prompts, max_tokens, sampling, stop_ids, **settings)
    return _steps_of(streams, settings.get("state"))


def decode_streams(
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
    grammars: Sequence[Grammar] | None = None,
    logprobs: int | None = None,
    speculation: Speculation | None = None,
    keep_state: bool = True,
    copies: int = 1,
) -> list[Stream]:
    """The streams of `decode`: `copies` for each prompt, one after the other. With the KV-cache a prompt is read once.

    grammars, counts: one for each stream; the other arguments: see `Request`. Several streams run without speculation.
    """
    check_prompts(decoder, prompts, max_tokens, 0 if state is None else state.position)
    check_sampling(sampling)
    check_bias(sampling, vocab_size or decoder.spec.vocab_size)
    if not caches.calibration and not any(mixer.traits.calibrates for mixer in decoder.mixers):
        problem = f"the model has no {kinds_with_calibration()} layer that calibrates on its prompt; leave it out"
        raise UserError(problem, field="cache_policy", value=RecalibratingCache.name)
    check_memory_of_encoder(decoder, state, context)
    repeated = [prompt for prompt in prompts for _ in range(copies)]
    counts = counts_of(repeated) if counts is None else counts
    if not sampling.greedy and sampling.seed is None:
        sampling = replace(sampling, seed=fresh_seed())
    requests = [
        Request(
            prompt,
            max_tokens,
            sampling if sampling.seed is None else replace(sampling, seed=following_seed(sampling.seed, row)),
            stop_ids,
            counts=count,
            grammar=None if grammars is None else grammars[row],
            logprobs=logprobs,
            keep_state=keep_state and state is not None,
            speculation=speculation if len(repeated) == 1 else None,
        )
        for row, (prompt, count) in enumerate(zip(repeated, counts, strict=True))
    ]
    vocab_size = vocab_size or decoder.spec.vocab_size
    if not caches.kv:
        if state is not None:
            raise ValueError("a state is a KV-cache: with caches.kv off none can be given")
        one_thread_in_forks()
        tokens_BT, padding = left_pad(repeated, decoder.device)
        reader = RecomputingReader(decoder, padding, caches.calibration, record, context.repeated(copies))
        return streams_of(requests, reader.logits, vocab_size, tokens_BT)
    own = state
    if own is None:
        policies: list[CachePolicy] = [FULL] * decoder.spec.layers
        own = new_state(decoder, prompts, max_tokens, caches.cache_policies(decoder, policies), copies)
    needed, room = max(map(len, prompts)) + max_tokens, own.capacity - own.position
    if needed > room:
        raise ValueError(f"the state has room for {room} more tokens, {needed} are needed")
    engine = Engine(decoder, vocab_size=vocab_size, max_batch=len(requests), chunk_tokens=None)
    return engine.submit_together(requests, own, context, record, copies)


def _steps_of(streams: Sequence[Stream], state: DecoderState | None) -> Iterator[Step]:
    """The steps of streams that have begun together; `state` holds their rows in the end."""
    try:
        while any(stream.finish_reason is None for stream in streams):
            streams[0].step()
            for stream in streams:
                if stream.error is not None:
                    raise stream.error
            yield [stream.events.popleft().token if stream.events else None for stream in streams]
    finally:
        for stream in streams:
            stream.cancel()
        if state is not None and len(streams) > 1 and any(stream.rows is not state for stream in streams):
            first, *others = (one for stream in streams if (one := stream.state) is not None)
            vars(state).update(vars(first.join(*others)))
