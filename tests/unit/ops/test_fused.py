"""The fast forms of small operations against their definitions, with all gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops import cross_entropy
from linnet.ops import rms_norm as rms_norm_module
from linnet.ops.cross_entropy import IGNORED, linear_cross_entropy, linear_cross_entropy_reference
from linnet.ops.gated import gated_silu, gated_silu_reference
from linnet.ops.gated_feed_forward import gated_feed_forward, gated_feed_forward_reference
from linnet.ops.gated_output import gated_output, gated_output_reference
from linnet.ops.rms_norm import rms_norm, rms_norm_reference


def _double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def _same_with_gradients(fast: Tensor, slow: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(fast, slow)
    upstream = torch.randn_like(fast)
    for actual, expected in zip(
        torch.autograd.grad(fast, inputs, upstream), torch.autograd.grad(slow, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@given(st.integers(1, 5), st.integers(1, 9))
def test_rms_norm(rows, width):
    x, gain = _double(2, rows, width), _double(width)
    _same_with_gradients(rms_norm(x, gain, 1e-6), rms_norm_reference(x, gain, 1e-6), (x, gain))


def test_rms_norm_with_a_gain_of_nearly_nothing():
    x, gain = _double(2, 3, 4), torch.tensor([1.0, 0.0, 1e-300, -2.0], dtype=torch.float64, requires_grad=True)
    _same_with_gradients(rms_norm(x, gain, 1e-6), rms_norm_reference(x, gain, 1e-6), (x, gain))


@given(st.integers(1, 3), st.integers(1, 9))
def test_rms_norm_without_gradients(rows, width):
    """One row takes a way of its own."""
    x, gain = torch.randn(rows, width), torch.randn(width)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, gain, 1e-6), rms_norm_reference(x, gain, 1e-6))


def test_rms_norm_of_one_row_whatever_the_default_device():
    rms_norm_module._zero.cache_clear()
    x, gain = torch.randn(1, 4), torch.ones(4)
    with torch.no_grad(), torch.device("meta"):
        out = rms_norm(x, gain, 1e-6)
    torch.testing.assert_close(out, rms_norm_reference(x, gain, 1e-6))


@given(*[st.integers(1, 6)] * 3)
def test_gated_output(rows, inputs, outputs):
    o, weight, gate = _double(2, rows, inputs), _double(outputs, inputs), _double(2, rows, outputs)
    fast, slow = gated_output(o, weight, gate), gated_output_reference(o, weight, gate)
    _same_with_gradients(fast, slow, (o, weight, gate))


def test_rms_norm_of_zeros_is_zero():
    assert (rms_norm(torch.zeros(2, 4), torch.ones(4), 1e-6) == 0).all()


def test_rms_norm_in_bfloat16():
    x, gain = torch.randn(3, 64), torch.randn(64)
    rough = rms_norm(x.bfloat16(), gain.bfloat16(), 1e-6).float()
    torch.testing.assert_close(rough, rms_norm_reference(x, gain, 1e-6), rtol=0.02, atol=0.02)


@given(st.integers(1, 5), st.integers(1, 9))
def test_gated_silu(rows, width):
    joint = _double(2, rows, 2 * width)
    _same_with_gradients(gated_silu(joint), gated_silu_reference(joint), (joint,))


@given(*[st.integers(1, 7)] * 4, *[st.booleans()] * 3)
def test_gated_feed_forward(rows, inputs, hidden, outputs, up_bias, down_bias, recompute):
    x, up, down = _double(2, rows, inputs), _double(2 * hidden, inputs), _double(outputs, hidden)
    biases = (_double(2 * hidden) if up_bias else None, _double(outputs) if down_bias else None)
    arguments = (x, up, biases[0], down, biases[1])
    fast, slow = gated_feed_forward(*arguments, recompute), gated_feed_forward_reference(*arguments)
    _same_with_gradients(fast, slow, tuple(tensor for tensor in arguments if tensor is not None))


def test_gated_feed_forward_of_an_input_that_needs_no_gradient_and_is_not_contiguous():
    x, up, down = _double(5, 3).detach().t()[None], _double(8, 5), _double(2, 4)
    fast, slow = (form(x, up, None, down, None) for form in (gated_feed_forward, gated_feed_forward_reference))
    _same_with_gradients(fast, slow, (up, down))


@pytest.mark.parametrize("ignored", [[], [0, 4, 5], list(range(9))])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("slice_elements", [1, 30, 10_000])
def test_linear_cross_entropy(
    with_bias: bool, slice_elements: int, ignored: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cross_entropy, "SLICE_ELEMENTS", slice_elements)
    x, weight, bias = _double(9, 4), _double(7, 4), _double(7) if with_bias else None
    targets = torch.randint(7, (9,))
    targets[ignored] = IGNORED
    fast, slow = (f(x, weight, bias, targets) for f in (linear_cross_entropy, linear_cross_entropy_reference))
    assert fast.correct == slow.correct
    inputs = tuple(tensor for tensor in (x, weight, bias) if tensor is not None)
    _same_with_gradients(fast.nats, slow.nats, inputs)


def test_linear_cross_entropy_of_huge_logits_is_finite():
    x, weight = 1e4 * torch.randn(5, 4), torch.randn(7, 4)
    assert linear_cross_entropy(x, weight, None, torch.randint(7, (5,))).nats.isfinite()


def test_linear_cross_entropy_without_gradients():
    with torch.no_grad():
        x, weight, targets = torch.randn(5, 4), torch.randn(7, 4), torch.randint(7, (5,))
        fast, slow = (f(x, weight, None, targets) for f in (linear_cross_entropy, linear_cross_entropy_reference))
    torch.testing.assert_close(fast.nats.float(), slow.nats)


@pytest.mark.parametrize("slice_elements", [30, 10_000])
def test_linear_cross_entropy_under_autocast(slice_elements: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cross_entropy, "SLICE_ELEMENTS", slice_elements)
    x, weight = (torch.randn(*shape, requires_grad=True) for shape in ((40, 16), (7, 16)))
    targets = torch.randint(7, (40,))
    gradients = []
    for dtype in (torch.bfloat16, torch.float32):
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            loss = linear_cross_entropy(x, weight, None, targets)
        assert loss.nats.dtype == torch.float64
        gradients.append(torch.autograd.grad(loss.nats, (x, weight)))
    for rough, exact in zip(*gradients, strict=True):
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)


def test_gated_feed_forward_backwards_inside_autocast_and_without_rows():
    x, up, down = torch.randn(3, 5, requires_grad=True), torch.randn(8, 5), torch.randn(2, 4)
    out = gated_feed_forward(x, up, None, down, None)
    with torch.autocast("cpu", torch.bfloat16):
        (inside,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    assert torch.equal(inside, torch.autograd.grad(out.sum(), x)[0])
    assert gated_feed_forward(x[:0], up, None, down, None).shape == (0, 2)
