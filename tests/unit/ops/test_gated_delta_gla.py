import pytest
import torch
from same_gradients import assert_same_recurrence
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops import support
from linnet.ops.gated_delta import gla, gla_flops, gla_reference

KEYS, VALUES = 5, 3


def inputs(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Inputs of two rows of three heads, with the state before."""
    torch.manual_seed(length)
    q_BNTK, k_BNTK, x_BNTK = torch.randn(3, 2, 3, length, KEYS, dtype=dtype)
    v_BNTV, state_BNKV = (torch.randn(2, 3, count, VALUES, dtype=dtype) for count in (length, KEYS))
    return [q_BNTK, k_BNTK, v_BNTV, -x_BNTK.exp(), state_BNKV]


@pytest.mark.parametrize("segment", [1, 2 * 3 * 2 * 64 * KEYS, 2**18])
@pytest.mark.parametrize("length", [1, 2, 15, 17, 63, 64, 65, 130, 193])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, monkeypatch: pytest.MonkeyPatch
):
    """Segments of one chunk, of two, and of all of them; gradients from outputs and from the last state."""
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    assert_same_recurrence(gla, gla_reference, inputs(length))


@pytest.mark.parametrize("form", [gla, gla_reference])
def test_each_key_decays_by_the_gates_after_its_token(form):
    q, k, v, log_alpha, state = (part[1, 2] for part in inputs(20))
    out_BNTV, end_BNKV = form(*inputs(20))
    for reader in (0, 3, 19):
        expected = (q[reader] * log_alpha[: reader + 1].sum(0).exp()) @ state
        for j in range(reader + 1):
            expected += (q[reader] * k[j] * log_alpha[j + 1 : reader + 1].sum(0).exp()).sum() * v[j]
        torch.testing.assert_close(out_BNTV[1, 2, reader], expected / KEYS**0.5)
    left = log_alpha.sum(0).exp()[:, None] * state
    for j in range(20):
        left += torch.outer(k[j] * log_alpha[j + 1 :].sum(0).exp(), v[j])
    torch.testing.assert_close(end_BNKV[1, 2], left)


@pytest.mark.parametrize("speed", [0.0, 1e-6, 1.0, 1e4])
def test_no_decay_rate_overflows(speed: float):
    tensors = inputs(700, torch.float32)
    tensors[3] = speed * tensors[3]
    tensors = [part.requires_grad_() for part in tensors]
    out_BNTV, _ = gla(*tensors)
    expected, _ = gla_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(out_BNTV.double(), expected, rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(out_BNTV)
    found = torch.autograd.grad(out_BNTV, tensors, upstream)
    for rough, exact in zip(found, torch.autograd.grad(expected, tensors, upstream.double()), strict=True):
        torch.testing.assert_close(rough, exact, rtol=1e-3, atol=1e-4 * max(1.0, exact.abs().max().item()))


@pytest.mark.parametrize("length", [2, 18])
def test_gradients_equal_finite_differences(length: int):
    tensors = [part.requires_grad_() for part in inputs(length)]
    assert torch.autograd.gradcheck(gla, tensors, fast_mode=True)


@pytest.mark.parametrize("length", [1, 2, 33, 65, 128])
def test_predicted_flops_equal_counted_flops(length: int):
    *tensors, _ = inputs(length)
    with FlopCounterMode(display=False) as counter:
        gla(*tensors)
    assert counter.get_total_flops() == 2 * 3 * gla_flops(length, KEYS, VALUES)


def test_a_stream_without_a_state_begins_with_zeros():
    *tensors, state_BNKV = inputs(20)
    for form in (gla, gla_reference):
        torch.testing.assert_close(form(*tensors), form(*tensors, 0 * state_BNKV))
