import pytest
import torch
from same_gradients import assert_same_recurrence
from torch import Tensor

from linnet.ops.linear_scan import gate_shares, minlstm, minlstm_reference, positive


def inputs(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Logits of both gates, candidates, and the state before, for two rows of three channels."""
    torch.manual_seed(length)
    of_tokens = [3 * torch.randn(2, length, 3, dtype=dtype) for _ in range(3)]
    return [*of_tokens, torch.randn(2, 3, dtype=dtype)]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_the_fast_form_equals_the_reference_with_all_gradients(length: int):
    assert_same_recurrence(minlstm, minlstm_reference, inputs(length))


def test_gradients_equal_finite_differences():
    assert torch.autograd.gradcheck(minlstm, [part.requires_grad_() for part in inputs(7)])


@pytest.mark.parametrize("form", [minlstm, minlstm_reference])
def test_the_result_equals_the_recurrence_of_the_paper(form):
    """Gates divided by their sum, as in the algorithm of the paper for one step."""
    forget_BTE, input_BTE, candidate_BTE, h_BE = inputs(9)
    states_BTE, last_BE = form(forget_BTE, input_BTE, candidate_BTE, h_BE)
    f_BTE, i_BTE = forget_BTE.sigmoid(), input_BTE.sigmoid()
    for token in range(9):
        f_BE, i_BE = f_BTE[:, token], i_BTE[:, token]
        h_BE = f_BE / (f_BE + i_BE) * h_BE + i_BE / (f_BE + i_BE) * candidate_BTE[:, token]
        torch.testing.assert_close(states_BTE[:, token], h_BE)
    torch.testing.assert_close(last_BE, h_BE)


def test_the_result_equals_the_scan_of_the_paper_in_logarithms():
    """Appendix B: `log h_t = a_t + logcumsumexp(log b - a)`, with the sums a of the logarithms of f'."""
    forget_BTE, input_BTE, candidate_BTE, h_BE = inputs(30)
    candidate_BTE, h_BE = positive(candidate_BTE), h_BE.abs()
    states_BTE, _ = minlstm(forget_BTE, input_BTE, candidate_BTE, h_BE)
    softplus = torch.nn.functional.softplus
    difference_BTE = softplus(-forget_BTE) - softplus(-input_BTE)
    a_BTE = (-softplus(difference_BTE)).cumsum(1)
    log_b_BTE = torch.cat([h_BE[:, None].log(), -softplus(-difference_BTE) + candidate_BTE.log()], dim=1)
    sums_BTE = torch.cat([torch.zeros_like(a_BTE[:, :1]), a_BTE], dim=1)
    log_h_BTE = sums_BTE + (log_b_BTE - sums_BTE).logcumsumexp(1)
    torch.testing.assert_close(states_BTE, log_h_BTE.exp()[:, 1:])


def test_shares_of_closed_gates_are_exact():
    """In float32 both sigmoids are 0, but their ratio is not."""
    logits = torch.tensor([-200.0, -1000.0, 300.0]), torch.tensor([-201.0, -920.0, -60.0])
    forget_share, input_share = gate_shares(*logits)
    expected = torch.tensor([1.0, -80.0, 60.0], dtype=torch.float64)
    torch.testing.assert_close(forget_share.double(), expected.sigmoid(), rtol=1e-4, atol=0)
    torch.testing.assert_close(input_share.double(), (-expected).sigmoid(), rtol=1e-4, atol=0)


def test_positive_is_continuous_and_steepest_above_0():
    x = torch.tensor([-200.0, -1.0, -1e-6, 0.0, 1e-6, 2.0], dtype=torch.float64)
    expected = torch.where(x >= 0, x + 0.5, x.sigmoid())
    torch.testing.assert_close(positive(x), expected)
    assert (positive(x) > 0).all() and (positive(x).diff() > 0).all()


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_no_logit_overflows(size: float):
    *parts, h_BE = inputs(3000, torch.float32)
    tensors = [(size * parts[0]).requires_grad_(), (size * parts[1]).requires_grad_(), parts[2].requires_grad_(), h_BE]
    states_BTE, _ = minlstm(*tensors)
    for found in (states_BTE, *torch.autograd.grad(states_BTE.sum(), tensors[:3])):
        assert found.isfinite().all()
    expected, _ = minlstm_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(states_BTE.double(), expected, rtol=1e-4, atol=1e-4)
