"""The evictions of a context against a simulation that follows the published description word by word."""

import itertools
import math

import pytest
import torch
from examples import padded_view
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.mixers.ted.eviction import EvictionState
from linnet.layers.mixers.ted.state import Shape
from linnet.ops.decay.eviction import EvictionPolicy, survivors
from linnet.ops.decay.reference import decay_reference

HEADS, CHANNELS = 2, 3

policies = st.builds(
    EvictionPolicy,
    top_k=st.sampled_from([0, 1, 2, 5]),
    threshold=st.sampled_from([-1.0, 1e-8, 0.3, 1.0, 5.0]),
    min_tokens_to_keep=st.sampled_from([0, 1, 3]),
)


def left(rates_N: Tensor, v_NC: Tensor, age: int) -> Tensor:
    return torch.exp(-rates_N * age)[:, None] * v_NC


def simulate(rates_SN: Tensor, v_SNC: Tensor, policy: EvictionPolicy) -> tuple[Tensor, list[int]]:
    """Token by token, one row: the sums, and the size of the context after each step."""
    context: list[list[int]] = []  # token, age
    sums, sizes = [], []
    for token in range(len(v_SNC)):
        for entry in context:
            entry[1] += 1
        context.append([token, 0])
        sums.append(sum(left(rates_SN[j], v_SNC[j], age) for j, age in context))
        score = {j: float(left(rates_SN[j], v_SNC[j], age).norm()) for j, age in context}
        ranked = sorted(context, key=lambda entry: score[entry[0]], reverse=True)
        keep = ranked[: max(policy.top_k, policy.min_tokens_to_keep)] if policy.top_k else ranked
        above = [entry for entry in keep if score[entry[0]] >= policy.threshold]
        context = above if len(above) >= policy.min_tokens_to_keep else keep[: policy.min_tokens_to_keep]
        sizes.append(len(context))
    return torch.stack(sums), sizes


def stream(batch: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rates = 10 ** (-3 + 4 * torch.rand(batch, length, HEADS, dtype=torch.float64, generator=generator))
    return rates, torch.randn(batch, length, HEADS, CHANNELS, dtype=torch.float64, generator=generator)


def empty(batch: int, policy: EvictionPolicy) -> EvictionState:
    return EvictionState.empty(Shape(batch, HEADS, CHANNELS, torch.device("cpu"), torch.float64), policy)


def feed(state: EvictionState, rates: Tensor, v: Tensor, cuts: list[int], padding: tuple[int, ...] = (0, 0)) -> Tensor:
    """All padding is in the first piece."""
    outputs, bounds = [], [0, *sorted(cuts), v.shape[1]]
    for start, end in itertools.pairwise(bounds):
        if start < end:
            view = padded_view(start, end, padding)
            outputs.append(state.read(rates[:, start:end], v[:, start:end].flatten(2), view, decay_reference))
    return torch.cat(outputs, dim=1)


@settings(max_examples=150, deadline=None)
@given(policies, st.integers(1, 25), st.lists(st.integers(0, 25), max_size=5), st.integers(0, 2**31), st.booleans())
def test_a_prompt_in_any_pieces_equals_token_by_token(policy, length, cuts, seed, padded):
    rates, v = stream(2, length, seed)
    padding_B = torch.tensor([0, length // 3]) if padded else None
    if padding_B is not None:
        v = v.masked_fill((torch.arange(length) < padding_B[:, None])[..., None, None], 0.0)
    state = empty(2, policy)
    first = 0 if padding_B is None else length // 3
    actual = feed(state, rates, v, [max(first, min(cut, length)) for cut in cuts], (0, first))
    for row in range(2):
        first = 0 if padding_B is None else int(padding_B[row])
        sums, sizes = simulate(rates[row, first:], v[row, first:], policy)
        torch.testing.assert_close(actual[row, first:], sums.flatten(1), rtol=1e-9, atol=1e-9)
        assert int(state.sizes(length)[row]) == sizes[-1]


def test_a_prompt_longer_than_one_piece_equals_token_by_token():
    rates, v = stream(1, 700, 0)
    policy = EvictionPolicy(top_k=20, threshold=1e-3)
    sums, sizes = simulate(rates[0], v[0], policy)
    state = empty(1, policy)
    torch.testing.assert_close(feed(state, rates, v, [])[0], sums.flatten(1), rtol=1e-9, atol=1e-9)
    assert int(state.sizes(700)) == sizes[-1] <= 20


def test_a_threshold_evicts_only_contributions_below_it():
    """So the error of a sum is at most the threshold times the number of evicted tokens."""
    rates, v = stream(1, 300, 3)
    state = empty(1, EvictionPolicy(threshold=1e-4))
    error = feed(state, rates, v, [100]) - decay_reference(rates, v, 300).flatten(2)
    assert 0 < error.norm(dim=-1).max() < 1e-4 * 300


def test_memory_is_released_and_bounded():
    policy = EvictionPolicy(top_k=16, threshold=-1.0)
    rates, v = stream(1, 3000, 4)
    state = empty(1, policy)
    feed(state, rates, v, [])
    per_token = 8 * (HEADS * CHANNELS + HEADS + HEADS + 1)
    assert state.nbytes == 16 * per_token + 2 * 8


def test_ages_of_ten_million_steps_are_exact():
    """In float32 a count of steps would stop at 16,777,216."""
    state = EvictionState.empty(Shape(1, 1, 2, torch.device("cpu"), torch.float32), EvictionPolicy(0, 1e-8))
    rates = torch.tensor([[[1e-7], [1e-6], [3e-8]]])
    v = torch.eye(3, 2)[None] + 0.5
    state.read(rates, v, BatchLayout(), decay_reference)
    state.ages += 20_000_000
    out = state.read(torch.ones(1, 1, 1), torch.zeros(1, 1, 2), BatchLayout(20_000_003), decay_reference)
    ages = torch.tensor([20_000_003, 20_000_002, 20_000_001], dtype=torch.float64)
    expected = (torch.exp(-rates[0, :, 0].double() * ages)[:, None] * v[0].double()).sum(0)
    torch.testing.assert_close(out[0, 0].double(), expected, rtol=2e-6, atol=0)
    assert state.ages.dtype == torch.int64 and state.ages.max() == 20_000_003


def test_survivors_of_one_step():
    relevance = torch.tensor([[5.0, 1.0, 3.0, 0.1, 9.0]])
    present = torch.tensor([[True, True, True, True, False]])
    assert survivors(relevance, present, EvictionPolicy(0, 1.0)).tolist() == [[True, True, True, False, False]]
    assert survivors(relevance, present, EvictionPolicy(2, -1)).tolist() == [[True, False, True, False, False]]
    assert survivors(relevance, present, EvictionPolicy(0, 4.0, 2)).tolist() == [[True, False, True, False, False]]
    assert survivors(relevance, present, EvictionPolicy(1, -1, 3)).tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize(
    ("field", "value"), [("top_k", -1), ("threshold", math.nan), ("min_tokens_to_keep", -1), ("top_k", 10**30)]
)
def test_an_invalid_setting_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}: {value}: expected"):
        EvictionPolicy(**{field: value})
