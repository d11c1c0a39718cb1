"""A stored state is what reading its tokens anew gives, within a bound of bytes, the least recently used first."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import CASES, EXAMPLES, VOCABULARY, small_decoder

from linnet.core.errors import UserError
from linnet.inference.prefix_store import PrefixStore, prefix_key
from linnet.layers.batch_layout import Memory
from linnet.layers.cache_policy import FULL
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.ted import BankCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState

FIRST = {mixer.kind: mixer for mixer in reversed(EXAMPLES)}
ATTENTION, TED, RGLRU = FIRST["attention"], FIRST["ted"], FIRST["rglru"]
UNBOUNDED = 2**40
KEY = "model"
NEXT = torch.tensor([[3]])
TEXTS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=7)


def hybrid() -> Decoder:
    """A layer that can be cropped before one that cannot."""
    layer = {"feed_forward": {"kind": "glu", "hidden": 24}}
    blocks = [{**layer, "mixer": mixer.model_dump()} for mixer in (ATTENTION, RGLRU)]
    spec = {"vocab_size": VOCABULARY, "d_model": 16, "context_length": 64, "blocks": blocks}
    torch.manual_seed(0)
    return Decoder(ModelSpec.parse(spec, "test")).double()


DECODERS = {"croppable": small_decoder(ATTENTION), "recurrent": small_decoder(RGLRU), "hybrid": hybrid()}
every_decoder = pytest.mark.parametrize("name", DECODERS)


def read(decoder: Decoder, tokens: list[int]) -> DecoderState:
    """A state that has read the tokens, with room for more."""
    return read_once(decoder, tuple(tokens))[0].fork()


@cache
@torch.no_grad()
def read_once(decoder: Decoder, tokens: tuple[int, ...]) -> tuple[DecoderState, torch.Tensor]:
    """That state, and the logits of a next token."""
    state = decoder.initial_state(1, len(tokens) + 3)
    decoder(torch.tensor([tokens]), state)
    return state, decoder(NEXT, state.fork())


@torch.no_grad()
def assert_same_stream(decoder: Decoder, state: DecoderState, tokens: list[int]) -> None:
    """The state, which has no unused room, gives the next logits of a fresh read of the tokens."""
    assert state.positions == (len(tokens),) and state.capacity == len(tokens)
    _, expected = read_once(decoder, tuple(tokens))
    torch.testing.assert_close(decoder(NEXT, state.grown(len(tokens) + 1)), expected)


def served(stored: list[list[int]], tokens: list[int], croppable: bool) -> int:
    """The slow reference: the most tokens that one of the stored texts serves."""

    def common(text: list[int]) -> int:
        same = next((n for n, (a, b) in enumerate(zip(text, tokens, strict=False)) if a != b), None)
        return min(len(text), len(tokens)) if same is None else same

    return max((common(text) for text in stored if croppable or common(text) == len(text)), default=0)


def true_nbytes(store: PrefixStore) -> int:
    """What the nodes hold, each storage in full."""
    total, nodes = 0, list(store._roots.values())
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        held = [tensor for fields in node.places for tensor in fields.values()]
        held += [] if node.snapshot is None else [x for s in node.snapshot.sublayers for x in s.tensors().values()]
        total += 8 * len(node.edge) + sum(tensor.untyped_storage().nbytes() for tensor in held)
    return total


@every_decoder
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(TEXTS, max_size=6), asked=st.lists(TEXTS, min_size=1, max_size=4))
def test_what_is_found_is_what_a_fresh_read_gives(name: str, texts: list[list[int]], asked: list[list[int]]):
    decoder, store = DECODERS[name], PrefixStore(UNBOUNDED)
    for text in texts:
        store.insert(text, read(decoder, text), KEY)
    for tokens in asked:
        expected = served(texts, tokens, croppable=name == "croppable")
        assert store.longest(tokens, KEY) == expected
        found = store.find(tokens, KEY)
        if expected == 0:
            assert found is None
        else:
            state, count = found
            assert count == expected
            assert_same_stream(decoder, state, tokens[:count])
    assert store.nbytes == true_nbytes(store)
    saved, counters = sum(served(texts, tokens, name == "croppable") for tokens in asked), store.counters
    assert counters.tokens_saved == saved and counters.tokens_read == sum(map(len, asked)) - saved
    assert counters.hits + counters.misses == len(asked)


@every_decoder
@settings(max_examples=25, deadline=None)
@given(
    room=st.integers(1, 6),
    calls=st.lists(st.tuples(st.booleans(), TEXTS, st.sampled_from(["a", "b"])), min_size=1, max_size=14),
)
def test_the_bound_is_never_exceeded_and_hits_stay_right(name: str, room: int, calls: list):
    decoder = DECODERS[name]
    store = PrefixStore(room * read(decoder, [1, 2, 1]).held_nbytes(3))
    for inserts, tokens, key in calls:
        if inserts:
            state = read(decoder, tokens)
            refused = store.counters.refused
            store.insert(tokens, state, key)
            if store.counters.refused == refused:
                assert store.longest(tokens, key) == len(tokens)
        elif (found := store.find(tokens, key)) is not None:
            state, count = found
            assert_same_stream(decoder, state, tokens[:count])
        assert store.nbytes == true_nbytes(store) <= store.max_bytes


@every_decoder
def test_the_least_recently_used_state_goes_first(name: str):
    decoder, texts = DECODERS[name], [[1, 5, 5], [2, 5, 5], [3, 5, 5], [4, 5, 5]]
    states = [read(decoder, text) for text in texts]
    store = PrefixStore(3 * (states[0].held_nbytes(3) + 8 * 3))
    for text, state in zip(texts[:3], states, strict=False):
        store.insert(text, state, KEY)
    store.find(texts[0], KEY)
    store.insert(texts[3], states[3], KEY)
    assert [store.longest(text, KEY) for text in texts] == [3, 0, 3, 3]
    store.insert(texts[1], states[1], KEY)
    assert [store.longest(text, KEY) for text in texts] == [3, 3, 0, 3]
    assert store.counters.dropped == 2


def test_a_beginning_in_use_stays_when_its_continuations_go():
    decoder, store = DECODERS["croppable"], PrefixStore(UNBOUNDED)
    trunk = [1, 2, 3, 4]
    for last in (5, 6, 7):
        store.insert([*trunk, last], read(decoder, [*trunk, last]), KEY)
    store.max_bytes = store.nbytes - 1
    store.insert([*trunk, 8], read(decoder, [*trunk, 8]), KEY)
    assert [store.longest([*trunk, last], KEY) for last in (5, 6, 7, 8)] == [4, 4, 5, 5]
    store.max_bytes = read(decoder, trunk).held_nbytes(4) + 8 * 4
    store._make_room(0, ())
    assert store.longest([*trunk, 8], KEY) == 4 and store.nbytes == store.max_bytes
    assert_same_stream(decoder, store.find([*trunk, 8], KEY)[0], trunk)


def test_texts_with_a_common_beginning_share_it():
    decoder, store = DECODERS["hybrid"], PrefixStore(UNBOUNDED)
    text = [1, 2] * 10
    for end in range(1, 21):
        store.insert(text[:end], read(decoder, text[:end]), KEY)
    constant = read(decoder, text).held_nbytes(0)
    assert store.nbytes == read(decoder, text).held_nbytes(20) + 19 * constant + 8 * 20
    assert len(store) == 20


def test_a_longer_state_that_can_be_cropped_replaces_its_beginnings():
    decoder, store = DECODERS["croppable"], PrefixStore(UNBOUNDED)
    for end in range(1, 5):
        store.insert([1, 2, 3, 4][:end], read(decoder, [1, 2, 3, 4][:end]), KEY)
    assert len(store) == 1 and store.longest([1, 2, 5], KEY) == 2


def test_a_stored_state_shares_nothing_with_the_ones_that_run():
    decoder, store, tokens = DECODERS["hybrid"], PrefixStore(UNBOUNDED), [1, 2, 1, 1]
    state = read(decoder, tokens)
    store.insert(tokens, state, KEY)
    first, second = (store.find(tokens, KEY)[0] for _ in range(2))
    for other in (state, first):
        for sublayer in other.sublayers:
            for tensor in sublayer.tensors().values():
                tensor.fill_(torch.nan)
    assert_same_stream(decoder, second, tokens)
    assert_same_stream(decoder, store.find(tokens, KEY)[0], tokens)


def test_a_state_larger_than_the_store_is_refused_and_the_others_stay():
    decoder, store = DECODERS["croppable"], PrefixStore(UNBOUNDED)
    store.insert([1, 2], read(decoder, [1, 2]), KEY)
    store.max_bytes = store.nbytes + 1
    store.insert([3] * 9, read(decoder, [3] * 9), KEY)
    assert store.counters.refused == 1 and len(store) == 1
    assert store.longest([1, 2], KEY) == 2 and store.longest([3], KEY) == 0


@pytest.mark.parametrize("mixer", CASES)
@torch.no_grad()
def test_every_kind_of_state_is_restored(mixer: MixerSpec):
    decoder, store, tokens = small_decoder(mixer), PrefixStore(UNBOUNDED), [4, 7, 1, 7, 2, 2, 9]
    state = read(decoder, tokens)
    store.insert(tokens, state, KEY)
    restored, count = store.find([*tokens, 5], KEY, capacity=12)
    assert count == 7 and restored.capacity == 12
    next_12 = torch.tensor([[3, 4]])
    torch.testing.assert_close(decoder(next_12, restored), decoder(next_12, state))
    assert store.nbytes == read(decoder, tokens).held_nbytes(7) + 8 * 7


def test_a_key_tells_apart_what_a_state_depends_on_beside_its_tokens():
    decoder, other = small_decoder(TED), small_decoder(TED)
    full, bank = (decoder.initial_state(1, 16, [policy] * 2) for policy in (FULL, BankCache(16)))
    memory = Memory(torch.ones(1, 2, 4))
    keys = [
        prefix_key(decoder, full, [1, 2]),
        prefix_key(other, full, [1, 2]),
        prefix_key(decoder, bank, [1, 2]),
        prefix_key(decoder, decoder.initial_state(1, 17, [BankCache(17)] * 2), [1, 2]),
        prefix_key(decoder, full, [1, 2], prefixes=(1,)),
        prefix_key(decoder, full, [1, 2], memory=memory),
        prefix_key(decoder, full, [1, 2], memory=Memory(2 * memory.hidden_BSE)),
        prefix_key(decoder, full, [1, 2], memory=Memory(memory.hidden_BSE, torch.tensor([[False, True]]))),
    ]
    assert len(set(keys)) == len(keys)
    assert prefix_key(decoder, decoder.initial_state(1, 99), [3, 4, 5]) == keys[0]


def test_a_layer_that_calibrates_on_its_prompt_serves_this_prompt_alone():
    mixer = next(mixer for mixer in EXAMPLES if mixer.kind == "plga")
    decoder, store = small_decoder(mixer), PrefixStore(UNBOUNDED)
    assert any(mixer.traits.calibrates for mixer in decoder.mixers)
    tokens, state = [4, 7, 1, 7], read(decoder, [4, 7, 1, 7])
    store.insert(tokens, state, prefix_key(decoder, state, tokens))
    assert store.longest(tokens[:3], prefix_key(decoder, state, tokens[:3])) == 0
    assert store.longest([*tokens, 1], prefix_key(decoder, state, [*tokens, 1])) == 0
    again, count = store.find(tokens[:-1], prefix_key(decoder, state, tokens))
    assert count == 3
    with torch.no_grad():
        expected = decoder(torch.tensor([tokens]), decoder.initial_state(1, 4))[:, -1]
        torch.testing.assert_close(decoder(torch.tensor([tokens[-1:]]), again.grown(4))[:, 0], expected)


@every_decoder
def test_a_state_that_cannot_be_copied_leaves_the_store_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch):
    decoder, store = DECODERS[name], PrefixStore(UNBOUNDED)
    store.insert([1, 2], read(decoder, [1, 2]), KEY)
    nbytes, longer = store.nbytes, read(decoder, [1, 2, 1])
    with monkeypatch.context() as patched:
        patched.setattr(DecoderState, "grown", lambda *_: 1 / 0)
        for tokens in ([1, 2, 1], [2, 2]):
            with pytest.raises(ZeroDivisionError):
                store.insert(tokens, read(decoder, tokens), KEY)
    assert store.nbytes == true_nbytes(store) == nbytes and len(store) == 1
    store.max_bytes = longer.held_nbytes(3) + 8 * 3
    store.insert([1, 2, 1], longer, KEY)
    store.insert([2, 1, 2], read(decoder, [2, 1, 2]), KEY)  # the first has to go
    state, count = store.find([2, 1, 2], KEY)
    assert_same_stream(decoder, state, [2, 1, 2][:count])
    assert count == 3 and store.longest([1, 2, 1], KEY) == 0 and store.nbytes == true_nbytes(store)


def test_numbers_below_one_are_refused():
    with pytest.raises(UserError, match=r"max_bytes: '1 GB': expected a whole number, at least 1"):
        PrefixStore("1 GB")
    with pytest.raises(UserError, match="max_bytes: 0"):
        PrefixStore(0)
    with pytest.raises(UserError, match="snapshot_tokens: 0"):
        PrefixStore(1, 0)
