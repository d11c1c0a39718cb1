"""The sizes of TED's states over a stream, against the sizes after every single token."""

from itertools import pairwise

import pytest
import torch
from examples import padded_view
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small_decoder

from linnet.inference.cache_policy import cache_policy_state
from linnet.inference.state import load_state, save_state
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import Place
from linnet.layers.mixers.ted import BankCache, EvictionCache, Ted, TedSpec
from linnet.layers.mixers.ted import eviction as ted_policy
from linnet.layers.mixers.ted.state import TedState
from linnet.layers.passes import run

WIDTH, LENGTH = 8, 23
CONTEXTS = [FULL, BankCache(), EvictionCache(5, -1.0), EvictionCache(0, 0.3), EvictionCache(6, 0.1, 2)]
every_context = pytest.mark.parametrize("context", CONTEXTS, ids=str)


@pytest.fixture
def ted() -> Ted:
    torch.manual_seed(0)
    return TedSpec(heads=2, chunk=3).build(Place(WIDTH, 64)).double()


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def empty(ted: Ted, context: CachePolicy, batch: int = 2, capacity: int = LENGTH) -> TedState:
    return ted.initial_state(batch, capacity, torch.device("cpu"), torch.float64, context)


@torch.no_grad()
def read(ted: Ted, x_BTD: torch.Tensor, state: TedState, bounds: list[int], padding: tuple[int, ...] = (0,)):
    for start, end in pairwise(bounds):
        run(ted, x_BTD[:, start:end], state, padded_view(start, end, padding))
    return state


def each_size(ted: Ted, x_BTD: torch.Tensor, context: CachePolicy) -> torch.Tensor:
    """The sizes after every token, one token at a time, `[T, B]`."""
    state, sizes = empty(ted, context, len(x_BTD)), []
    for step in range(x_BTD.shape[1]):
        read(ted, x_BTD, state, [step, step + 1])
        sizes.append(state.sizes(step + 1))
    return torch.stack(sizes)


def assert_sizes(state: TedState, position: int | torch.Tensor, sizes_TB: torch.Tensor) -> None:
    torch.testing.assert_close(state.mean_sizes(position), sizes_TB.double().mean(0))
    assert state.largest_sizes(position).tolist() == sizes_TB.amax(0).tolist()


@every_context
@pytest.mark.parametrize("at_once", [4, 11, 256])
@pytest.mark.parametrize("bounds", [[0, LENGTH], [0, 1, 2, 9, LENGTH], list(range(LENGTH + 1))])
def test_mean_and_largest_sizes_do_not_depend_on_the_chunks(ted, context, at_once, bounds, monkeypatch):
    monkeypatch.setattr(ted_policy, "STEPS_AT_ONCE", at_once)
    sizes_TB = each_size(ted, inputs(), context)
    assert_sizes(read(ted, inputs(), empty(ted, context), bounds), LENGTH, sizes_TB)
    if isinstance(context, EvictionCache):
        assert len(set(sizes_TB.flatten().tolist())) > 2, "evictions to be counted"


@settings(max_examples=40)
@given(
    st.builds(EvictionCache, st.integers(0, 9), st.floats(-0.1, 2), st.integers(0, 4)),
    st.lists(st.integers(1, LENGTH - 1), max_size=4, unique=True),
)
def test_any_policy_and_any_cut(policy: EvictionCache, cuts: list[int]):
    torch.manual_seed(0)
    ted = TedSpec().build(Place(WIDTH, 64)).double()
    state = read(ted, inputs(), empty(ted, policy), [0, *sorted(cuts), LENGTH])
    assert_sizes(state, LENGTH, each_size(ted, inputs(), policy))


@pytest.mark.parametrize("chunk", [1, 3, 32])
@pytest.mark.parametrize("context", [FULL, BankCache()], ids=str)
def test_sizes_are_computed_from_the_position(context: CachePolicy, chunk: int):
    state = empty(TedSpec(chunk=chunk).build(Place(WIDTH, 64)), context, batch=1, capacity=200)
    for position in range(1, 200):
        assert_sizes(state, position, torch.stack([state.sizes(step) for step in range(1, position + 1)]))


@every_context
def test_the_state_is_empty_before_the_first_token(ted, context):
    fresh = empty(ted, context)
    used = read(ted, inputs(), empty(ted, context), [0, LENGTH]).forget()
    for state in (fresh, used):
        assert state.mean_sizes(0).tolist() == state.largest_sizes(0).tolist() == [0, 0]
    sizes_TB = each_size(ted, inputs(), context)
    assert_sizes(read(ted, inputs(), used, [0, LENGTH]), LENGTH, sizes_TB)


@every_context
def test_padding_does_not_count_as_a_step(ted, context):
    padding_B = torch.tensor([0, 7])
    state = read(ted, inputs(), empty(ted, context), [0, 5, LENGTH], tuple(padding_B.tolist()))
    for row, padding in enumerate(padding_B.tolist()):
        alone_TB = each_size(ted, inputs()[row : row + 1, padding:], context)
        found = state.select(torch.tensor([row]))
        assert_sizes(found, LENGTH - padding, alone_TB)
    means_B = state.mean_sizes(LENGTH - padding_B)
    assert means_B[1] == state.mean_sizes(LENGTH - 7)[1] and means_B[0] == state.mean_sizes(LENGTH)[0]


@every_context
def test_copies_continue_the_counts(ted, context):
    state = read(ted, inputs(), empty(ted, context), [0, 9])
    fork, swapped = state.fork(), state.select(torch.tensor([1, 0]))
    read(ted, inputs(), state, [9, LENGTH])
    sizes_TB = each_size(ted, inputs(), context)
    assert_sizes(fork, 9, sizes_TB[:9])
    assert_sizes(read(ted, inputs().flip(0), swapped, [9, LENGTH]), LENGTH, sizes_TB.flip(1))


@every_context
@torch.no_grad()
def test_a_loaded_state_counts_on(context, tmp_path):
    decoder = small_decoder(TedSpec(heads=2))
    tokens_BT = torch.randint(23, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    state = cache_policy_state(decoder, 2, LENGTH, context)
    decoder(tokens_BT[:, :9], state)
    save_state(state, tmp_path / "state")
    loaded = load_state(decoder, tmp_path / "state")
    for each in (state, loaded):
        decoder(tokens_BT[:, 9:], each)
    for layer, other in zip(state.layers, loaded.layers, strict=True):
        assert layer.mean_sizes(LENGTH).tolist() == other.mean_sizes(LENGTH).tolist()
        assert layer.largest_sizes(LENGTH).tolist() == other.largest_sizes(LENGTH).tolist()


@every_context
@pytest.mark.parametrize("more", [{}, {"key_width": 3, "conv": 3}], ids=["plain", "keys"])
def test_mean_bytes_match_states_without_spare_capacity(context, more):
    """A full state is allocated for its capacity, so it is compared with one for the tokens so far."""
    ted = TedSpec(heads=2, chunk=3, **more).build(Place(WIDTH, 64)).double()
    x_BTD, held = inputs(1), []
    for step in range(1, LENGTH + 1):
        capacity = step if context == FULL else LENGTH
        held.append(read(ted, x_BTD, empty(ted, context, 1, capacity), [0, step]).nbytes)
    state = read(ted, x_BTD, empty(ted, context, 1), [0, LENGTH])
    assert float(state.mean_nbytes(LENGTH)) == pytest.approx(sum(held) / LENGTH)
