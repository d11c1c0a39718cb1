import torch
from hypothesis import given
from hypothesis import strategies as st
from same_gradients import assert_same_with_gradients, double

from linnet.ops.gated_feed_forward import (
    gated_feed_forward,
    gated_feed_forward_reference,
    gated_output,
    gated_output_reference,
    gated_silu,
    gated_silu_reference,
)


@given(*[st.integers(1, 7)] * 4, *[st.booleans()] * 3)
def test_gated_feed_forward(rows, inputs, hidden, outputs, up_bias, down_bias, recompute):
    x, up, down = double(2, rows, inputs), double(2 * hidden, inputs), double(outputs, hidden)
    biases = (double(2 * hidden) if up_bias else None, double(outputs) if down_bias else None)
    arguments = (x, up, biases[0], down, biases[1])
    fast, slow = gated_feed_forward(*arguments, recompute), gated_feed_forward_reference(*arguments)
    assert_same_with_gradients(fast, slow, tuple(tensor for tensor in arguments if tensor is not None))


def test_gated_feed_forward_of_a_non_contiguous_input_without_gradient():
    x, up, down = double(5, 3).detach().t()[None], double(8, 5), double(2, 4)
    fast, slow = (form(x, up, None, down, None) for form in (gated_feed_forward, gated_feed_forward_reference))
    assert_same_with_gradients(fast, slow, (up, down))


def test_gated_feed_forward_backward_pass_inside_autocast_and_without_rows():
    x, up, down = torch.randn(3, 5, requires_grad=True), torch.randn(8, 5), torch.randn(2, 4)
    out = gated_feed_forward(x, up, None, down, None)
    with torch.autocast("cpu", torch.bfloat16):
        (inside,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    assert torch.equal(inside, torch.autograd.grad(out.sum(), x)[0])
    assert gated_feed_forward(x[:0], up, None, down, None).shape == (0, 2)


@given(st.integers(1, 5), st.integers(1, 9))
def test_gated_silu(rows, width):
    joint = double(2, rows, 2 * width)
    assert_same_with_gradients(gated_silu(joint), gated_silu_reference(joint), (joint,))


@given(*[st.integers(1, 6)] * 3)
def test_gated_output(rows, inputs, outputs):
    o, weight, gate = double(2, rows, inputs), double(outputs, inputs), double(2, rows, outputs)
    fast, slow = gated_output(o, weight, gate), gated_output_reference(o, weight, gate)
    assert_same_with_gradients(fast, slow, (o, weight, gate))
