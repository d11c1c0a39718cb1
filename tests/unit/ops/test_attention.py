import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.attention import KeyRange, attention, attention_mask, attention_reference
from linnet.ops.native import library
from linnet.ops.windowed_attention import windowed_pairs


@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([(4, 4), (4, 2), (4, 1)]), st.booleans())
def test_fused_kernel_equals_the_definition(queries, past, heads, padded):
    generator = torch.Generator().manual_seed(queries * 100 + past)
    q = torch.randn(2, heads[0], queries, 8, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 2, heads[1], past + queries, 8, dtype=torch.float64, generator=generator)
    key_range = KeyRange(torch.tensor([0, past]) if padded else None)
    torch.testing.assert_close(attention(q, k, v, key_range), attention_reference(q, k, v, key_range))


@given(
    queries=st.integers(1, 23),
    past=st.integers(0, 9),
    window=st.integers(1, 7),
    heads=st.sampled_from([(4, 4), (4, 2), (2, 1)]),
    padded=st.booleans(),
)
def test_a_window_in_blocks_equals_the_definition_with_all_gradients(queries, past, window, heads, padded):
    generator = torch.Generator().manual_seed(queries * 100 + past)
    q = torch.randn(2, heads[0], queries, 8, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 2, heads[1], past + queries, 8, dtype=torch.float64, generator=generator)
    key_range = KeyRange(torch.tensor([0, past]) if padded else None, window)
    results = []
    for form in (attention, attention_reference):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = form(*inputs, key_range, 0.7)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows_differ", [True, False])
@pytest.mark.parametrize("queries", [1, 3])
def test_keys_and_values_may_be_of_fewer_bits(queries: int, rows_differ: bool, compiled: bool, monkeypatch):
    monkeypatch.setattr("linnet.ops.attention.library", lambda device: library(device) if compiled else None)
    q, room = torch.randn(2, 4, queries, 8), torch.randn(2, 2, 2, 20, 8).bfloat16()
    k, v = room[..., :9, :]
    last = torch.tensor([[5], [8 - queries]]) + torch.arange(queries)
    key_range = KeyRange(last_BT=last) if rows_differ else KeyRange()
    found = attention(q, k, v, key_range, 0.4)
    assert found.dtype == torch.float32
    expected = attention_reference(q.double(), k, v, key_range, 0.4).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_over_fewer_bits_queries_have_gradients():
    q, k, v = torch.randn(1, 2, 1, 8, requires_grad=True), *torch.randn(2, 1, 2, 5, 8).bfloat16()
    found, expected = (
        torch.autograd.grad(form(q, k, v).square().sum(), q)[0] for form in (attention, attention_reference)
    )
    torch.testing.assert_close(found, expected)


def test_a_window_is_so_many_tokens_with_its_own():
    seen = attention_mask(3, 4, torch.device("cpu"), KeyRange(window=2))
    assert seen.int().tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(("tokens", "pairs"), [(8, 64), (9, 12 * 8), (12, 12 * 8), (13, 16 * 8)])
def test_blocks_count_whole_blocks_and_their_neighbors(tokens: int, pairs: int):
    assert windowed_pairs(tokens, 4) == pairs


def test_the_first_tokens_are_seen_beside_a_window():
    seen = attention_mask(3, 5, torch.device("cpu"), KeyRange(window=2, sink_tokens=1))
    assert seen.int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_each_query_sees_itself_and_what_came_before():
    assert attention_mask(2, 4, torch.device("cpu")).tolist() == [[True, True, True, False], [True, True, True, True]]


def test_padding_is_seen_by_padding_alone():
    seen = attention_mask(3, 3, torch.device("cpu"), KeyRange(torch.tensor([2])))[0, 0]
    assert seen.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_stay_finite(scale):
    q, k, v = scale * torch.randn(3, 1, 2, 5, 8)
    assert attention(q, k, v).isfinite().all()
