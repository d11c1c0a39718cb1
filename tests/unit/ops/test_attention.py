import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.attention import attention, attention_reference, visible


@given(st.integers(1, 9), st.integers(0, 9), st.sampled_from([(4, 4), (4, 2), (4, 1)]), st.booleans())
def test_fused_kernel_equals_the_definition(queries, past, heads, padded):
    generator = torch.Generator().manual_seed(queries * 100 + past)
    q = torch.randn(2, heads[0], queries, 8, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, 2, heads[1], past + queries, 8, dtype=torch.float64, generator=generator)
    padding_B = torch.tensor([0, past]) if padded else None
    torch.testing.assert_close(attention(q, k, v, padding_B), attention_reference(q, k, v, padding_B))


def test_each_query_sees_itself_and_what_came_before():
    assert visible(2, 4, torch.device("cpu")).tolist() == [[True, True, True, False], [True, True, True, True]]


def test_padding_is_seen_by_padding_alone():
    seen = visible(3, 3, torch.device("cpu"), torch.tensor([2]))[0, 0]
    assert seen.tolist() == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_scores_stay_finite(scale):
    q, k, v = scale * torch.randn(3, 1, 2, 5, 8)
    assert attention(q, k, v).isfinite().all()
