import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops import blocked_attention as blocks
from linnet.ops.attention import KeyRange, attention, attention_reference
from linnet.ops.blocked_attention import blocked_attention, blocked_is_faster
from linnet.ops.relative_positions import Relative


@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 13),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    scale=st.sampled_from([None, 0.3]),
    of_a_block=st.sampled_from([(3, 1), (4, 60), (16, 1 << 19)]),
    value=st.sampled_from([4, 3, 7]),
    fused=st.booleans(),
)
def test_blocks_equal_the_definition_with_all_gradients(batch, tokens, heads, scale, of_a_block, value, fused):
    q, k = (double(batch, count, tokens, 4) for count in heads)
    v = double(batch, heads[1], tokens, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "DEFAULT_QUERIES_PER_BLOCK", of_a_block[0])
        patch.setattr(blocks, "SCORES_PER_BLOCK", of_a_block[1])
        patch.setattr(blocks, "FUSED_FORWARD", {torch.float64} if fused else ())
        fast, slow = blocked_attention(q, k, v, scale), attention_reference(q, k, v, scale=scale)
        assert_same_with_gradients(fast, slow, (q, k, v))


@pytest.mark.parametrize("at_home", [True, False], ids=["an Intel's", "another"])
@pytest.mark.parametrize("tokens", [63, 64, 65, 200])
def test_attention_uses_blocks_where_they_are_faster(tokens, at_home, monkeypatch):
    taken, serve = [], tokens >= 64 and not at_home
    monkeypatch.setattr(blocks, "DEFAULT_MAX_TOKENS", 0 if at_home else 1024)
    monkeypatch.setattr(
        "linnet.ops.attention.blocked_attention", lambda *given: taken.append(1) or blocked_attention(*given)
    )
    q, k, v = torch.randn(3, 2, 4, tokens, 8, requires_grad=True)
    torch.testing.assert_close(attention(q, k, v), attention_reference(q, k, v), rtol=1e-4, atol=1e-5)
    assert bool(taken) == blocked_is_faster(tokens, q.dtype) == serve
    with_padding = attention(q, k, v, KeyRange(torch.tensor([0, 3])))
    assert len(taken) == serve and with_padding.isfinite().all()


@pytest.mark.parametrize(("tokens", "serve"), [(63, False), (64, True), (511, True), (512, not blocks.HAS_TILES)])
def test_in_bfloat16_blocks_are_used_for_long_texts_only_without_tiles(tokens, serve):
    assert blocked_is_faster(tokens, torch.bfloat16) == serve


@pytest.mark.parametrize("most", [0, 1024], ids=["by the kernel", "in blocks"])
@pytest.mark.parametrize(("key", "value"), [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_values_may_have_another_width_than_keys(key: int, value: int, padded: bool, most: int, monkeypatch):
    monkeypatch.setattr(blocks, "DEFAULT_MAX_TOKENS", most)
    q, k, v = double(2, 4, 70, key), double(2, 2, 70, key), double(2, 2, 70, value)
    reach = KeyRange(torch.tensor([0, 3])) if padded else KeyRange()
    for scale in (None, 0.3):
        fast, slow = attention(q, k, v, reach, scale), attention_reference(q, k, v, reach, scale)
        assert_same_with_gradients(fast, slow, (q, k, v))


@given(
    tokens=st.integers(1, 13),
    past=st.integers(0, 3),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    window=st.sampled_from([None, 1, 4]),
    padded=st.booleans(),
    biased=st.booleans(),
    of_a_block=st.sampled_from([(3, 1), (4, 60), (16, 1 << 19)]),
    first=st.integers(0, 5),
    sink=st.booleans(),
)
def test_sinks_and_first_tokens_equal_the_definition_with_all_gradients(
    tokens, past, heads, window, padded, biased, of_a_block, first, sink
):
    q, sinks_N = double(2, heads[0], tokens, 4), double(heads[0]) if sink else None
    first, padded = (first, padded and not first) if window is not None and not biased else (0, padded)
    k, v = (double(2, heads[1], past + tokens, width) for width in (4, 3))
    padding_B = torch.tensor([0, min(past + 1, tokens - 1)]) if padded else None
    relative = Relative(double(heads[0], 5)) if biased else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "DEFAULT_QUERIES_PER_BLOCK", of_a_block[0])
        patch.setattr(blocks, "SCORES_PER_BLOCK", of_a_block[1])
        given_ = q, k, v, KeyRange(padding_B, window, first), 0.3, relative, sinks_N
        wanted = [q, k, v, *([sinks_N] if sink else []), *([relative.bias_NR] if biased else [])]
        assert_same_with_gradients(attention(*given_), attention_reference(*given_), wanted)


@pytest.mark.parametrize("score", [-1e4, 0.0, 1e4])
def test_a_sink_reduces_the_weights_of_the_keys(score: float):
    """No weight for a far lower score, half beside one key of the same score, all of it for a far higher score."""
    q, k, v = torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4), torch.ones(1, 2, 1, 4)
    share = attention(q, k, v, sinks_N=torch.full((2,), score))
    torch.testing.assert_close(share, torch.full_like(share, {-1e4: 1.0, 0.0: 0.5, 1e4: 0.0}[score]))
    x = torch.randn(3, 1, 2, 70, 4).requires_grad_()
    sinks_N = torch.full((2,), score).requires_grad_()
    out = blocked_attention(*x, sinks_N=sinks_N)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), (x, sinks_N)))


@given(tokens=st.integers(1, 70), past=st.integers(0, 3), padded=st.booleans())
def test_values_of_another_width_than_keys(tokens, past, padded):
    q, k, v = double(2, 4, tokens, 5), double(2, 2, past + tokens, 5), double(2, 2, past + tokens, 3)
    reach = KeyRange(torch.tensor([0, min(past + 1, tokens - 1)]) if padded else None)
    fast, slow = attention(q, k, v, reach), attention_reference(q, k, v, reach)
    assert_same_with_gradients(fast, slow, (q, k, v))


def test_views_of_a_joint_projection_and_an_upstream_that_is_not_contiguous():
    joint = double(2, 70, 12, 4)
    q, k, v = (part.transpose(1, 2) for part in joint.split([8, 2, 2], dim=2))
    assert_same_with_gradients(blocked_attention(q, k, v), attention_reference(q, k, v), (joint,))
    (ones,) = torch.autograd.grad(blocked_attention(q, k, v).sum(), joint)
    torch.testing.assert_close(ones, torch.autograd.grad(attention_reference(q, k, v).sum(), joint)[0])


@pytest.mark.parametrize("fused", [False, True])
def test_bfloat16_is_as_exact_as_softmax_of_rounded_scores(fused, monkeypatch):
    """Scores are rounded to bfloat16, as in any attention without a fused kernel: within 2 % of the largest output."""
    torch.manual_seed(0)
    monkeypatch.setattr(blocks, "FUSED_FORWARD", {torch.bfloat16} if fused else ())
    wide = [torch.randn(2, 4, 300, 32, requires_grad=True) for _ in range(3)]
    narrow = [x.detach().bfloat16().requires_grad_() for x in wide]
    exact, rounded = F.scaled_dot_product_attention(*wide, is_causal=True), blocked_attention(*narrow)
    upstream = torch.randn_like(exact)
    expected = [exact, *torch.autograd.grad(exact, wide, upstream)]
    found = [rounded, *torch.autograd.grad(rounded, narrow, upstream.bfloat16())]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one - other).abs().max() < 0.02 * other.abs().max()


@given(
    tokens=st.integers(1, 13),
    window=st.sampled_from([None, 4]),
    padded=st.booleans(),
    biased=st.booleans(),
    sink=st.booleans(),
    soft_cap=st.sampled_from([None, 0.7]),
)
def test_the_fused_forward_pass_is_used_for_plain_attention(tokens, window, padded, biased, sink, soft_cap):
    biased = biased and soft_cap is None
    q, k, v = double(2, 4, tokens, 4), double(2, 2, tokens, 4), double(2, 2, tokens, 4)
    padding_B = torch.tensor([0, tokens - 1]) if padded else None
    relative, sinks_N = Relative(double(4, 5)) if biased else None, double(4) if sink else None
    taken = []
    with pytest.MonkeyPatch.context() as patch:
        kernel = F.scaled_dot_product_attention
        patch.setattr(F, "scaled_dot_product_attention", lambda *args, **rest: taken.append(1) or kernel(*args, **rest))
        patch.setattr(blocks, "FUSED_FORWARD", {torch.float64})
        fast = blocked_attention(q, k, v, 0.3, window, padding_B, relative, sinks_N, 0, soft_cap)
    slow = attention_reference(q, k, v, KeyRange(padding_B, window), 0.3, relative, sinks_N, soft_cap)
    torch.testing.assert_close(fast, slow)
    assert bool(taken) == (window is None and soft_cap is None and not (padded or biased or sink))


def test_large_scores_stay_finite():
    q, k, v = (1e4 * torch.randn(3, 1, 2, 70, 8)).requires_grad_()
    out = blocked_attention(q, k, v)
    assert out.isfinite().all() and torch.autograd.grad(out.sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("window", [None, 9])
def test_bounded_scores_and_their_gradients(window):
    """Scores of several times the bound, over several blocks."""
    q, k, v = (x.requires_grad_() for x in (double(2, 4, 150, 8), double(2, 2, 150, 8), double(2, 2, 150, 8)))
    fast = blocked_attention(q, k, v, 1.0, window, None, None, None, 0, 1.5)
    slow = attention_reference(q, k, v, KeyRange(window=window), 1.0, soft_cap=1.5)
    assert_same_with_gradients(fast, slow, (q, k, v))
    plain = attention_reference(q, k, v, KeyRange(window=window), 1.0)
    assert (plain - slow).abs().max() > 0.1
