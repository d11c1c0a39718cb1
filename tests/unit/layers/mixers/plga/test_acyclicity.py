import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.layers.mixers.plga.acyclicity import acyclicity


def _plain(x):
    """The formula as the specification writes it."""
    traces = torch.linalg.matrix_exp(x * x).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (traces / x.shape[-1]).log().abs().mean()


@given(batch=st.integers(1, 3), width=st.integers(1, 6), seed=st.integers(0, 50))
def test_it_is_the_formula(batch, width, seed):
    x = torch.randn(batch, 2, width, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(acyclicity(x), _plain(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_finite_for_what_the_operator_can_become(dtype):
    x = (1e6 * torch.randn(1, 2, 8, 8)).to(dtype).requires_grad_()
    value = acyclicity(x)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite() and value > 1e12
    assert gradient.isfinite().all() and (gradient != 0).any()
