import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.routing import balance_loss, counts, router_z_loss, routes, within_capacity, within_capacity_reference


@given(*[st.integers(1, 9)] * 3, st.floats(0, 10))
def test_normalized_softmax_is_the_softmax_over_the_chosen_alone(tokens: int, experts: int, top_k: int, size: float):
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


def test_the_balance_loss_is_k_where_all_are_used_alike_and_more_where_scores_follow_use():
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


def test_the_router_z_loss_by_its_definition():
    logits_RE = torch.tensor([[0.0, 0.0], [math.log(3), math.log(5)]])
    expected = (math.log(2) ** 2 + math.log(8) ** 2) / 2
    assert router_z_loss(logits_RE).item() == pytest.approx(expected)


def test_counts_leave_out_what_goes_nowhere():
    assert counts(torch.tensor([[0, 3], [2, 0], [3, 3]]), 3).tolist() == [2, 0, 1]


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.data())
def test_capacity_without_a_loop(batch, length, experts, top_k, capacity, data):
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
