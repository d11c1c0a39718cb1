import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops.power_law import log_trace_exponential, log_trace_exponential_reference


def _matrices(width: int, largest: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return largest * torch.rand(2, 3, width, width, dtype=torch.float64, generator=generator)


@given(width=st.integers(1, 9), exponent=st.floats(-6, 1.8), seed=st.integers(0, 99))
def test_the_result_equals_the_plain_formula_where_that_is_finite(width, exponent, seed):
    matrix = _matrices(width, 10**exponent, seed).requires_grad_()
    fast, plain = log_trace_exponential(matrix), log_trace_exponential_reference(matrix)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-12)
    upstream = torch.randn_like(plain)
    (gradient,), (expected,) = (torch.autograd.grad(value, matrix, upstream) for value in (fast, plain))
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


@given(width=st.integers(1, 9), exponent=st.floats(2, 30), seed=st.integers(0, 99))
def test_far_beyond_overflow_the_result_is_the_largest_eigenvalue(width, exponent, seed):
    matrix = _matrices(width, 10**exponent, seed).requires_grad_()
    value = log_trace_exponential(matrix)
    radius = torch.linalg.eigvals(matrix.detach()).abs().amax(dim=-1)
    torch.testing.assert_close(value, radius - math.log(width), rtol=1e-6, atol=1e-6 * 10**exponent)
    (gradient,) = torch.autograd.grad(value.sum(), matrix)
    assert gradient.isfinite().all() and (gradient >= 0).all()
    # The derivative of the largest eigenvalue in the direction of the matrix is the eigenvalue itself.
    torch.testing.assert_close((gradient * matrix.detach()).sum(dim=(-2, -1)), radius, rtol=1e-5, atol=0.0)


def test_matrices_of_very_different_sizes_do_not_affect_each_other():
    small, large = _matrices(5, 1.0, 0), _matrices(5, 1e18, 1)
    together = log_trace_exponential(torch.cat([small, large]))
    torch.testing.assert_close(together[:2], log_trace_exponential_reference(small))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_matrix_without_cycles_gives_zero(scale):
    assert log_trace_exponential(torch.triu(_matrices(6, scale, 2), diagonal=1)).abs().max() < 1e-9


def test_almost_no_cycles_and_huge_elements_still_give_finite_gradients():
    matrix = torch.triu(_matrices(6, 1e12, 2), diagonal=1).float().requires_grad_()
    (gradient,) = torch.autograd.grad(log_trace_exponential(matrix).sum(), matrix)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("largest", [torch.nan, torch.inf])
def test_non_finite_inputs_give_non_finite_outputs(largest):
    assert not log_trace_exponential(torch.full((1, 3, 3), largest)).isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("largest", [0.0, 1e-30, 1.0, 1e3, 1e18, 1e37])
def test_low_precision_inputs_give_finite_values_and_gradients_of_their_dtype(dtype, largest):
    matrix = _matrices(8, largest, 3).to(dtype).requires_grad_()
    value = log_trace_exponential(matrix)
    (gradient,) = torch.autograd.grad(value.sum(), matrix)
    assert value.isfinite().all() and gradient.isfinite().all() and gradient.dtype == dtype
