import pytest
import torch
from same_gradients import assert_same_with_gradients, double

from linnet.ops.delta_rule import (
    MIN_CHUNK,
    chunk_length,
    pairs,
    pairs_reference,
    solve_by_products,
    solve_unit_triangular,
    sum_after,
)


def drawn(length: int, gates: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(length)
    return double(2, length, 5), double(2, length, 5), double(2, length, gates)


@pytest.mark.parametrize("gates", [1, 5])
@pytest.mark.parametrize("length", [2, 16, 64])
def test_the_fast_form_equals_the_reference_with_all_gradients(length: int, gates: int):
    q_CK, k_CK, x_CG = drawn(length, gates)
    fast, slow = (torch.stack(form(q_CK, k_CK, -x_CG.exp())) for form in (pairs, pairs_reference))
    assert_same_with_gradients(fast.tril(), slow, (q_CK, k_CK, x_CG))


def test_a_pair_decays_by_the_gates_after_its_first_token():
    q_CK, k_CK, x_CG = drawn(32, 5)
    log_alpha_CG = -x_CG.exp()
    read_CC, known_CC = pairs(q_CK, k_CK, log_alpha_CG)
    for i, j in ((20, 3), (20, 17), (20, 20)):
        left_K = log_alpha_CG[1, j + 1 : i + 1].sum(0).exp()
        torch.testing.assert_close(read_CC[1, i, j], (q_CK[1, i] * k_CK[1, j] * left_K).sum())
        torch.testing.assert_close(known_CC[1, i, j], (k_CK[1, i] * k_CK[1, j] * left_K).sum())
    assert (read_CC.triu(1) == 0).all()


@pytest.mark.parametrize("gates", [1, 5])
def test_small_steps_after_a_large_one_keep_their_digits(gates: int):
    """In float32, `1e4 + 0.01` would be `1e4 + 0.0098`."""
    q_CK, k_CK, _ = (x.detach().float() for x in drawn(MIN_CHUNK, gates))
    log_alpha_CG = torch.full((2, MIN_CHUNK, gates), -0.01)
    log_alpha_CG[:, 2] = -1e4
    exact = pairs_reference(q_CK.double(), k_CK.double(), log_alpha_CG.double())
    for found, expected in zip(pairs(q_CK, k_CK, log_alpha_CG), exact, strict=True):
        torch.testing.assert_close(found.tril().double(), expected, rtol=1e-5, atol=1e-5)


def test_sum_after_each_token():
    assert sum_after(torch.tensor([[1.0], [2.0], [4.0]])).flatten().tolist() == [6.0, 4.0, 0.0]


def test_a_chunk_is_the_shortest_power_of_two_that_holds_the_sequence():
    assert [chunk_length(tokens) for tokens in (1, 16, 17, 32, 33, 64, 65, 1000)] == [16, 16, 32, 32, 64, 64, 64, 64]


@pytest.mark.parametrize("tokens", [1, 2, 7, 64])
def test_solving_by_products_equals_the_triangular_solver(tokens: int):
    generator = torch.Generator().manual_seed(0)
    below = 0.2 * torch.randn(3, tokens, tokens, dtype=torch.float64, generator=generator)
    right = torch.randn(3, tokens, 5, dtype=torch.float64, generator=generator)
    x = solve_by_products(below, right)
    torch.testing.assert_close(x, solve_unit_triangular(below, right))
    torch.testing.assert_close(x + below.tril(-1) @ x, right)
