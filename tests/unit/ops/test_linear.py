"""Products by oneDNN are those of PyTorch, gradients too, and are asked for only where they are what they say."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from linnet.ops import linear as module
from linnet.ops.linear import (
    SLICES,
    can_pack_bfloat16,
    linear,
    pack_bfloat16,
    packed_bfloat16_linear,
    sliced_linear,
)


@torch.no_grad()
@given(st.integers(1, 40), st.integers(1, 70), st.booleans(), st.sampled_from([(), (1,), (1, 1), (3,), (2, 2)]))
def test_any_shape_gives_the_library_result(inputs, outputs, with_bias, batch):
    x, weight = torch.randn(*batch, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if with_bias else None
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@given(st.integers(1, 40), st.integers(SLICES, 70), st.booleans(), st.sampled_from([(), (1,), (1, 1)]))
def test_slices_give_the_library_result(inputs, outputs, with_bias, batch):
    x, weight = torch.randn(*batch, inputs), torch.randn(outputs, inputs)
    bias = torch.randn(outputs) if with_bias else None
    torch.testing.assert_close(sliced_linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sliced", [True, False])
def test_one_row_takes_the_fast_path_and_training_does_not(sliced: bool, monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(module, "SLICES_ARE_FASTER", sliced)
    monkeypatch.setattr(module, "sliced_linear", lambda *arguments: calls.append(1) or F.linear(*arguments))
    x, weight = torch.randn(1, 1, 8), torch.randn(32, 8)
    with torch.no_grad():
        linear(x, weight)
        assert len(calls) == int(sliced)
        linear(torch.randn(2, 8), weight)
        linear(x.double(), weight.double())
    linear(x, weight)
    assert len(calls) == int(sliced)


LARGE = module.MIN_WEIGHTS // 256
needs_onednn = pytest.mark.skipif(not module._has_onednn(), reason="no oneDNN, or a processor without AVX512")


@pytest.fixture
def calls(monkeypatch):
    """The shapes of the calls of oneDNN, which is used wherever it exists."""
    if not module._has_onednn():
        pytest.skip("no oneDNN, or a processor without AVX512")
    monkeypatch.setattr(module, "USES_ONEDNN", True)
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
def test_a_linear_map_equals_pytorchs_with_all_gradients(calls, shape, biased):
    x, weight, bias = (each.requires_grad_() for each in matrices(*shape))
    arguments = (x, weight, bias if biased else None)
    wanted = arguments if biased else arguments[:2]
    upstream = torch.randn(*shape, LARGE)
    found = torch.autograd.grad(linear(*arguments), wanted, upstream)
    assert calls == [(x.shape[:-1].numel(), 256), (x.shape[:-1].numel(), LARGE)]
    assert torch.allclose(linear(*arguments), F.linear(*arguments), atol=1e-4, rtol=1e-5)
    for mine, plain in zip(found, torch.autograd.grad(F.linear(*arguments), wanted, upstream), strict=True):
        assert torch.allclose(mine, plain, atol=1e-3, rtol=1e-5)


@needs_onednn
@given(st.integers(2, 70), st.integers(1, 300), st.integers(1, 300), st.integers(0, 3))
def test_both_products_at_any_size(rows, inputs, outputs, gap):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "USES_ONEDNN", True)
        patched.setattr(module, "MIN_WEIGHTS", 1)
        x, weight, bias = matrices(rows, inputs=inputs, outputs=outputs)
        wide = F.pad(x, (0, gap))[:, :inputs]  # rows that do not lie one behind the other
        assert torch.allclose(module.linear_product(wide, weight, bias), F.linear(x, weight, bias), atol=1e-4)
        y, _, _ = matrices(rows, inputs=outputs, outputs=1)
        assert torch.allclose(module.matmul(y, weight), y @ weight, atol=1e-4)


def test_gradients_that_are_not_needed_are_not_computed(calls):
    x, weight, _ = matrices(4)
    weight.requires_grad_()
    linear(x, weight).sum().backward()
    assert len(calls) == 1 and x.grad is None  # forward alone
    assert torch.allclose(weight.grad, x.sum(0).expand_as(weight), atol=1e-4)


def test_small_narrow_single_row_and_other_products_are_left_to_pytorch(calls):
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
    assert module.matmul(torch.ones(4, LARGE), watched).requires_grad and not calls


def test_intel_processors_use_mkl(calls, monkeypatch):
    monkeypatch.setattr(module, "USES_ONEDNN", False)
    x, weight, _ = matrices(4)
    linear(x, weight)
    assert not calls


needs_packing = pytest.mark.skipif(
    not can_pack_bfloat16(torch.device("cpu")), reason="no bfloat16 products on this processor"
)


@needs_packing
@torch.no_grad()
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.booleans(),
    st.sampled_from([(), (1,), (1, 1), (0,), (3,), (2, 5)]),
    st.booleans(),
)
def test_any_shape_gives_the_rounded_product(inputs, outputs, with_bias, batch, contiguous):
    x = torch.randn(*batch, inputs).bfloat16() if contiguous else torch.randn(inputs, *batch).bfloat16().movedim(0, -1)
    weight, bias = torch.randn(outputs, inputs).bfloat16(), torch.randn(outputs).bfloat16() if with_bias else None
    actual = packed_bfloat16_linear(x, pack_bfloat16(weight), bias)
    expected = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=0.01, atol=0.02)


@needs_packing
def test_packing_is_lossless():
    weight = torch.randn(33, 17).bfloat16()
    assert torch.equal(pack_bfloat16(weight).to_dense(), weight)


def test_bfloat16_cannot_be_packed_on_other_devices():
    assert not can_pack_bfloat16(torch.device("cuda"))
