"""Products by oneDNN are those of PyTorch, gradients too, and are asked for only where they are what they say."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops import products
from linnet.ops.linear import linear

LARGE = products.LEAST_WEIGHTS // 256


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    if not products._has_onednn():
        pytest.skip("no oneDNN, or a processor without AVX512")
    monkeypatch.setattr(products, "BY_ONEDNN", True)


@pytest.fixture
def calls(monkeypatch):
    """How often oneDNN was asked."""
    found, plain = [], torch.ops.mkldnn._linear_pointwise

    def counted(*arguments):
        found.append(arguments[0].shape)
        return plain(*arguments)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return found


def matrices(*shape, inputs=256, outputs=LARGE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(size, generator=generator) for size in ((*shape, inputs), (outputs, inputs)))
    return x, weight, torch.randn(outputs, generator=generator)


@pytest.mark.parametrize("shape", [(2,), (3, 5), (1, 63), (2, 65, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_map_is_pytorchs_with_all_gradients(calls, shape, biased):
    x, weight, bias = (each.requires_grad_() for each in matrices(*shape))
    arguments = (x, weight, bias if biased else None)
    wanted = arguments if biased else arguments[:2]
    upstream = torch.randn(*shape, LARGE)
    found = torch.autograd.grad(linear(*arguments), wanted, upstream)
    assert calls == [(x.shape[:-1].numel(), 256), (x.shape[:-1].numel(), LARGE)]
    assert torch.allclose(linear(*arguments), F.linear(*arguments), atol=1e-4, rtol=1e-5)
    for mine, plain in zip(found, torch.autograd.grad(F.linear(*arguments), wanted, upstream), strict=True):
        assert torch.allclose(mine, plain, atol=1e-3, rtol=1e-5)


@given(st.integers(2, 70), st.integers(1, 300), st.integers(1, 300), st.integers(0, 3))
def test_both_products_at_any_size(rows, inputs, outputs, gap):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(products, "LEAST_WEIGHTS", 1)
        x, weight, bias = matrices(rows, inputs=inputs, outputs=outputs)
        wide = F.pad(x, (0, gap))[:, :inputs]  # rows that do not lie one behind the other
        assert torch.allclose(products.linear_product(wide, weight, bias), F.linear(x, weight, bias), atol=1e-4)
        y, _, _ = matrices(rows, inputs=outputs, outputs=1)
        assert torch.allclose(products.times(y, weight), y @ weight, atol=1e-4)


def test_gradients_that_nobody_wants_are_not_made(calls):
    x, weight, _ = matrices(4)
    weight.requires_grad_()
    linear(x, weight).sum().backward()
    assert len(calls) == 1 and x.grad is None  # forward alone
    assert torch.allclose(weight.grad, x.sum(0).expand_as(weight), atol=1e-4)


def test_what_is_small_narrow_one_row_or_watched_is_pytorchs(calls):
    x, weight, bias = matrices(4)
    with torch.inference_mode():
        linear(x[:, :64], weight[:64, :64])
        linear(x[:1], weight)
        linear(x.double(), weight.double())
        linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(x, weight).dtype == torch.bfloat16
    with torch.device("meta"):
        linear(torch.empty(4, 256), torch.empty(LARGE, 256))
    assert not calls
    watched = weight.clone().requires_grad_()
    assert products.times(torch.ones(4, LARGE), watched).requires_grad and not calls


def test_processors_that_mkl_knows_keep_it(calls, monkeypatch):
    monkeypatch.setattr(products, "BY_ONEDNN", False)
    x, weight, _ = matrices(4)
    linear(x, weight)
    assert not calls
