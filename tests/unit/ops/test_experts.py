import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.experts import (
    balance_loss,
    counts,
    dispatch_experts,
    experts,
    experts_reference,
    router_z_loss,
    routes,
    within_capacity,
    within_capacity_reference,
)
from linnet.ops.gated_feed_forward import gated_silu, gated_silu_reference

INNER = {"gated": (gated_silu, gated_silu_reference, 2), "plain": (F.gelu, F.gelu, 1)}


def maps(count: int, width: int, hidden: int, factor: int) -> tuple[list, list]:
    return [double(factor * hidden, width) for _ in range(count)], [double(width, hidden) for _ in range(count)]


@pytest.mark.parametrize("kind", INNER)
@given(st.sampled_from([1, 2, 7, 63, 65]), *[st.integers(1, 5)] * 4, st.booleans())
def test_the_fast_form_equals_the_reference_with_all_gradients(kind, rows, width, hidden, count, top_k, drops):
    """Some experts have no token; some choices are dropped."""
    inner, slow_inner, factor = INNER[kind]
    x_RD, logits_RE, (ups, downs) = double(rows, width), torch.randn(rows, count), maps(count, width, hidden, factor)
    chosen_RK = routes(logits_RE, min(top_k, count), "softmax", normalize=False).chosen
    weight_RK = double(*chosen_RK.shape)
    if drops:
        dropped_RK = torch.rand(chosen_RK.shape) < 0.5
        dropped_RK[0, 0] = False
        chosen_RK = chosen_RK.masked_fill(dropped_RK, count)
    fast = experts(x_RD, weight_RK, chosen_RK, ups, downs, inner)
    slow = experts_reference(x_RD, weight_RK, chosen_RK, ups, downs, slow_inner)
    assert_same_with_gradients(fast, slow, (x_RD, weight_RK, *ups, *downs))
    of_maps = [lambda x, up=up, down=down: inner(x @ up.t()) @ down.t() for up, down in zip(ups, downs, strict=True)]
    torch.testing.assert_close(dispatch_experts(x_RD, weight_RK, chosen_RK, of_maps), slow)


def test_gradients_equal_finite_differences():
    x_RD, logits_RE, (ups, downs) = double(5, 3), double(5, 4), maps(4, 3, 2, 2)

    def form(x, logits, *weights):
        chosen, weight, _ = routes(logits, 2, "softmax", normalize=True)
        return experts(x, weight, chosen, weights[:4], weights[4:], gated_silu)

    assert torch.autograd.gradcheck(form, (x_RD, logits_RE, *ups, *downs))


def test_no_tokens_and_no_experts_in_use():
    ups, downs = maps(2, 3, 4, 1)
    assert experts(double(0, 3), double(0, 1), torch.zeros(0, 1, dtype=torch.int64), ups, downs, F.gelu).shape == (0, 3)
    x_RD = double(4, 3)
    out = experts(x_RD, double(4, 1), torch.full((4, 1), 2), ups, downs, F.gelu)
    assert not out.any() and not torch.autograd.grad(out.sum(), x_RD)[0].any()


def test_the_backward_pass_inside_autocast_has_its_precision():
    x_RD, weight_RK = torch.randn(6, 4, requires_grad=True), torch.rand(6, 1)
    ups, downs = ([torch.randn(8, 4)] * 2, [torch.randn(4, 4)] * 2)
    arguments = (x_RD, weight_RK, torch.arange(6)[:, None] % 2, ups, downs, gated_silu)
    out = experts(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        (inside,) = torch.autograd.grad(out.sum(), x_RD, retain_graph=True)
        assert experts(*arguments).dtype == torch.bfloat16
    assert torch.equal(inside, torch.autograd.grad(out.sum(), x_RD)[0])


def test_only_tokens_and_outputs_of_the_first_maps_are_saved():
    x_RD, (ups, downs) = double(32, 3), maps(4, 3, 8, 2)
    chosen_RK, weight_RK, _ = routes(double(32, 4), 2, "softmax", normalize=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        experts(x_RD, weight_RK, chosen_RK, ups, downs, gated_silu)
    of_maps = sum(weight.numel() for weight in (*ups, *downs))
    assert sum(x.numel() for x in kept) == x_RD.numel() + of_maps + 2 * weight_RK.numel() + 2 * 32 * 16


@given(*[st.integers(1, 9)] * 3, st.floats(0, 10))
def test_normalized_softmax_equals_the_softmax_over_the_chosen_experts(
    tokens: int, experts: int, top_k: int, size: float
):
    logits_RE, k = size * torch.randn(tokens, experts, dtype=torch.float64), min(top_k, experts)
    chosen_RK, weight_RK, _ = routes(logits_RE, k, "softmax", normalize=True)
    highest_RK = logits_RE.sort(dim=-1, descending=True).values[:, :k]
    torch.testing.assert_close(logits_RE.gather(1, chosen_RK), highest_RK)
    torch.testing.assert_close(weight_RK, highest_RK.softmax(dim=-1))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_weights_are_the_scores_unless_normalized(scoring):
    logits_RE = torch.randn(5, 7, dtype=torch.float64)
    score_RE = logits_RE.softmax(-1) if scoring == "softmax" else 1 / (1 + (-logits_RE).exp())
    found = routes(logits_RE, 3, scoring, normalize=False)
    torch.testing.assert_close(found.weight, score_RE.gather(1, found.chosen))
    sums_R = routes(logits_RE, 3, scoring, normalize=True).weight.sum(-1)
    torch.testing.assert_close(sums_R, torch.ones_like(sums_R))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_nothing_overflows(scoring):
    logits_RE = torch.tensor([[1e38, -1e38, 0.0], [-1e38, -1e38, -1e38]], requires_grad=True)
    found = routes(logits_RE, 2, scoring, normalize=True)
    (gradient,) = torch.autograd.grad(found.weight.sum(), logits_RE)
    assert found.weight.isfinite().all() and gradient.isfinite().all()


def test_the_balance_loss_is_k_for_equal_use_and_larger_otherwise():
    alike = torch.full((8, 4), 0.25)
    assert balance_loss(alike, torch.full((4,), 0.5)) == 2
    logits_RE = torch.randn(64, 4, dtype=torch.float64) + torch.tensor([3.0, 1.0, 0.0, -1.0])
    found = routes(logits_RE, 2, "softmax", normalize=True)
    share_E = counts(found.chosen, 4).double() / 64
    probability_E = logits_RE.softmax(-1).mean(0)
    expected = 4 * sum(float(share) * p for share, p in zip(share_E, probability_E, strict=True))
    torch.testing.assert_close(balance_loss(found.score, share_E), expected)
    torch.testing.assert_close(balance_loss(3 * found.score, share_E), expected)
    assert expected > 2


def test_the_router_z_loss_equals_its_definition():
    logits_RE = torch.tensor([[0.0, 0.0], [math.log(3), math.log(5)]])
    expected = (math.log(2) ** 2 + math.log(8) ** 2) / 2
    assert router_z_loss(logits_RE).item() == pytest.approx(expected)


def test_counts_ignore_choices_that_go_nowhere():
    assert counts(torch.tensor([[0, 3], [2, 0], [3, 3]]), 3).tolist() == [2, 0, 1]


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.data())
def test_capacity_equals_its_reference(batch, length, experts, top_k, capacity, data):
    k, seed = min(top_k, experts), data.draw(st.integers(0, 99))
    random = torch.Generator().manual_seed(seed)
    chosen_BTK = torch.rand(batch, length, experts + 1, generator=random).argsort(-1)[..., :k]
    expected = within_capacity_reference(chosen_BTK, experts, capacity)
    found = within_capacity(chosen_BTK, experts, capacity)
    assert torch.equal(found, expected)
    assert all(counts(row, experts).max() <= capacity for row in found)


def test_a_first_choice_comes_before_an_earlier_second_one():
    chosen_1TK = torch.tensor([[[1, 0], [0, 1]]])
    assert within_capacity(chosen_1TK, 2, 1).tolist() == [[[1, 2], [0, 2]]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_large_logits_choose_the_same_experts_in_float32(scoring: str):
    """Scores that round to 1, or to 0, are equal; the first expert would be taken."""
    logits = torch.tensor([[20.0, 60.0, 40.0], [-200.0, -150.0, 0.0]])
    routing = routes(logits, 2, scoring, False)
    assert routing.chosen.tolist() == routes(logits.double(), 2, scoring, False).chosen.tolist() == [[1, 2], [2, 1]]
    torch.testing.assert_close(routing.weight, routing.score.gather(1, routing.chosen))
