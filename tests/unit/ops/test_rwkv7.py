import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from same_gradients import assert_same_recurrence, with_gradients
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops import support
from linnet.ops.rwkv7 import CHUNK, rwkv7, rwkv7_flops, rwkv7_output, rwkv7_reference

HEADS, KEYS, VALUES = 3, 5, 4


def inputs(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Inputs of two rows, with the parameters of heads and the state before."""
    torch.manual_seed(length)
    r, w, k, a = torch.randn(4, 2, HEADS, length, KEYS, dtype=dtype)
    v_BNTV, state_BNKV = (torch.randn(2, HEADS, count, VALUES, dtype=dtype) for count in (length, KEYS))
    erased_NK, mixed_NK = torch.randn(2, HEADS, KEYS, dtype=dtype)
    return [r, 3 * w, k, v_BNTV, a, erased_NK, mixed_NK, state_BNKV]


@pytest.mark.parametrize("segment", [1, 2 * HEADS * CHUNK * KEYS * 2, 2**18])
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 65, 97, 130])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, monkeypatch: pytest.MonkeyPatch
):
    """Segments of one chunk, of two, and of all of them."""
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    assert_same_recurrence(rwkv7, rwkv7_reference, inputs(length))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 70),
    st.floats(-60, 60),
    st.floats(-60, 60),
    st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e3]),
    st.floats(-3, 3),
)
def test_the_fast_form_equals_the_reference_for_any_logits(
    length: int, fading: float, rate: float, size: float, mix: float
):
    """No decay or the fastest; nothing is removed or everything; keys of any length, including 0."""
    r, w, k, v, a, erased, mixed, state = inputs(length)
    tensors = [r, w + fading, k * size, v, a + rate, erased, mixed * mix, state]
    for fast, slow in zip(rwkv7(*tensors), rwkv7_reference(*tensors), strict=True):
        torch.testing.assert_close(fast, slow)


def dplr_recurrence(q, k, v, alpha, beta, log_decay, state):  # type: ignore[no-untyped-def]
    """flash-linear-attention's recurrence of a matrix that is diagonal plus low rank, of one head, keys as rows:
    `S_t = Diag(decay_t) S_(t-1) + beta_t (alpha_t^T S_(t-1)) + k_t v_t^T`.
    """
    outs = []
    for token in range(len(q)):
        transition = log_decay[token].exp().diag() + torch.outer(beta[token], alpha[token])
        state = transition @ state + torch.outer(k[token], v[token])
        outs.append(state.t() @ q[token])
    return torch.stack(outs), state


@pytest.mark.parametrize("form", [rwkv7, rwkv7_reference])
@pytest.mark.parametrize("length", [1, 63, 65])
def test_the_result_equals_the_recurrence_of_the_paper_with_all_gradients(form, length: int):
    """As the published layer calls it: `alpha = -kk`, `beta = kk * a`, decays `exp(-exp(-softplus(-w) - 0.5))`."""

    def published(r, w, k, v, a, erased, mixed, state):  # type: ignore[no-untyped-def]
        outs, ends = [], []
        for row in range(2):
            for head in range(HEADS):
                eta = a[row, head].sigmoid()
                kk = nn.functional.normalize(k[row, head] * erased[head], dim=-1, p=2.0)
                key = k[row, head] * (1 + (eta - 1) * mixed[head])
                log_decay = -(-nn.functional.softplus(-w[row, head]) - 0.5).exp()
                of_head = r[row, head], key, v[row, head], -kk, kk * eta, log_decay, state[row, head]
                out_TV, end_KV = dplr_recurrence(*of_head)
                outs.append(out_TV)
                ends.append(end_KV)
        return (torch.stack(found).unflatten(0, (2, HEADS)) for found in (outs, ends))

    for found, expected in zip(
        with_gradients(form, inputs(length)), with_gradients(published, inputs(length)), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("logit", [-1e4, 0.0, 1e4])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_no_logit_and_no_size_overflows(logit: float, size: float):
    """In float32, over many chunks; against float64."""
    tensors = inputs(200, torch.float32)
    tensors[1], tensors[2], tensors[3] = tensors[1] + logit, size * tensors[2], size * tensors[3]
    for rough, exact in zip(
        with_gradients(rwkv7, tensors), with_gradients(rwkv7, [x.double() for x in tensors]), strict=True
    ):
        torch.testing.assert_close(rough.double(), exact, rtol=1e-3, atol=2e-4 * max(1.0, exact.abs().max().item()))


def test_factors_within_a_chunk_do_not_overflow_for_large_queries():
    """Relative to the end of a chunk instead of its middle they would reach e^19, and 1e32 times that overflows."""
    r, w, *others = inputs(96, torch.float32)
    out_BNTV, _ = rwkv7(1e32 * r, w + 40.0, *others)
    torch.testing.assert_close(out_BNTV * 1e-32, rwkv7_reference(r, w + 40.0, *others)[0])


def test_the_fastest_decay_keeps_its_digits():
    """Factors relative to the middle of a chunk reach e^10 there; the result is as exact as step by step."""
    tensors = inputs(96, torch.float32)
    tensors[1] = tensors[1] + 40.0
    exact, _ = rwkv7_reference(*(x.double() for x in tensors))
    fast, slow = (form(*tensors)[0].double() - exact for form in (rwkv7, rwkv7_reference))
    assert fast.norm() < 20 * slow.norm() and fast.norm() < 1e-5 * exact.norm()


def test_a_value_replaces_the_previous_value_of_its_key():
    """Without decay, and with full removal, only the last value of a repeated key is read."""
    k_T = torch.tensor([0, 1, 0] + [2, 3] * 40)
    keys_TK, v_TV = torch.eye(4)[k_T], torch.randn(len(k_T), VALUES)
    never, always = torch.full_like(keys_TK, -math.inf), torch.full_like(keys_TK, math.inf)
    one = (x[None, None] for x in (keys_TK, never, keys_TK, v_TV, always))
    out_BNTV, end_BNKV = rwkv7(*one, torch.ones(1, 4), torch.zeros(1, 4))
    torch.testing.assert_close(out_BNTV[0, 0], v_TV)
    torch.testing.assert_close(end_BNKV[0, 0], v_TV[[2, 1, -2, -1]])


@pytest.mark.parametrize("length", [2, 35])
def test_gradients_equal_finite_differences(length: int):
    tensors = [part.requires_grad_() for part in inputs(length)]
    assert torch.autograd.gradcheck(rwkv7, tensors, fast_mode=True)


@pytest.mark.parametrize("length", [1, 2, 33, 128])
def test_predicted_flops_equal_counted_flops(length: int):
    *tensors, _ = inputs(length)
    with FlopCounterMode(display=False) as counter:
        rwkv7(*tensors)
    values = 2 * VALUES
    tensors[3] = torch.cat([tensors[3]] * 2, dim=-1)
    with FlopCounterMode(display=False) as wider:
        rwkv7(*tensors)
    assert counter.get_total_flops() == 2 * rwkv7_flops(length, HEADS, KEYS, VALUES)
    assert wider.get_total_flops() == 2 * rwkv7_flops(length, HEADS, KEYS, values)


def test_a_stream_without_a_state_begins_with_zeros():
    *tensors, state_BNKV = inputs(40)
    for form in (rwkv7, rwkv7_reference):
        torch.testing.assert_close(form(*tensors), form(*tensors, 0 * state_BNKV))


def test_the_output_is_normalized_increased_by_the_bonus_and_gated():
    torch.manual_seed(0)
    r, k, a, o, v, gate = torch.randn(6, 2, 7, HEADS, KEYS, dtype=torch.float64)
    mixed, bonus, gain, bias = torch.randn(4, HEADS, KEYS, dtype=torch.float64)
    found = rwkv7_output(o, r, k, v, a, gate, mixed, bonus, gain, bias, 0.1)
    normed = nn.functional.group_norm(o.flatten(0, 1).flatten(1), HEADS, gain.flatten(), bias.flatten(), 0.1)
    added = k * (1 + (a.sigmoid() - 1) * mixed)
    own = (r * added * bonus).sum(-1, keepdim=True) * v
    torch.testing.assert_close(found, (normed.view_as(o) + own) * gate)
