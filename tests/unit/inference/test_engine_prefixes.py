"""Streams begin with stored states of their prompts, and get the tokens that they would get without a store."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import EXAMPLES, UNLIKE, VOCABULARY, small_decoder

from linnet.inference.engine import Engine, Request, Stream
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.sampling import Sampling
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache
from linnet.model.decoder import Decoder

FIRST = {mixer.kind: mixer for mixer in reversed(EXAMPLES)}
SAMPLING = Sampling(temperature=1.0, seed=5)
PROMPT = [int(7 * place + place**2) % (VOCABULARY - 1) for place in range(29)]


def request(prompt: list[int], **settings: object) -> Request:
    return Request(prompt, 5, SAMPLING, **settings)


def tokens_of(stream: Stream) -> list[int]:
    return [event.token for event in stream]


def alone(decoder: Decoder, prompt: list[int], **settings: object) -> list[int]:
    return tokens_of(Engine(decoder).submit(request(prompt, **settings)))


@pytest.mark.parametrize("mixer", UNLIKE)
def test_a_stored_beginning_changes_no_token(mixer: MixerSpec):
    decoder, store = small_decoder(mixer), PrefixStore(2**40, snapshot_tokens=8)
    engine = Engine(decoder, chunk_tokens=16, prefixes=store)
    answer = tokens_of(engine.submit(request(PROMPT)))
    prompts = [PROMPT, [*PROMPT, *answer, 3], [*PROMPT[:20], 1, 2], PROMPT[:9], [4, *PROMPT]]
    streams = [engine.submit(request(prompt)) for prompt in prompts]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert tokens_of(stream) == alone(decoder, prompt), len(prompt)
    calibrates = any(mixer.traits.calibrates and mixer.traits.calibrated_after is None for mixer in decoder.mixers)
    cropped = decoder.initial_state(1, 1).is_croppable
    lengths = [28, 33, 20, 8, 0] if cropped else [28, 33, 16, 8, 0]
    assert [stream.cached_tokens for stream in streams] == ([28, 0, 0, 0, 0] if calibrates else lengths)


@pytest.mark.parametrize("kind", ["attention", "rglru"])
@pytest.mark.parametrize("together", [True, False])
def test_a_prompt_that_many_share_is_read_once(kind: str, together: bool):
    decoder, store = small_decoder(FIRST[kind]), PrefixStore(2**40, snapshot_tokens=8)
    engine = Engine(decoder, prefixes=store, max_batch=32)
    streams = []
    for _ in range(32):
        streams.append(engine.submit(request(PROMPT)))
        if not together:
            engine.step()
    expected = alone(decoder, PROMPT)
    assert all(tokens_of(stream) == expected for stream in streams)
    counters = store.counters
    assert (counters.hits, counters.misses) == (31, 1)
    assert counters.tokens_saved == 31 * 28 and counters.tokens_read == 28


@pytest.mark.parametrize("policy", [EvictionCache(top_k=4), BankCache(64)], ids=["eviction", "bank"])
def test_a_cache_policy_is_part_of_what_is_looked_up(policy: EvictionCache | BankCache):
    decoder, store = small_decoder(FIRST["ted"]), PrefixStore(2**40, snapshot_tokens=8)
    engine = Engine(decoder, prefixes=store)
    for cached in (0, 28):
        for settings_of in ({}, {"cache_policy": policy}):
            stream = engine.submit(request(PROMPT, **settings_of))
            assert tokens_of(stream) == alone(decoder, PROMPT, **settings_of)
            assert stream.cached_tokens == cached


def test_a_stream_that_ends_early_leaves_what_it_has_read():
    decoder, store = small_decoder(FIRST["rglru"]), PrefixStore(2**40, snapshot_tokens=8)
    engine = Engine(decoder, chunk_tokens=8, prefixes=store)
    stream = engine.submit(request(PROMPT))
    engine.step()
    stream.cancel()
    again = engine.submit(request(PROMPT))
    assert tokens_of(again) == alone(decoder, PROMPT) and again.cached_tokens == 8


def test_a_state_that_was_handed_over_is_stored_with_the_tokens_that_it_has_read():
    decoder, store = small_decoder(FIRST["rglru"]), PrefixStore(2**40, snapshot_tokens=8)
    engine = Engine(decoder, prefixes=store)
    first = engine.submit(request(PROMPT))
    answer = tokens_of(first)
    state, read = first.state, [*PROMPT, *answer[:-1]]
    unknown = engine.submit(request([answer[-1], 3, 4], state=state))
    known = engine.submit(request([answer[-1], 3, 4], state=state, read_tokens=read))
    assert tokens_of(unknown) == tokens_of(known) and unknown.stored is None
    assert store.longest([*read, answer[-1], 3, 4, 1], known.stored.key) == len(read) + 2


@pytest.mark.parametrize("kind", ["attention", "rglru"])
@settings(max_examples=8, deadline=None)
@given(data=st.data(), max_bytes=st.sampled_from([1, 3000, 2**40]))
def test_streams_that_come_and_go_get_the_tokens_that_they_get_alone(kind: str, data: st.DataObject, max_bytes: int):
    decoder, store = DECODERS[kind], PrefixStore(max_bytes, snapshot_tokens=data.draw(st.integers(1, 5)))
    engine = Engine(decoder, chunk_tokens=data.draw(st.integers(1, 9)), max_batch=3, prefixes=store)
    streams = []
    for _ in range(data.draw(st.integers(1, 5))):
        prompt = [*PROMPT[: data.draw(st.integers(1, 12))], *data.draw(st.lists(st.integers(1, 2), max_size=3))]
        streams.append((prompt, engine.submit(request(prompt))))
        for _ in range(data.draw(st.integers(0, 4))):
            engine.step()
        if data.draw(st.booleans()) and len(streams) > 2:
            streams.pop(0)[1].cancel()
    for prompt, stream in streams:
        assert tokens_of(stream) == alone(decoder, prompt)
        assert store.nbytes <= max_bytes


DECODERS = {kind: small_decoder(FIRST[kind]) for kind in ("attention", "rglru")}
