"""TED's three states hold the contract of a state: cuts, padding, forks, rows, saving, bytes."""

import itertools

import pytest
import torch
from examples import padded_view
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from linnet.layers.contract import Place
from linnet.layers.mixers.ted import Ted, TedSpec
from linnet.layers.mixers.ted.bank import BankState
from linnet.layers.mixers.ted.state import TedState
from linnet.layers.passes import run
from linnet.layers.retention import FULL, BankRetention, Retention
from linnet.layers.view import View
from linnet.ops.decay.eviction import EvictionPolicy

WIDTH, LENGTH, CPU = 16, 40, torch.device("cpu")
CONTEXTS = {
    "full": FULL,
    "policy": EvictionPolicy(top_k=6, threshold=0.2, min_tokens_to_keep=2),
    "bank": BankRetention(),
}

contexts = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)


def build(heads: int = 2, tolerance: float = 1e-9, key_width: int | None = None, conv: int | None = None) -> Ted:
    torch.manual_seed(0)
    spec = TedSpec(heads=heads, tolerance=tolerance, chunk=4, key_width=key_width, conv=conv)
    return spec.build(Place(WIDTH, 64)).double()


def build_all() -> Ted:
    """With keys, and a convolution over three tokens."""
    return build(key_width=3, conv=3)


kinds = pytest.mark.parametrize("build", [build, build_all], ids=["plain", "keys"])


def empty(mixer: Ted, context: Retention, batch: int = 2) -> TedState:
    return mixer.initial_state(batch, LENGTH, CPU, torch.float64, context)


def inputs(batch: int = 2) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def feed(mixer: Ted, x: Tensor, state: TedState, bounds: list[int], padding: tuple[int, ...] = (0,)) -> Tensor:
    pairs = itertools.pairwise(bounds)
    return torch.cat([run(mixer, x[:, a:b], state, padded_view(a, b, padding)) for a, b in pairs if a < b], dim=1)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(CONTEXTS)), st.lists(st.integers(1, LENGTH - 1), max_size=6), st.sampled_from([1, 4, None]))
def test_every_cut_gives_the_same(name, cuts, heads):
    mixer, x = build(heads) if heads else build_all(), inputs()
    whole = feed(mixer, x, empty(mixer, CONTEXTS[name]), [0, LENGTH])
    torch.testing.assert_close(feed(mixer, x, empty(mixer, CONTEXTS[name]), [0, *sorted(cuts), LENGTH]), whole)


@torch.no_grad()
@kinds
def test_full_and_bank_are_the_pass_without_a_state(build):
    mixer, x = build(), inputs()
    for context in (FULL, BankRetention(), EvictionPolicy(0, -1.0)):
        torch.testing.assert_close(feed(mixer, x, empty(mixer, context), [0, 3, LENGTH]), mixer(x))


@contexts
@kinds
def test_left_padding_changes_nothing_for_the_real_tokens(build, context):
    mixer, x = build(), inputs(3)
    paddings = (5, 0, 2)
    padded = feed(mixer, x, empty(mixer, context, 3), [0, 9, 17, LENGTH], paddings)
    for row, padding in enumerate(paddings):
        bounds = [0, *(bound - padding for bound in (9, 17, LENGTH))]
        alone = feed(mixer, x[row : row + 1, padding:], empty(mixer, context, 1), bounds)
        torch.testing.assert_close(padded[row : row + 1, padding:], alone)


@contexts
@kinds
def test_a_fork_a_copy_from_a_file_and_chosen_rows_go_on_as_the_state_itself(build, context):
    mixer, x = build(), inputs()
    state = empty(mixer, context)
    feed(mixer, x, state, [0, 11])
    fork, loaded = state.fork(), empty(mixer, context).with_tensors(load(save(state.tensors())))
    rows = torch.tensor([1, 0, 1])
    chosen = state.select(rows)
    rest = feed(mixer, x, state, [11, 12, LENGTH])
    for other in (fork, loaded):
        torch.testing.assert_close(feed(mixer, x, other, [11, 12, LENGTH]), rest)
    torch.testing.assert_close(feed(mixer, x[rows], chosen, [11, LENGTH]), rest[rows])


@contexts
@kinds
def test_a_state_that_forgets_is_as_new(build, context):
    mixer, x = build(), inputs()
    state = empty(mixer, context)
    feed(mixer, x, state, [0, LENGTH])
    torch.testing.assert_close(
        feed(mixer, x, state.forget(), [0, 7, LENGTH]), feed(mixer, x, empty(mixer, context), [0, LENGTH])
    )


@contexts
@kinds
def test_every_row_of_a_chunk_may_be_padded(build, context):
    mixer, x = build(), inputs()
    padded = run(mixer, x[:, :9], empty(mixer, context), padded_view(0, 9, [3, 2]))
    for row, padding in enumerate((3, 2)):
        alone = run(mixer, x[row : row + 1, padding:9], empty(mixer, context, 1), View())
        torch.testing.assert_close(padded[row : row + 1, padding:], alone)


def test_only_the_full_state_goes_back_to_an_earlier_token():
    mixer = build()
    empty(mixer, FULL).crop(3)
    for context in (CONTEXTS["policy"], CONTEXTS["bank"]):
        with pytest.raises(NotImplementedError):
            empty(mixer, context).crop(3)


def test_behind_a_convolution_no_state_goes_back():
    state = empty(build_all(), FULL)
    with pytest.raises(NotImplementedError):
        state.crop(3)
    state.crop(0)


@contexts
def test_gradients_reach_keys_and_convolution_from_the_first_chunk(context):
    if isinstance(context, BankRetention):
        pytest.skip("no gradients flow through the bank")
    mixer = build_all()
    mixer(inputs(), empty(mixer, context)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in mixer.parameters())


def test_the_bank_has_the_same_bytes_for_any_number_of_tokens():
    mixer, x = build(), inputs()
    state = empty(mixer, BankRetention(), 2)
    assert isinstance(state, BankState)
    before, fixed = state.nbytes, len(state.bank.rates_R)
    feed(mixer, x, state, [0, LENGTH])
    per_head = 8 * ((fixed + 8) * (WIDTH // 2 + 1) + fixed * WIDTH // 2)
    assert state.nbytes == before == 2 * (2 * per_head + 8)  # and each row's clock
    keyed = empty(build_all(), BankRetention())
    fixed_bytes, tokens_bytes = fixed * 4 * 2 * WIDTH, 8 * (WIDTH + 2 * 4)
    assert keyed.nbytes == 2 * (8 * (fixed_bytes + tokens_bytes + 2 * (fixed + 8) + 2 * WIDTH) + 8)
    assert state.sizes(LENGTH).tolist() == [fixed + 4] * 2 and state.sizes(6).tolist() == [fixed + 6] * 2


def test_a_bank_is_as_long_as_it_is_asked_to_be():
    short, long = (empty(build(), BankRetention(length)) for length in (64, 100_000))
    assert short.bank.length == 64 and long.bank.length == 131_072
    for length in (0, 2.5, 10**30):
        with pytest.raises(ValueError, match=f"length: {length}: expected 1 to".replace("+", ".")):
            BankRetention(length)


def test_gradients_flow_within_a_chunk_of_a_policy_and_not_into_the_next():
    mixer, x = build(), inputs()
    state = empty(mixer, EvictionPolicy(0, -1.0))
    for start, end in ((0, 5), (5, 9)):
        mixer(x[:, start:end], state, View(start)).square().sum().backward()
    assert mixer.rate_weight.grad is not None and mixer.rate_weight.grad.abs().max() > 0


@torch.no_grad()
@contexts
@kinds
def test_documents_in_one_row_begin_with_nothing(build, context):
    mixer, x = build(), inputs()
    state = empty(mixer, context)
    together = run(mixer, x[:, :30], state, View(documents=((7, 20), ())))
    later = run(mixer, x[:, 30:], state, View((10, 30)))
    for row, begin in ((0, 20), (1, 0)):
        alone = empty(mixer, context, 1)
        own = x[row : row + 1]
        expected = [run(mixer, own[:, begin:30], alone, View(0)), run(mixer, own[:, 30:], alone, View(30 - begin))]
        found = torch.cat([together[row : row + 1, begin:], later[row : row + 1]], dim=1)
        torch.testing.assert_close(found, torch.cat(expected, dim=1))


@torch.no_grad()
@contexts
@kinds
def test_rows_take_in_pieces_of_different_lengths(build, context):
    mixer, x = build(), inputs()
    together, alone = empty(mixer, context), [empty(mixer, context, 1) for _ in range(2)]
    run(mixer, x[:, :9], together, View(0))
    joint = torch.stack([torch.cat([x[0, :4], x[0, 9:12]]), x[1, 9:16]])
    out = run(mixer, joint, together, View(9, (4, 0)))
    for row, length in ((0, 3), (1, 7)):
        run(mixer, x[row : row + 1, :9], alone[row], View(0))
        expected = run(mixer, x[row : row + 1, 9 : 9 + length], alone[row], View(9))
        torch.testing.assert_close(out[row : row + 1, 7 - length :], expected)
