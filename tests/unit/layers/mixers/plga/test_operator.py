import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.layers.mixers.plga.operator import PowerLawOperator, acyclicity


def _deduced(start: str) -> torch.Tensor:
    torch.manual_seed(0)
    operator = PowerLawOperator(2, 8, hidden=5, residual_units=1, gated_units=1, start=start)
    q = torch.randn(1, 2, 40, 8)
    return operator(q.transpose(-1, -2) @ q).g.detach()


def test_the_identity_start_is_the_identity_plus_a_small_rank_one_term():
    rest = _deduced("identity") - torch.eye(8)
    assert torch.linalg.matrix_rank(rest, atol=1e-5).tolist() == [[1, 1]]
    assert 0 < rest.abs().max() < 0.3


def test_the_initialization_of_the_paper_is_not_the_identity():
    assert (_deduced("paper") - torch.eye(8)).abs().max() > 1


def _plain(x):
    """The formula of the specification."""
    traces = torch.linalg.matrix_exp(x * x).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (traces / x.shape[-1]).log().abs().mean()


@given(batch=st.integers(1, 3), width=st.integers(1, 6), seed=st.integers(0, 50))
def test_the_regularizer_matches_its_formula(batch, width, seed):
    x = torch.randn(batch, 2, width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(acyclicity(x), _plain(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_regularizer_is_finite_for_large_operators(dtype):
    x = (1e6 * torch.randn(1, 2, 8, 8)).to(dtype).requires_grad_()
    value = acyclicity(x)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite() and value > 1e12
    assert gradient.isfinite().all() and (gradient != 0).any()
