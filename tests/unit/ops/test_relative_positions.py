import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops import blocked_attention as blocks
from linnet.ops.attention import KeyRange, attention, attention_mask, attention_reference
from linnet.ops.relative_positions import (
    Relative,
    bucket_bias,
    bucket_bias_reference,
    check_buckets,
    distances,
    gathered_attention,
    position_buckets,
)

WHICH = st.sampled_from([(True, False, False), (False, True, False), (False, False, True), (True, True, True)])


def tables(heads: int, entries: int, which: tuple[bool, bool, bool]) -> Relative:
    shapes = (heads, entries), (entries, 4), (entries, 4)
    return Relative(*(double(*shape) if wanted else None for shape, wanted in zip(shapes, which, strict=True)))


@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 13),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    entries=st.integers(1, 15),
    which=WHICH,
    window=st.sampled_from([None, 1, 3, 20]),
    padded=st.booleans(),
    of_a_block=st.sampled_from([(3, 1), (4, 60), (16, 1 << 19)]),
)
def test_blocks_equal_the_definition_with_all_gradients(
    batch, tokens, heads, entries, which, window, padded, of_a_block
):
    q, k, v = (double(batch, count, tokens, 4) for count in (heads[0], heads[1], heads[1]))
    relative = tables(heads[0], entries, which)
    padding_B = torch.arange(batch).clamp(max=tokens - 1) if padded else None
    given = (q, k, v, KeyRange(padding_B, window), 0.3, relative)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "DEFAULT_QUERIES_PER_BLOCK", of_a_block[0])
        patch.setattr(blocks, "SCORES_PER_BLOCK", of_a_block[1])
        fast = attention(*given)
        wanted = (q, k, v, *(table for table in relative if table is not None))
        assert_same_with_gradients(fast, attention_reference(*given), wanted)


@given(
    queries=st.integers(1, 6),
    past=st.integers(0, 9),
    entries=st.integers(1, 12),
    which=WHICH,
    apart=st.booleans(),
    window=st.sampled_from([None, 3]),
)
def test_queries_after_a_past_equal_the_definition_with_all_gradients(queries, past, entries, which, apart, window):
    """Also in rows at different positions."""
    keys = past + queries
    q, k, v = double(2, 4, queries, 4), double(2, 2, keys, 4), double(2, 2, keys, 4)
    relative, device = tables(4, entries, which), q.device
    last_BT = torch.arange(past, keys) - torch.tensor([[0], [past]]) if apart else None
    key_range = KeyRange(None, window, last_BT=last_BT)
    mask, at = attention_mask(queries, keys, device, key_range), distances(queries, keys, device, last_BT)
    fast = gathered_attention(q, k, v, mask, at, 0.3, relative)
    slow = attention_reference(q, k, v, key_range, 0.3, relative)
    assert_same_with_gradients(fast, slow, (q, k, v, *(table for table in relative if table is not None)))


@pytest.mark.parametrize("tokens", [63, 64, 65, 200])
def test_blocks_of_full_size(tokens: int):
    q, k, v = double(2, 4, tokens, 4), double(2, 2, tokens, 4), double(2, 2, tokens, 4)
    relative = tables(4, 70, (True, True, True))
    given = (q, k, v, KeyRange(), None, relative)
    assert_same_with_gradients(attention(*given), attention_reference(*given), (q, k, v, *relative))


def test_the_term_of_all_far_keys_can_be_subtracted_from_all():
    """The reason why tables can be finite: weights sum to 1."""
    q, k, v, bias = double(1, 2, 9, 4), double(1, 2, 9, 4), double(1, 2, 9, 4), double(2, 12)
    whole, less = (attention_reference(q, k, v, relative=Relative(bias - shift)) for shift in (0.0, 3.0))
    torch.testing.assert_close(whole, less)


def test_no_table_has_an_entry_for_each_pair():
    """With 4,096 tokens the largest tensor of a pass is the scores of a block, or a table of 64 rows."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.elements = max(self.elements, out.numel())
            return out

    tokens = 4096
    q, k, v = torch.randn(3, 1, 2, tokens, 8, requires_grad=True)
    bias = -torch.arange(tokens).float() * torch.tensor([[0.5], [0.1]])
    relative = Relative(bias.requires_grad_(), torch.randn(16, 8, requires_grad=True), torch.randn(16, 8))
    with Largest() as largest:
        attention(q, k, v, relative=relative).sum().backward()
    assert largest.elements <= 2 * 64 * (tokens + 63) < 2 * tokens**2 / 32


def test_extreme_tables_stay_finite():
    q, k, v = (1e4 * torch.randn(3, 1, 2, 70, 8)).requires_grad_()
    relative = Relative(1e4 * torch.randn(2, 70), 1e2 * torch.randn(9, 8), torch.randn(9, 8))
    out = attention(q, k, v, relative=relative)
    assert out.isfinite().all() and torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@given(st.sampled_from([(2, 8), (5, 9), (32, 128), (8, 1000)]))
def test_near_distances_have_their_own_buckets_and_far_ones_share(sizes):
    buckets, furthest = sizes
    found = position_buckets(-torch.arange(2 * furthest), buckets, furthest)
    assert found[: buckets // 2].tolist() == list(range(buckets // 2))
    assert (found.diff() >= 0).all()
    assert set(found[furthest:].tolist()) == {buckets - 1}


def test_keys_after_the_query_have_other_buckets():
    offsets = torch.arange(-300, 301)
    found = position_buckets(offsets, both_ways=True)
    assert set(found[offsets <= 0].tolist()) == set(range(16))
    assert set(found[offsets > 0].tolist()) == set(range(17, 32))
    torch.testing.assert_close(found[offsets > 0] - 16, found[offsets < 0].flip(0))


def test_one_way_buckets_treat_keys_after_the_query_as_its_own_key():
    assert position_buckets(torch.tensor([3, 1, 0, -1])).tolist() == [0, 0, 0, 1]


def offsets(queries: int, keys: int, past: int) -> torch.Tensor:
    """Inputs with queries after the first `past` keys."""
    return torch.arange(keys) - torch.arange(past, past + queries)[:, None]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.booleans())
def test_biases_by_diagonals_equal_those_by_pairs_with_gradients(queries, keys, past, both_ways):
    weights_UN, of_pairs = double(8, 3), offsets(queries, keys, past)
    fast, slow = (form(weights_UN, of_pairs, 6, both_ways) for form in (bucket_bias, bucket_bias_reference))
    assert_same_with_gradients(fast, slow, (weights_UN,))


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("past", [0, 200])
def test_the_bias_equals_that_of_transformers_t5(both_ways: bool, past: int):
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
