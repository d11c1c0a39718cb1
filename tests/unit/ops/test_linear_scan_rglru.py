import pytest
import torch
from torch import Tensor

from linnet.ops.linear_scan import MAX_ROOT_SLOPE, rglru, rglru_reference

ALL_BEGIN = torch.tensor([[True]])
NONE_BEGINS = torch.tensor([[False]])


def inputs(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Tokens, both gates, rates and the state before, for two rows of three channels: slow, usual, fast."""
    torch.manual_seed(length)
    x_BTE, input_BTE, gate_BTE = (torch.randn(2, length, 3, dtype=dtype) for _ in range(3))
    rate_E = torch.tensor([1e-3, 0.3, 8.0], dtype=dtype)
    return [x_BTE, input_BTE.sigmoid(), gate_BTE.sigmoid(), rate_E, torch.randn(2, 3, dtype=dtype)]


def run(form, begins_B1: Tensor, tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    *of_unit, h_BE = tensors
    states_BTE, last_BE = form(*of_unit, begins_B1, h_BE)
    return states_BTE, last_BE


@pytest.mark.parametrize("begins_B1", [ALL_BEGIN, NONE_BEGINS, torch.tensor([[True], [False]])])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_the_fast_form_equals_the_reference_with_all_gradients(length: int, begins_B1: Tensor):
    tensors, results = [part.requires_grad_() for part in inputs(length)], []
    for form in (rglru, rglru_reference):
        states_BTE, last_BE = run(form, begins_B1, tensors)
        of_all = states_BTE.square().sum() + last_BE.sin().sum()
        results.append((states_BTE, last_BE, *torch.autograd.grad(of_all, tensors)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("begins_B1", [ALL_BEGIN, NONE_BEGINS])
@pytest.mark.parametrize("form", [rglru, rglru_reference])
def test_gradients_equal_finite_differences(form, begins_B1: Tensor):
    tensors = [part.requires_grad_() for part in inputs(7)]
    tensors[3] = torch.tensor([0.05, 0.3, 8.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *parts: run(form, begins_B1, list(parts)), tensors)


@pytest.mark.parametrize("form", [rglru, rglru_reference])
def test_unit_noise_keeps_its_variance_except_for_the_first_token(form):
    """`a^2 + scale^2 = 1`: the input replaces the decayed part."""
    x_BTE, ones = torch.ones(1, 2, 1, dtype=torch.float64), torch.ones(1, 2, 1, dtype=torch.float64)
    rate_E, h_BE = torch.tensor([0.1], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    states_BTE, _ = form(x_BTE, ones, ones, rate_E, ALL_BEGIN, h_BE)
    decay = torch.tensor(-0.1, dtype=torch.float64).exp()
    expected = torch.stack([decay.new_ones(()), decay + (1 - decay**2).sqrt()])
    torch.testing.assert_close(states_BTE[0, :, 0], expected)
    later, _ = form(x_BTE, ones, ones, rate_E, NONE_BEGINS, h_BE)
    torch.testing.assert_close(later[0, 0, 0], (1 - decay**2).sqrt())


@pytest.mark.parametrize("form", [rglru, rglru_reference])
def test_the_slope_of_the_root_is_bounded_without_decay(form):
    tensors = [part.requires_grad_() for part in inputs(5)]
    tensors[3] = torch.tensor([0.0, 1e-12, 1e-300], dtype=torch.float64, requires_grad=True)
    states_BTE, _ = run(form, NONE_BEGINS, tensors)
    gradients = torch.autograd.grad(states_BTE.sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)
    most = MAX_ROOT_SLOPE * 2 * 10 * 5 * tensors[0].abs().max().item() + 10 * 5 * states_BTE.abs().max().item()
    assert 10 < gradients[3].abs().max().item() < 10 * most


def test_a_rate_near_0_keeps_its_digits():
    """In float32 `1 - a^2` itself would be 0, or wrong in its first digit."""
    x_BTE, ones, zeros = torch.ones(1, 2, 1), torch.ones(1, 2, 1), torch.zeros(1, 1)
    for rate in (1e-7, 1e-9, 1e-12):
        states_BTE, _ = rglru(x_BTE, ones, ones, torch.tensor([rate]), NONE_BEGINS, zeros)
        assert states_BTE[0, 0, 0].item() == pytest.approx((2 * rate) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("rate", [1e-8, 1.0, 1e4])
def test_no_decay_rate_overflows(rate: float):
    *parts, _, h_BE = inputs(3000, torch.float32)
    tensors = [part.requires_grad_() for part in (*parts, torch.full((3,), rate), h_BE)]
    states_BTE, _ = run(rglru, ALL_BEGIN, tensors)
    for found in (states_BTE, *torch.autograd.grad(states_BTE.sum(), tensors)):
        assert found.isfinite().all()
    expected, _ = run(rglru_reference, ALL_BEGIN, [part.double() for part in tensors])
    torch.testing.assert_close(states_BTE.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
