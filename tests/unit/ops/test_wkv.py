import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops.linear_scan import segments
from linnet.ops.wkv import wkv, wkv_reference

NOTHING = -math.inf


def inputs(length: int, begun: bool = True, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Keys, values, rates, bonuses and the state before, for two rows of three channels: slow, usual, fast."""
    torch.manual_seed(length)
    k_BTE, v_BTE = 3 * torch.randn(2, length, 3, dtype=dtype), torch.randn(2, length, 3, dtype=dtype)
    rate_E, bonus_E = torch.tensor([1e-3, 0.3, 8.0], dtype=dtype), torch.randn(3, dtype=dtype)
    mean_BE, log_weight_BE = torch.randn(2, 3, dtype=dtype), torch.randn(2, 3, dtype=dtype)
    if not begun:
        mean_BE, log_weight_BE = torch.zeros_like(mean_BE), torch.full_like(mean_BE, NOTHING)
    return [part.requires_grad_() for part in (k_BTE, v_BTE, rate_E, bonus_E, mean_BE, log_weight_BE)]


@torch.no_grad()
def by_the_equation(k_TE: Tensor, v_TE: Tensor, rate_E: Tensor, bonus_E: Tensor) -> Tensor:
    """Equation 14 of the paper, sum by sum."""
    outs = []
    for t in range(len(k_TE)):
        weights = [(k_TE[i] - (t - 1 - i) * rate_E).exp() for i in range(t)] + [(bonus_E + k_TE[t]).exp()]
        outs.append(sum(w_E * v_E for w_E, v_E in zip(weights, v_TE, strict=False)) / sum(weights))
    return torch.stack(outs)


@pytest.mark.parametrize("form", [wkv, wkv_reference])
def test_the_result_equals_the_average_of_the_paper(form):
    tensors = inputs(20, begun=False)
    out_BTE, *_ = form(*tensors)
    for row in range(2):
        torch.testing.assert_close(out_BTE[row], by_the_equation(tensors[0][row], tensors[1][row], *tensors[2:4]))


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_the_fast_form_equals_the_reference_with_all_gradients(length: int, begun: bool):
    """Includes the gradients of the last state."""
    tensors, results = inputs(length, begun), []
    for form in (wkv, wkv_reference):
        out_BTE, mean_BE, log_weight_BE = form(*tensors)
        of_all = out_BTE.square().sum() + mean_BE.sin().sum() + log_weight_BE.cos().sum()
        results.append((out_BTE, mean_BE, log_weight_BE, *torch.autograd.grad(of_all, tensors)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


def test_several_segments_equal_one_stream_with_all_gradients(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linnet.ops.linear_scan.SEGMENT_NUMBERS", 2 * 3 * 40)
    assert len(list(segments((2, 150, 3)))) > 3
    test_the_fast_form_equals_the_reference_with_all_gradients(150, begun=True)
    test_the_fast_form_equals_the_reference_with_all_gradients(150, begun=False)


@pytest.mark.parametrize("form", [wkv, wkv_reference])
def test_gradients_equal_finite_differences(form):
    tensors = inputs(7)
    tensors[2] = torch.tensor([0.05, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(form, tensors)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 90), st.floats(-60, 60), st.floats(0.01, 60), st.floats(1e-8, 1e4), st.floats(-30, 30))
def test_an_average_lies_between_its_values(length: int, middle: float, spread: float, rate: float, bonus: float):
    """For keys of any size, in float32, in one piece and in two."""
    torch.manual_seed(length)
    k_BTE, v_BTE = middle + spread * torch.randn(1, length, 2), torch.randn(1, length, 2)
    rate_E, bonus_E = torch.tensor([rate, rate / 7]), torch.full((2,), bonus)
    begin = (torch.zeros(1, 2), torch.full((1, 2), NOTHING))
    out_BTE, *known = wkv(k_BTE, v_BTE, rate_E, bonus_E, *begin)
    least_BE, most_BE = v_BTE.amin(1) - 1e-5, v_BTE.amax(1) + 1e-5
    assert (out_BTE >= least_BE[:, None]).all() and (out_BTE <= most_BE[:, None]).all()
    half = length // 2
    if half:
        first_BTE, *between = wkv(k_BTE[:, :half], v_BTE[:, :half], rate_E, bonus_E, *begin)
        second_BTE, *last = wkv(k_BTE[:, half:], v_BTE[:, half:], rate_E, bonus_E, *between)
        torch.testing.assert_close(torch.cat([first_BTE, second_BTE], 1), out_BTE, rtol=1e-3, atol=1e-3)
        for found_BE, expected_BE in zip(last, known, strict=True):
            torch.testing.assert_close(found_BE, expected_BE, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rate", [1e-8, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e30])
def test_nothing_overflows(size: float, rate: float):
    k_BTE, v_BTE, _, bonus_E, *begin = inputs(700, begun=False, dtype=torch.float32)
    tensors = [(size * k_BTE).detach().requires_grad_(), v_BTE, torch.full((3,), rate, requires_grad=True), bonus_E]
    out_BTE, mean_BE, log_weight_BE = wkv(*tensors, *begin)
    found = torch.autograd.grad(out_BTE.sum() + mean_BE.sum(), tensors)
    assert all(part.isfinite().all() for part in (out_BTE, mean_BE, log_weight_BE, *found))


def test_float32_keeps_its_digits_over_a_long_stream():
    *tokens, rate_E, bonus_E, mean_BE, log_weight_BE = inputs(5000, begun=False, dtype=torch.float32)
    tensors = [*tokens, rate_E, bonus_E, mean_BE, log_weight_BE]
    out_BTE, *_ = wkv(*tensors)
    expected_BTE, *_ = wkv(*(part.double() for part in tensors))
    torch.testing.assert_close(out_BTE.double(), expected_BTE, rtol=1e-4, atol=1e-4)
