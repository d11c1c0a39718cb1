import pytest
import torch
from torch import Tensor

from linnet.ops import linear_scan as module
from linnet.ops.linear_scan import linear_scan, linear_scan_reference


def inputs(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of two rows of three channels; some factors are 0, some are above 1."""
    torch.manual_seed(length)
    a_BTE = torch.rand(2, length, 3, dtype=dtype) * 1.1
    a_BTE[a_BTE < 0.1] = 0
    return a_BTE, torch.randn(2, length, 3, dtype=dtype), torch.randn(2, 3, dtype=dtype)


@pytest.mark.parametrize("segment", [1, 6 * 20, 6 * 64, 2**18])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 200])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, monkeypatch: pytest.MonkeyPatch
):
    """Segments of 16 tokens in one chunk, of 18 in chunks of 3, of 60 in chunks of 5, of all tokens."""
    monkeypatch.setattr(module, "SEGMENT_NUMBERS", segment)
    tensors, results = [part.requires_grad_() for part in inputs(length)], []
    for form in (linear_scan, linear_scan_reference):
        states_BTE, last_BE = form(*tensors)
        of_all = states_BTE.sin().sum() + last_BE.square().sum()
        results.append((states_BTE, last_BE, *torch.autograd.grad(of_all, tensors)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


def test_gradients_equal_finite_differences():
    tensors = [part.requires_grad_() for part in inputs(20)]
    assert torch.autograd.gradcheck(linear_scan, tensors)


@pytest.mark.parametrize("batch", [1, 1000, 2**14])
def test_segments_hold_all_tokens_once_in_whole_chunks(batch: int):
    """For any number of rows, and any remainder after the last whole chunk."""
    for length in (*range(1, 200), 2**18 + 5):
        begin = 0
        for place, chunk in module.segments((batch, length, 3)):
            assert place.start == begin and (place.stop - begin) % chunk == 0
            begin = place.stop
        assert begin == length


def test_the_number_of_operations_grows_slowly_with_the_length():
    """Token by token there would be 2,000 operations."""
    a_BTE, b_BTE, h_BE = inputs(2000)
    with torch.autograd.profiler.profile() as profile:
        linear_scan(a_BTE, b_BTE, h_BE)
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::addcmul") < 200


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1 - 1e-7, 1.0])
def test_no_factor_overflows(factor: float):
    _, b_BTE, h_BE = inputs(3000, torch.float32)
    tensors = [part.requires_grad_() for part in (torch.full_like(b_BTE, factor), b_BTE, h_BE)]
    states_BTE, _ = linear_scan(*tensors)
    for found in (states_BTE, *torch.autograd.grad(states_BTE.sum(), tensors)):
        assert found.isfinite().all()
    expected, _ = linear_scan_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(states_BTE.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_a_stream_without_a_state_begins_with_zeros():
    a_BTE, b_BTE, _ = inputs(20)
    for form in (linear_scan, linear_scan_reference):
        torch.testing.assert_close(form(a_BTE, b_BTE), form(a_BTE, b_BTE, torch.zeros(2, 3, dtype=torch.float64)))


def test_states_are_contiguous_for_any_layout_of_the_inputs():
    """The states are saved for the backward pass, which views them in chunks."""
    a_BTE, b_BTE, h_BE = inputs(20)
    states_BTE, _ = linear_scan(a_BTE, b_BTE.transpose(1, 2).contiguous().transpose(1, 2), h_BE)
    assert states_BTE.is_contiguous()
    torch.testing.assert_close(states_BTE, linear_scan_reference(a_BTE, b_BTE, h_BE)[0])
