import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops import support
from linnet.ops.xlstm import mlstm, mlstm_flops, mlstm_reference

HEADS, KEYS, VALUES = 3, 5, 4


def inputs(length: int, spread: float = 3.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Inputs of two rows, with the memory before and its exponent; logits of the given spread."""
    torch.manual_seed(length)
    shapes = [(length, KEYS), (length, KEYS), (length, VALUES), (length,), (length,), (KEYS, VALUES + 1), ()]
    q, k, v, input_, forget, memory, peak = (torch.randn(2, HEADS, *shape, dtype=dtype) for shape in shapes)
    return [q, k, v, spread * input_, spread * (forget + 1), memory, peak]


@pytest.mark.parametrize("segment", [1, 2 * 2 * HEADS * (VALUES + 64) * 64, 2**18])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130, 193])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, monkeypatch: pytest.MonkeyPatch
):
    """Segments of one chunk, of two, and of all of them; gradients from outputs, from the last memory and exponent."""
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    tensors, results = [part.requires_grad_() for part in inputs(length)], []
    for form in (mlstm, mlstm_reference):
        h_BNTV, memory_BNKU, peak_BN = form(*tensors)
        loss = h_BNTV.square().sum() + memory_BNKU.pow(3).sum() + peak_BN.square().sum()
        results.append((h_BNTV, memory_BNKU, peak_BN, *torch.autograd.grad(loss, tensors)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("form", [mlstm, mlstm_reference])
def test_the_result_equals_the_recurrence_of_the_paper_without_a_stabilizer(form):
    """m only divides: except for eps, the result does not depend on it."""
    q, k, v, input_, forget, *_ = (part[1, 2] for part in inputs(6, 1.0))
    (h_BNTV, memory_BNKU, peak_BN), (C, n) = form(*inputs(6, 1.0)[:5]), (torch.zeros(VALUES, KEYS).double(), 0 * k[0])
    for token in range(6):
        gate, kept = input_[token].exp(), forget[token].sigmoid()
        C, n = kept * C + gate * torch.outer(v[token], k[token]), kept * n + gate * k[token]
        query = q[token] / KEYS**0.5
        expected = C @ query / max((n @ query).abs(), 1)
        torch.testing.assert_close(h_BNTV[1, 2, token], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(memory_BNKU[1, 2] * peak_BN[1, 2].exp(), torch.cat([C.t(), n[:, None]], dim=1))


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 129), spread=st.floats(0.01, 30.0))
def test_a_stream_continues_from_its_memory(cut: int, spread: float):
    *of_tokens, memory_BNKU, peak_BN = inputs(130, spread)
    first = mlstm(*(part[:, :, :cut] for part in of_tokens), memory_BNKU, peak_BN)
    second = mlstm(*(part[:, :, cut:] for part in of_tokens), *first[1:])
    whole = mlstm(*of_tokens, memory_BNKU, peak_BN)
    torch.testing.assert_close(torch.cat([first[0], second[0]], dim=2), whole[0])
    torch.testing.assert_close(second[1:], whole[1:])


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3, 1e6])
def test_no_gate_overflows(spread: float):
    """In float32, against the definition in float64; gradients are finite wherever the definition has any."""
    tensors = [part.requires_grad_() for part in inputs(200, spread, torch.float32)]
    h_BNTV, memory_BNKU, _ = mlstm(*tensors)
    expected, *_ = mlstm_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(h_BNTV.double(), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    assert memory_BNKU.isfinite().all()
    for gradient in torch.autograd.grad(h_BNTV, tensors, torch.randn_like(h_BNTV)):
        assert gradient.isfinite().all()


def test_a_closed_forget_gate_does_not_reduce_the_precision_of_later_gates():
    tensors = inputs(100, 1.0, torch.float32)
    tensors[4][:, :, 3] = -1e7
    expected, *_ = mlstm_reference(*(part.double() for part in tensors))
    torch.testing.assert_close(mlstm(*tensors)[0].double(), expected, rtol=1e-3, atol=1e-3)


def test_closed_input_gates_give_zeros():
    """With all exponents far below 0, including those of the padding of the last chunk."""
    *of_tokens, memory_BNKU, peak_BN = inputs(65, dtype=torch.float32)
    shut_BNT = torch.full_like(of_tokens[3], -200.0)
    found = mlstm(*of_tokens[:3], shut_BNT, -shut_BNT, memory_BNKU, peak_BN - 300)
    expected = mlstm_reference(*of_tokens[:3], shut_BNT, -shut_BNT, memory_BNKU, peak_BN - 300)
    torch.testing.assert_close(found, expected)
    assert not found[0].any()


@pytest.mark.parametrize("length", [2, 70])
def test_gradients_equal_finite_differences(length: int):
    tensors = [part.requires_grad_() for part in inputs(length, 1.0)]
    assert torch.autograd.gradcheck(mlstm, tensors, fast_mode=True)


@pytest.mark.parametrize("length", [1, 2, 65, 128])
def test_predicted_flops_equal_counted_flops(length: int):
    with FlopCounterMode(display=False) as counter:
        mlstm(*inputs(length))
    assert counter.get_total_flops() == 2 * mlstm_flops(length, HEADS, KEYS, VALUES)


def test_a_stream_without_a_state_begins_with_zeros():
    *of_tokens, memory_BNKU, peak_BN = inputs(20)
    for form in (mlstm, mlstm_reference):
        torch.testing.assert_close(form(*of_tokens), form(*of_tokens, 0 * memory_BNKU, 0 * peak_BN))
