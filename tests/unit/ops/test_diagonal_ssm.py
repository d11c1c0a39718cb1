import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops import diagonal_ssm as module
from linnet.ops.diagonal_ssm import (
    complex_div,
    complex_exp,
    complex_expm1,
    complex_mul,
    complex_powers,
    diagonal_ssm,
    diagonal_ssm_real,
    diagonal_ssm_reference,
)

CHANNELS, PAIRS = 3, 4


def inputs(length: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Complex numbers that rotate and decay; one is 0, one keeps its absolute value."""
    torch.manual_seed(length)
    complexes = {torch.float64: torch.complex128, torch.float32: torch.complex64}[dtype]
    a_EN = torch.polar(torch.rand(CHANNELS, PAIRS, dtype=dtype), 3 * torch.randn(CHANNELS, PAIRS, dtype=dtype))
    a_EN[0, :2] = torch.tensor([0, 1j])
    c_EN, h_BEN = (torch.randn(*shape, CHANNELS, PAIRS, dtype=complexes) for shape in ((), (batch,)))
    x_BET = torch.randn(batch, length, CHANNELS, dtype=dtype).transpose(1, 2)
    return [x_BET, a_EN, c_EN, torch.randn(CHANNELS, dtype=dtype), h_BEN]


def with_gradients(form, tensors: list[Tensor]) -> list[Tensor]:
    tensors = [part.detach().requires_grad_() for part in tensors]
    out_BET, end_BEN = form(*tensors)
    of_all = out_BET.sin().sum() + end_BEN.real.sin().sum() + end_BEN.imag.square().sum()
    return [out_BET, end_BEN, *torch.autograd.grad(of_all, tensors)]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.sampled_from([1, 2, 63, 64, 65, 128, 150, 200]), st.sampled_from([1, 2**18]))
def test_the_fast_form_equals_the_reference_with_all_gradients(batch: int, length: int, segment: int):
    """All chunks at once, and one at a time; with tokens after the last whole chunk, and without a whole chunk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linnet.ops.support.SEGMENT_NUMBERS", segment)
        pairs = [with_gradients(form, inputs(length, batch)) for form in (diagonal_ssm, diagonal_ssm_reference)]
        for fast, slow in zip(*pairs, strict=True):
            torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("length", [1, 63, 65, 300])
def test_the_result_equals_a_convolution_with_the_kernel(length: int):
    """By Fourier transforms, without a state before."""
    x_BET, a_EN, c_EN, d_E, _ = inputs(length)
    powers = [torch.ones_like(a_EN)]
    for _ in range(length - 1):
        powers.append(powers[-1] * a_EN)
    kernel_ET = torch.stack([(c_EN * power_EN).sum(1).real for power_EN in powers], dim=1)
    both = [torch.fft.rfft(part, n=2 * length) for part in (x_BET, kernel_ET)]
    expected_BET = torch.fft.irfft(both[0] * both[1], n=2 * length)[..., :length] + d_E[:, None] * x_BET
    torch.testing.assert_close(diagonal_ssm(x_BET, a_EN, c_EN, d_E)[0], expected_BET)


@pytest.mark.parametrize("length", [1, 2, 64])
def test_the_form_in_real_numbers_equals_the_complex_one(length: int):
    x_BET, a_EN, c_EN, d_E, h_BEN = inputs(length)
    a_EN2, c_EN2, h_BEN2 = map(torch.view_as_real, (a_EN, c_EN, h_BEN))
    out_BET, end_BEN2 = diagonal_ssm_real(x_BET, a_EN2, c_EN2, d_E, h_BEN2)
    expected_BET, expected_BEN = diagonal_ssm_reference(x_BET, a_EN, c_EN, d_E, h_BEN)
    torch.testing.assert_close(out_BET, expected_BET)
    torch.testing.assert_close(end_BEN2, torch.view_as_real(expected_BEN))


def test_gradients_equal_finite_differences():
    assert torch.autograd.gradcheck(diagonal_ssm, [part.requires_grad_() for part in inputs(9, 1)])


@pytest.mark.parametrize("size", [0.0, 1e-30, 1 - 1e-6, 1.0])
def test_no_size_overflows(size: float):
    x_BET, a_EN, c_EN, d_E, h_BEN = inputs(3000, dtype=torch.float32)
    tensors = [x_BET, torch.polar(torch.full_like(a_EN.real, size), a_EN.angle()), c_EN, d_E, h_BEN]
    found = with_gradients(diagonal_ssm, tensors)
    assert all(part.isfinite().all() for part in found)
    exact = [part.to(torch.complex128 if part.is_complex() else torch.float64) for part in tensors]
    expected, _ = diagonal_ssm(*exact)
    assert (found[0] - expected).abs().max() < 1e-4 * expected.abs().max()


def test_the_number_of_operations_grows_slowly_with_the_length():
    """Token by token there would be 4,000 operations."""
    with torch.autograd.profiler.profile() as profile:
        diagonal_ssm(*inputs(4000))
    assert sum(event.count for event in profile.key_averages() if event.key.startswith("aten::addcmul")) < 70


@pytest.mark.parametrize("batch", [1, 1000, 2**14])
def test_segments_hold_all_tokens_once(batch: int):
    for length in (1, 63, 64, 65, 1000, 2**18 + 5):
        begin = 0
        for place, chunk in module._segments(torch.empty(1, 1, 1).expand(batch, 3, length)):
            assert place.start == begin and (place.stop - begin) % chunk == 0
            begin = place.stop
        assert begin == length


def pairs(*shape: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(*shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(torch.view_as_complex(found.contiguous()), expected)


def test_arithmetic_in_pairs_equals_complex_arithmetic():
    u, w = pairs(3, 5), pairs(5)
    u_complex, w_complex = torch.view_as_complex(u), torch.view_as_complex(w)
    same(complex_mul(u, w), u_complex * w_complex)
    same(complex_div(u, w), u_complex / w_complex)
    same(complex_exp(u), u_complex.exp())


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0])
def test_expm1_of_small_numbers_keeps_its_digits(size: float):
    u = pairs(7, size=size)
    same(complex_expm1(u), torch.view_as_complex(u).expm1())
    narrow = complex_expm1(u.float()).double()
    torch.testing.assert_close(narrow, complex_expm1(u), rtol=1e-5, atol=1e-7 * size)


@pytest.mark.parametrize("count", [1, 2, 3, 65])
def test_powers(count: int):
    a = pairs(4, 3, size=0.5)
    expected = torch.view_as_complex(a)[:, None] ** torch.arange(count)[:, None]
    same(complex_powers(a, count), expected)
