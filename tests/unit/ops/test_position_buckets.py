import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.position_buckets import bucket_bias, bucket_bias_reference, check_buckets, position_buckets


@given(st.sampled_from([(2, 8), (5, 9), (32, 128), (8, 1000)]))
def test_near_distances_have_their_own_bucket_and_far_ones_share(sizes):
    buckets, furthest = sizes
    found = position_buckets(-torch.arange(2 * furthest), buckets, furthest)
    assert found[: buckets // 2].tolist() == list(range(buckets // 2))
    assert (found.diff() >= 0).all()
    assert set(found[furthest:].tolist()) == {buckets - 1}


def test_behind_the_query_are_other_buckets():
    offsets = torch.arange(-300, 301)
    found = position_buckets(offsets, both_ways=True)
    assert set(found[offsets <= 0].tolist()) == set(range(16))
    assert set(found[offsets > 0].tolist()) == set(range(17, 32))
    torch.testing.assert_close(found[offsets > 0] - 16, found[offsets < 0].flip(0))


def test_one_way_what_is_behind_the_query_is_as_near_as_its_own_key():
    assert position_buckets(torch.tensor([3, 1, 0, -1])).tolist() == [0, 0, 0, 1]


def offsets(queries: int, keys: int, past: int) -> torch.Tensor:
    """Of queries that stand behind `past` of the keys."""
    return torch.arange(keys) - torch.arange(past, past + queries)[:, None]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.booleans())
def test_biases_by_diagonals_are_those_by_pairs_with_their_gradients(queries, keys, past, both_ways):
    weights_UN, of_pairs = double(8, 3), offsets(queries, keys, past)
    fast, slow = (form(weights_UN, of_pairs, 6, both_ways) for form in (bucket_bias, bucket_bias_reference))
    assert_same_with_gradients(fast, slow, (weights_UN,))


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("past", [0, 200])
def test_bias_is_that_of_transformers_t5(both_ways: bool, past: int):
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(d_model=16, d_kv=4, num_heads=4, is_decoder=not both_ways)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    weights_UN = theirs.relative_attention_bias.weight
    ours = bucket_bias(weights_UN, offsets(300, 300 + past, past), both_ways=both_ways)
    expected = theirs.compute_bias(300, 300 + past, past_seen_tokens=past)[0]
    assert torch.equal(ours, expected)
    upstream = torch.randn_like(expected)
    gradients = [torch.autograd.grad(bias, weights_UN, upstream)[0] for bias in (ours, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((1, 128, False), "buckets: 1: must be 2 or more"),
        ((7, 128, True), "buckets: 7: must be an even number from 4"),
        ((32, 16, False), "furthest: 16: must be above 16"),
    ],
)
def test_buckets_that_cannot_be_filled_are_refused(sizes, said: str):
    with pytest.raises(ValueError, match=f"^{said}"):
        check_buckets(*sizes)
