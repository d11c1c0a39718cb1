import pytest
import torch
from torch import Tensor

from linnet.ops import selective_scan as selective_scan_module
from linnet.ops import support
from linnet.ops.selective_scan import selective_scan, selective_scan_reference


def inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Inputs of two rows of three channels with five numbers each."""
    torch.manual_seed(length)
    drawn = [torch.randn(shape, dtype=dtype) for shape in ((2, length, 3),) * 2 + ((5, 3),) + ((2, length, 5),) * 2]
    x_BTE, dt_BTE, a_NE, b_BTN, c_BTN = drawn
    return x_BTE, dt_BTE.exp(), -a_NE.exp(), b_BTN, c_BTN


@pytest.mark.parametrize("many", [1, selective_scan_module.MIN_FULL_OPERATION])
@pytest.mark.parametrize("segment", [1, 960, 2**18])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 63, 65, 130])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, many: int, monkeypatch: pytest.MonkeyPatch
):
    """Segments of one chunk, of two, and of all tokens; with small and with large states."""
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    monkeypatch.setattr(selective_scan_module, "MIN_FULL_OPERATION", many)
    before_BNE = torch.randn(2, 5, 3, dtype=torch.float64)
    tensors, results = [part.requires_grad_() for part in (*inputs(length), before_BNE)], []
    for form in (selective_scan, selective_scan_reference):
        out_BTE, state_BNE = form(*tensors)
        results.append((out_BTE, state_BNE, *torch.autograd.grad(out_BTE.square().sum(), tensors)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


def test_the_input_of_a_token_decays_by_the_later_steps():
    x_BTE, dt_BTE, a_NE, b_BTN, c_BTN = inputs(4)
    out_BTE, _ = selective_scan(x_BTE, dt_BTE, a_NE, b_BTN, c_BTN)
    for channel in range(3):
        expected = 0.0
        for source in range(4):
            faded_N = (a_NE[:, channel] * dt_BTE[1, source + 1 :, channel].sum()).exp()
            left_N = faded_N * b_BTN[1, source] * dt_BTE[1, source, channel] * x_BTE[1, source, channel]
            expected += c_BTN[1, 3] @ left_N
        torch.testing.assert_close(out_BTE[1, 3, channel], expected)


@pytest.mark.parametrize("step", [1e-6, 1.0, 1e4])
def test_no_decay_rate_overflows(step: float):
    x_BTE, dt_BTE, a_NE, b_BTN, c_BTN = inputs(3000, torch.float32)
    tensors = [part.requires_grad_() for part in (x_BTE, step * dt_BTE, a_NE, b_BTN, c_BTN)]
    out_BTE, _ = selective_scan(*tensors)
    for gradient in (out_BTE, *torch.autograd.grad(out_BTE.sum(), tensors)):
        assert gradient.isfinite().all()
    expected, _ = selective_scan_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(out_BTE.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_a_stream_without_a_state_begins_with_zeros():
    tensors = inputs(20)
    zeros = torch.zeros(2, 5, 3, dtype=torch.float64)
    for form in (selective_scan, selective_scan_reference):
        torch.testing.assert_close(form(*tensors), form(*tensors, zeros))
