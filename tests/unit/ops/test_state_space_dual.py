from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops import support
from linnet.ops.state_space_dual import state_space_dual, state_space_dual_flops, state_space_dual_reference

SHAPES = [(2, 2, 3, 5), (1, 3, 2, 4), (3, 1, 1, 1)]
"""Groups, heads of a group, width of a head, numbers of a state."""


def inputs(length: int, shape: tuple[int, ...] = SHAPES[0], dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Inputs of two rows, and a state before them."""
    groups, members, width, state = shape
    heads = groups * members
    torch.manual_seed(length)
    shapes = [(2, length, heads, width), (2, length, heads), (heads,), (2, length, groups, state)]
    shapes += [(2, length, groups, state), (heads,), (2, heads, width, state)]
    x, dt, a, b, c, d, h = (torch.randn(shape, dtype=dtype) for shape in shapes)
    return x, dt.exp(), -a.exp(), b, c, d, h


def with_gradients(form: Callable[..., tuple[Tensor, Tensor]], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs, the last state, and the gradients of all inputs."""
    leaves = [part.detach().requires_grad_() for part in tensors]
    out, state = form(*leaves)
    loss = out.square().sum() + 0.7 * state.square().sum()
    return out, state, *torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("segment", [1, 2**18], ids=["one chunk", "all"])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130, 200])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    found, expected = (
        with_gradients(form, inputs(length, shape)) for form in (state_space_dual, state_space_dual_reference)
    )
    for fast, slow in zip(found, expected, strict=True):
        torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("bounds", [[0, 1, 2, 150], [0, 63, 64, 65, 150], [0, 64, 129, 150]])
def test_a_stream_in_pieces_equals_the_whole_stream(bounds: list[int]):
    x, dt, a, b, c, d, h = inputs(150)
    whole, end = state_space_dual(x, dt, a, b, c, d, h)
    outs = []
    for begin, stop in pairwise(bounds):
        out, h = state_space_dual(
            *(part[:, begin:stop] for part in (x, dt)), a, b[:, begin:stop], c[:, begin:stop], d, h
        )
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole)
    torch.testing.assert_close(h, end)


def test_the_input_of_a_token_decays_by_the_later_steps():
    x, dt, a, b, c, d, _ = inputs(4)
    out, _ = state_space_dual(x, dt, a, b, c, d)
    for head in range(4):
        expected = d[head] * x[1, 3, head]
        for source in range(4):
            faded = (a[head] * dt[1, source + 1 :, head].sum()).exp()
            expected = (
                expected
                + faded * dt[1, source, head] * (c[1, 3, head // 2] @ b[1, source, head // 2]) * x[1, source, head]
            )
        torch.testing.assert_close(out[1, 3, head], expected)


def test_gradients_equal_finite_differences():
    """Longer than a chunk, in segments of one chunk."""
    tensors = [part.requires_grad_() for part in inputs(70, (1, 2, 1, 2))]
    assert torch.autograd.gradcheck(state_space_dual, tensors, fast_mode=True)


@pytest.mark.parametrize("step", [1e-6, 1.0, 1e4])
def test_no_decay_rate_overflows(step: float):
    x, dt, *rest = inputs(3000, dtype=torch.float32)
    out, _, *gradients = with_gradients(state_space_dual, (x, step * dt, *rest))
    for found in (out, *gradients):
        assert found.isfinite().all()
    expected, _ = state_space_dual_reference(*(part.double() for part in (x, step * dt, *rest)))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_a_huge_step_does_not_reduce_the_precision_of_later_decays():
    """Later sums of logarithms are around -10,000, where the last digit of float32 is a thousandth."""
    x, dt, a, b, c, d, h = inputs(40, dtype=torch.float32)
    dt = 1e-3 * dt
    dt[:, 3], x[:, 3] = 1e4 / a.abs(), 0
    found = with_gradients(state_space_dual, (x, dt, a, b, c, d, h))
    expected = with_gradients(state_space_dual_reference, tuple(part.double() for part in (x, dt, a, b, c, d, h)))
    for place, tokens in ((0, slice(4, None)), (1, slice(None)), (3, slice(4, None))):  # outputs, the state, steps
        fast, slow = found[place][:, tokens], expected[place][:, tokens]
        torch.testing.assert_close(fast.double(), slow, rtol=1e-5, atol=2e-6 * slow.abs().max().item())


def test_a_stream_without_a_state_begins_with_zeros():
    *tensors, h = inputs(20)
    for form in (state_space_dual, state_space_dual_reference):
        torch.testing.assert_close(form(*tensors), form(*tensors, torch.zeros_like(h)))


def test_inputs_with_contiguous_tokens_give_the_same():
    *tensors, h = inputs(100)
    along = [part.movedim(1, -1).contiguous().movedim(-1, 1) if part.dim() > 1 else part for part in tensors]
    for fast, slow in zip(
        with_gradients(state_space_dual, (*along, h)), with_gradients(state_space_dual, (*tensors, h)), strict=True
    ):
        torch.testing.assert_close(fast, slow)


def test_gradients_under_autocast_are_as_precise_as_without():
    """The backward pass recomputes the products of a segment; autocast may be on there."""
    expected, tensors = (
        with_gradients(state_space_dual, inputs(70, dtype=torch.float32)),
        inputs(70, dtype=torch.float32),
    )
    leaves = [part.requires_grad_() for part in tensors]
    out, state = state_space_dual(*leaves)
    loss = out.square().sum() + 0.7 * state.square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss, leaves)
    for fast, slow in zip(found, expected[2:], strict=True):
        assert torch.equal(fast, slow)


@pytest.mark.parametrize("segment", [1, 2**18], ids=["one chunk", "all"])
@pytest.mark.parametrize("tokens", [1, 2, 64, 65, 150])
def test_predicted_flops_equal_counted_flops(tokens: int, segment: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    x, dt, a, b, c, d, h = (part[:1] if part.dim() > 1 else part for part in inputs(tokens))
    with FlopCounterMode(display=False) as counter:
        state_space_dual(x, dt, a, b, c, d, h)
    assert counter.get_total_flops() == state_space_dual_flops(tokens, 2, 4, 3, 5)
