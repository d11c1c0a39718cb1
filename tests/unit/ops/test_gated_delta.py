import pytest
import torch
from same_gradients import assert_same_recurrence
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops import support
from linnet.ops.gated_delta import gated_delta, gated_delta_flops, gated_delta_reference

KEYS, VALUES = 5, 3


def inputs(length: int, gates: int = 1, dtype: torch.dtype = torch.float64, key_heads: int = 2) -> list[Tensor]:
    """Inputs of two rows of four value heads, with the state before; keys have length 1."""
    torch.manual_seed(length)
    of_keys = torch.randn(2, 2, key_heads, length, KEYS, dtype=dtype)
    q_BMTK, k_BMTK = of_keys / of_keys.norm(dim=-1, keepdim=True)
    v_BNTV, state_BNKV = (torch.randn(2, 4, count, VALUES, dtype=dtype) for count in (length, KEYS))
    log_alpha_BNTG = -torch.randn(2, 4, length, gates, dtype=dtype).exp()
    return [q_BMTK, k_BMTK, v_BNTV, log_alpha_BNTG, torch.rand(2, 4, length, dtype=dtype), state_BNKV]


@pytest.mark.parametrize("segment", [1, 2 * 8 * 64 * KEYS, 2**18])
@pytest.mark.parametrize("gates", [1, KEYS])
@pytest.mark.parametrize("length", [1, 2, 15, 17, 63, 64, 65, 130, 193])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, gates: int, segment: int, monkeypatch: pytest.MonkeyPatch
):
    """Segments of one chunk, of two, and of all of them; gradients from outputs and from the last state."""
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    assert_same_recurrence(gated_delta, gated_delta_reference, inputs(length, gates))


@pytest.mark.parametrize("key_heads", [1, 4])
def test_a_key_head_serves_consecutive_value_heads(key_heads: int):
    q_BMTK, k_BMTK, *others = inputs(20, KEYS, key_heads=key_heads)
    out_BNTV, _ = gated_delta(q_BMTK, k_BMTK, *others)
    for head in range(4):
        shared, own = slice(head * key_heads // 4, head * key_heads // 4 + 1), slice(head, head + 1)
        alone, _ = gated_delta_reference(q_BMTK[:, shared], k_BMTK[:, shared], *(part[:, own] for part in others))
        torch.testing.assert_close(out_BNTV[:, own], alone)


@pytest.mark.parametrize("form", [gated_delta, gated_delta_reference])
@pytest.mark.parametrize("gates", [1, KEYS])
def test_the_result_equals_the_recurrence_of_the_papers(form, gates: int):
    q, k, v, log_alpha, beta, state = (part[1, 3 if part.shape[1] == 4 else 1] for part in inputs(4, gates))
    out_BNTV, end_BNKV = form(*inputs(4, gates))
    for token in range(4):
        erased = torch.eye(KEYS, dtype=torch.float64) - beta[token] * torch.outer(k[token], k[token])
        faded = log_alpha[token].exp().expand(KEYS).diag()
        state = erased @ faded @ state + beta[token] * torch.outer(k[token], v[token])
        torch.testing.assert_close(out_BNTV[1, 3, token], state.t() @ q[token] / KEYS**0.5)
    torch.testing.assert_close(end_BNKV[1, 3], state)


def test_a_value_replaces_the_previous_value_of_its_key():
    """Without decay and with shares of 1 only the last value of a repeated key is read."""
    k_T = torch.tensor([0, 1, 0] + [2, 3] * 40)
    keys_TK, v_TV = torch.eye(4)[k_T], torch.randn(len(k_T), VALUES)
    one = (keys_TK, keys_TK, v_TV, torch.zeros(len(k_T), 1), torch.ones(len(k_T)))
    out_BNTV, end_BNKV = gated_delta(*(x[None, None] for x in one))
    torch.testing.assert_close(out_BNTV[0, 0] * 2, v_TV)
    torch.testing.assert_close(end_BNKV[0, 0], v_TV[[2, 1, -2, -1]])


@pytest.mark.parametrize("gates", [1, KEYS])
@pytest.mark.parametrize("speed", [1e-6, 1.0, 1e4])
def test_no_decay_rate_overflows(speed: float, gates: int):
    tensors = inputs(700, gates, torch.float32)
    tensors[3] = speed * tensors[3]
    tensors = [part.requires_grad_() for part in tensors]
    out_BNTV, _ = gated_delta(*tensors)
    expected, _ = gated_delta_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(out_BNTV.double(), expected, rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(out_BNTV)
    found = torch.autograd.grad(out_BNTV, tensors, upstream)
    for rough, exact in zip(found, torch.autograd.grad(expected, tensors, upstream.double()), strict=True):
        torch.testing.assert_close(rough, exact, rtol=1e-3, atol=1e-3 * max(1.0, exact.abs().max().item()))


def test_a_repeated_key_stays_exact():
    """The worst case of the triangular system: equal keys, no decay, every token replaces the value."""
    _, _, v_BNTV, log_alpha_BNTG, beta_BNT, _ = inputs(256, 1, torch.float32)
    keys = torch.ones(2, 2, 256, 1)
    out_BNTV, _ = gated_delta(keys, keys, v_BNTV, 0 * log_alpha_BNTG, torch.ones_like(beta_BNT))
    torch.testing.assert_close(out_BNTV, v_BNTV)


@pytest.mark.parametrize("gates", [1, KEYS])
@pytest.mark.parametrize("length", [2, 18])
def test_gradients_equal_finite_differences(length: int, gates: int):
    tensors = [part.requires_grad_() for part in inputs(length, gates)]
    assert torch.autograd.gradcheck(gated_delta, tensors, fast_mode=True)


@pytest.mark.parametrize("gates", [1, KEYS])
@pytest.mark.parametrize("length", [1, 2, 65, 128])
def test_predicted_flops_equal_counted_flops(length: int, gates: int):
    *tensors, _ = inputs(length, gates)
    with FlopCounterMode(display=False) as counter:
        gated_delta(*tensors)
    assert counter.get_total_flops() == 2 * gated_delta_flops(length, (2, 4), (KEYS, VALUES), gates)


def test_a_stream_without_a_state_begins_with_zeros():
    *tensors, state_BNKV = inputs(20)
    for form in (gated_delta, gated_delta_reference):
        torch.testing.assert_close(form(*tensors), form(*tensors, 0 * state_BNKV))
