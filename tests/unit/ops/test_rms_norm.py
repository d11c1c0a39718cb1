import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops import rms_norm as rms_norm_module
from linnet.ops.rms_norm import l2_normalize, rms_norm, rms_norm_reference


@given(st.integers(1, 5), st.integers(1, 9))
def test_rms_norm(rows, width):
    x, gain = double(2, rows, width), double(width)
    assert_same_with_gradients(rms_norm(x, gain, 1e-6), rms_norm_reference(x, gain, 1e-6), (x, gain))


def test_rms_norm_with_a_gain_near_zero():
    x, gain = double(2, 3, 4), torch.tensor([1.0, 0.0, 1e-300, -2.0], dtype=torch.float64, requires_grad=True)
    assert_same_with_gradients(rms_norm(x, gain, 1e-6), rms_norm_reference(x, gain, 1e-6), (x, gain))


@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9))
def test_rms_norm_without_gradients(batch, rows, width):
    """One row has its own implementation."""
    x, gain = torch.randn(batch, rows, width), torch.randn(width)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, gain, 1e-6), rms_norm_reference(x, gain, 1e-6))


def test_rms_norm_of_one_row_ignores_the_default_device():
    rms_norm_module._zero.cache_clear()
    x, gain = torch.randn(1, 4), torch.ones(4)
    with torch.no_grad(), torch.device("meta"):
        out = rms_norm(x, gain, 1e-6)
    torch.testing.assert_close(out, rms_norm_reference(x, gain, 1e-6))


def test_rms_norm_of_zeros_is_zero():
    assert (rms_norm(torch.zeros(2, 4), torch.ones(4), 1e-6) == 0).all()


def test_rms_norm_in_bfloat16():
    x, gain = torch.randn(2, 3, 64), torch.randn(64)
    rough = rms_norm(x.bfloat16(), gain.bfloat16(), 1e-6).float()
    torch.testing.assert_close(rough, rms_norm_reference(x, gain, 1e-6), rtol=0.02, atol=0.02)


@given(st.integers(1, 9), st.floats(0.1, 3.0))
def test_vectors_are_scaled_to_a_length_but_for_a_millionth(width, length):
    x = double(2, 3, width)
    for found, scale in ((l2_normalize(x, length), length), (l2_normalize(x), 1.0)):
        assert_same_with_gradients(found, scale * x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), (x,))
