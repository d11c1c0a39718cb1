import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.attention import (
    MAX_ABSORBED_QUERIES,
    KeyRange,
    absorbed_is_cheaper,
    attention,
    attention_mask,
    attention_reference,
    expand_latents,
    latent_attention,
    latent_attention_reference,
    windowed_pairs,
)
from linnet.ops.native import library


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
def test_keys_and_values_may_have_a_lower_precision(queries: int, rows_differ: bool, compiled: bool, monkeypatch):
    monkeypatch.setattr("linnet.ops.attention.library", lambda device: library(device) if compiled else None)
    q, room = torch.randn(2, 4, queries, 8), torch.randn(2, 2, 2, 20, 8).bfloat16()
    k, v = room[..., :9, :]
    last = torch.tensor([[5], [8 - queries]]) + torch.arange(queries)
    key_range = KeyRange(last_BT=last) if rows_differ else KeyRange()
    found = attention(q, k, v, key_range, 0.4)
    assert found.dtype == torch.float32
    expected = attention_reference(q.double(), k, v, key_range, 0.4).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_queries_have_gradients_with_keys_of_lower_precision():
    q, k, v = torch.randn(1, 2, 1, 8, requires_grad=True), *torch.randn(2, 1, 2, 5, 8).bfloat16()
    found, expected = (
        torch.autograd.grad(form(q, k, v).square().sum(), q)[0] for form in (attention, attention_reference)
    )
    torch.testing.assert_close(found, expected)


def test_a_window_counts_the_token_of_the_query():
    seen = attention_mask(3, 4, torch.device("cpu"), KeyRange(window=2))
    assert seen.int().tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(("tokens", "pairs"), [(8, 64), (9, 12 * 8), (12, 12 * 8), (13, 16 * 8)])
def test_windowed_pairs_count_whole_blocks_and_their_neighbors(tokens: int, pairs: int):
    assert windowed_pairs(tokens, 4) == pairs


def test_sink_tokens_are_visible_outside_a_window():
    seen = attention_mask(3, 5, torch.device("cpu"), KeyRange(window=2, sink_tokens=1))
    assert seen.int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_each_query_sees_its_own_and_earlier_keys():
    assert attention_mask(2, 4, torch.device("cpu")).tolist() == [[True, True, True, False], [True, True, True, True]]


def test_only_padding_queries_see_padding():
    seen = attention_mask(3, 3, torch.device("cpu"), KeyRange(torch.tensor([2])))[0, 0]
    assert seen.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_stay_finite(scale):
    q, k, v = scale * torch.randn(3, 1, 2, 5, 8)
    assert attention(q, k, v).isfinite().all()


def tensors(queries: int, entries: int, batch: int = 2) -> tuple[torch.Tensor, ...]:
    """Three heads; a rotary part of 2, the rest of a key 3, values 5, latents 4."""
    return double(batch, 3, queries, 5), double(batch, entries, 6), double(3, 3, 4), double(3, 5, 4)


@given(st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_unexpanded_entries_equal_expanded_ones_with_all_gradients(queries, past, at_own_places):
    given_ = tensors(queries, past + queries)
    last_BT = past + torch.arange(queries).expand(2, -1) if at_own_places else None
    if last_BT is not None:
        last_BT = torch.stack([last_BT[0], last_BT[0] // 2])
    fast, slow = (form(*given_, 0.3, last_BT) for form in (latent_attention, latent_attention_reference))
    assert_same_with_gradients(fast, slow, given_)


@pytest.mark.parametrize("queries", [1, 63, 65])
def test_gradients_equal_finite_differences(queries: int):
    given_ = tensors(queries, queries + 2, batch=1)
    assert torch.autograd.gradcheck(lambda *x: latent_attention(*x, 0.5), given_, fast_mode=True)


def test_keys_and_values_are_linear_in_the_latent():
    _, entries_BSE, up_key_NCR, up_value_NVR = tensors(1, 4)
    k_BNSK, v_BNSV = expand_latents(entries_BSE, up_key_NCR, up_value_NVR)
    for head in range(3):
        torch.testing.assert_close(k_BNSK[1, head, 2, :2], entries_BSE[1, 2, :2])
        torch.testing.assert_close(k_BNSK[1, head, 2, 2:], up_key_NCR[head] @ entries_BSE[1, 2, 2:])
        torch.testing.assert_close(v_BNSV[1, head, 2], up_value_NVR[head] @ entries_BSE[1, 2, 2:])


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_of_latents_stay_finite(scale: float):
    q, entries, up_key, up_value = (x.detach().float() for x in tensors(3, 7))
    assert latent_attention(scale * q, scale * entries, up_key, up_value, 1.0).isfinite().all()


def test_absorbing_is_cheaper_for_few_queries():
    assert absorbed_is_cheaper(1, 512, 128, 128) and absorbed_is_cheaper(MAX_ABSORBED_QUERIES, 512, 128, 128)
    assert not absorbed_is_cheaper(MAX_ABSORBED_QUERIES + 1, 512, 128, 128)
    assert absorbed_is_cheaper(4, 8, 2, 2) is False and absorbed_is_cheaper(2, 8, 2, 2)
