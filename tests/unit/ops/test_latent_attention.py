import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.latent_attention import (
    MOST_QUERIES,
    absorbed_is_cheaper,
    expanded,
    latent_attention,
    latent_attention_reference,
)


def tensors(queries: int, entries: int, batch: int = 2) -> tuple[torch.Tensor, ...]:
    """Three heads; a rotary part of 2, the rest of a key 3, values 5, latents 4."""
    return double(batch, 3, queries, 5), double(batch, entries, 6), double(3, 3, 4), double(3, 5, 4)


@given(st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_entries_read_as_they_are_equal_expanded_ones_with_all_gradients(queries, past, at_own_places):
    given_ = tensors(queries, past + queries)
    last_BT = past + torch.arange(queries).expand(2, -1) if at_own_places else None
    if last_BT is not None:
        last_BT = torch.stack([last_BT[0], last_BT[0] // 2])
    fast, slow = (form(*given_, 0.3, last_BT) for form in (latent_attention, latent_attention_reference))
    assert_same_with_gradients(fast, slow, given_)


@pytest.mark.parametrize("queries", [1, 63, 65])
def test_gradients_are_those_of_finite_differences(queries: int):
    given_ = tensors(queries, queries + 2, batch=1)
    assert torch.autograd.gradcheck(lambda *x: latent_attention(*x, 0.5), given_, fast_mode=True)


def test_keys_and_values_are_linear_in_the_latent_beside_the_rotary_key():
    _, entries_BSE, up_key_NCR, up_value_NVR = tensors(1, 4)
    k_BNSK, v_BNSV = expanded(entries_BSE, up_key_NCR, up_value_NVR)
    for head in range(3):
        torch.testing.assert_close(k_BNSK[1, head, 2, :2], entries_BSE[1, 2, :2])
        torch.testing.assert_close(k_BNSK[1, head, 2, 2:], up_key_NCR[head] @ entries_BSE[1, 2, 2:])
        torch.testing.assert_close(v_BNSV[1, head, 2], up_value_NVR[head] @ entries_BSE[1, 2, 2:])


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_stay_finite(scale: float):
    q, entries, up_key, up_value = (x.detach().float() for x in tensors(3, 7))
    assert latent_attention(scale * q, scale * entries, up_key, up_value, 1.0).isfinite().all()


def test_few_queries_are_less_work_absorbed():
    assert absorbed_is_cheaper(1, 512, 128, 128) and absorbed_is_cheaper(MOST_QUERIES, 512, 128, 128)
    assert not absorbed_is_cheaper(MOST_QUERIES + 1, 512, 128, 128)
    assert absorbed_is_cheaper(4, 8, 2, 2) is False and absorbed_is_cheaper(2, 8, 2, 2)
