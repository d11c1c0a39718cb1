import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import double

from linnet.ops.soft_cap import apply_soft_cap, soft_cap_


@given(st.floats(0.1, 50), st.floats(-1e4, 1e4))
def test_logits_stay_within_the_cap_and_in_order(cap: float, logit: float):
    pair = apply_soft_cap(torch.tensor([logit, logit + 1.0], dtype=torch.float64), cap)
    assert (pair.abs() <= cap).all()
    assert pair[0] <= pair[1]


def test_small_logits_stay_as_they_are():
    logits = torch.linspace(-0.01, 0.01, 9)
    torch.testing.assert_close(apply_soft_cap(logits, 30.0), logits)


def test_in_place_it_is_the_same_and_tells_its_slopes():
    logits = double(5, 7)
    expected = apply_soft_cap(logits, 0.8)
    (slopes,) = torch.autograd.grad(expected.sum(), logits)
    found = logits.detach().clone()
    torch.testing.assert_close(soft_cap_(found, 0.8), slopes)
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype):
    logits = torch.randn(64).mul(20).to(dtype)
    assert torch.equal(apply_soft_cap(logits, 15.0), apply_soft_cap(logits.double(), 15.0).to(dtype))
