import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops import support
from linnet.ops.xlstm import Memory, slstm, slstm_reference

ROWS, HEADS, WIDTH = 2, 3, 5


def inputs(length: int, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(length)
    x_BT4NP = spread * torch.randn(ROWS, length, 4, HEADS, WIDTH, dtype=dtype)
    return x_BT4NP.requires_grad_(), (torch.randn(HEADS, WIDTH, 4 * WIDTH, dtype=dtype) / 2).requires_grad_()


def memory() -> Memory:
    h, c, n, m = torch.randn(4, ROWS, HEADS, WIDTH, dtype=torch.float64)
    return h, c, n.abs() + 1, m


@pytest.mark.parametrize("before", [None, memory()])
@pytest.mark.parametrize("segment", [1, 12 * 30 * 7, 2**18])
@pytest.mark.parametrize("length", [1, 2, 63, 65])
def test_the_fast_form_equals_the_reference_with_all_gradients(
    length: int, segment: int, before: Memory | None, monkeypatch: pytest.MonkeyPatch
):
    """The backward pass in segments of one token, of seven, and of all of them."""
    monkeypatch.setattr(support, "SEGMENT_NUMBERS", segment)
    tensors, results = inputs(length), []
    for form in (slstm, slstm_reference):
        h_BTNP, behind = form(*tensors, before)
        results.append((h_BTNP, *behind, *torch.autograd.grad(h_BTNP.pow(2).sum() + h_BTNP.sum(), tensors)))
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("form", [slstm, slstm_reference])
def test_the_result_equals_the_recurrence_of_the_paper_without_a_stabilizer(form):
    """Eqs. 8 to 14, with R as one matrix that has the heads as blocks; then h = o c / n does not depend on m."""
    with torch.no_grad():
        x_BT4NP, weight_NPG = inputs(7)
        h_BTNP, _ = form(x_BT4NP, weight_NPG)
    blocks = [torch.block_diag(*weight_NPG.unflatten(-1, (4, WIDTH))[:, :, gate]).t() for gate in range(4)]
    h, c, n = torch.zeros(3, HEADS * WIDTH, dtype=torch.float64)
    for token in range(7):
        i, f, z, o = (x + R @ h for x, R in zip(x_BT4NP[1, token].flatten(1), blocks, strict=True))
        c, n = f.sigmoid() * c + i.exp() * z.tanh(), f.sigmoid() * n + i.exp()
        h = o.sigmoid() * c / n
        torch.testing.assert_close(h_BTNP[1, token].flatten(), h)


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 39), spread=st.floats(0.01, 30.0))
def test_a_stream_continues_from_its_memory(cut: int, spread: float):
    x_BT4NP, weight_NPG = (part.detach() for part in inputs(40, spread))
    first, behind = slstm(x_BT4NP[:, :cut], weight_NPG)
    second, last = slstm(x_BT4NP[:, cut:], weight_NPG, behind)
    whole, expected = slstm(x_BT4NP, weight_NPG)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(last, expected)


@pytest.mark.parametrize("spread", [1e-3, 1e3, 1e6])
def test_no_gate_overflows(spread: float):
    """Outputs stay between -1 and 1, n at 1 or above, gradients finite."""
    tensors = inputs(80, spread, torch.float32)
    h_BTNP, (_, _, n_BNP, m_BNP) = slstm(*tensors)
    assert h_BTNP.abs().max() <= 1 + 1e-6 and n_BNP.min() >= 1 and m_BNP.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(h_BTNP.sum(), tensors))


@pytest.mark.parametrize("length", [2, 30])
def test_gradients_equal_finite_differences(length: int):
    assert torch.autograd.gradcheck(lambda *tensors: slstm(*tensors)[0], inputs(length), fast_mode=True)
