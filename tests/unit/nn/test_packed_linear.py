import pytest
import torch
import torch.nn.functional as F

from linnet.nn import packed_linear as module
from linnet.nn.packed_linear import Bfloat16Linear, Int8Linear, PackedLinear
from linnet.ops import bfloat16_linear, int8_linear

CPU = torch.device("cpu")
FORMS = [
    pytest.param(Int8Linear, marks=pytest.mark.skipif(not int8_linear.can_pack(CPU), reason="no product of bytes")),
    pytest.param(Bfloat16Linear, marks=pytest.mark.skipif(not bfloat16_linear.can_pack(CPU), reason="no bfloat16")),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_multiplies_by_the_matrix_that_it_shows(form: type[PackedLinear], with_bias: bool):
    weight, bias = torch.randn(12, 20), torch.randn(12) if with_bias else None
    packed = form(weight, bias, (12,))
    dtype = torch.bfloat16 if form is Bfloat16Linear else torch.float32
    x = torch.randn(2, 3, 20).to(dtype)
    actual = packed(x)
    assert actual.dtype == dtype
    expected = F.linear(x.float(), packed.weight.float(), bias)
    torch.testing.assert_close(actual.float(), expected, rtol=0.01, atol=0.05 if form is Bfloat16Linear else 0.002)
    torch.testing.assert_close(packed.weight.float(), weight, rtol=0.01, atol=0.02)


def test_the_bytes_that_a_product_reads():
    assert Bfloat16Linear(torch.randn(64, 32), None, (64,)).nbytes == 64 * 32 * 2
    assert Int8Linear(torch.randn(64, 32), None, (64,)).nbytes == 64 * 32 + 2 * 64 * 4


@pytest.mark.parametrize("form", [Int8Linear, Bfloat16Linear])
def test_parts_are_split_as_before(form: type[PackedLinear]):
    packed = form(torch.randn(12, 20), None, (7, 5))
    assert [part.shape for part in packed.split(torch.zeros(2, 12))] == [(2, 7), (2, 5)]


def test_without_a_fast_form_the_definition_serves(monkeypatch: pytest.MonkeyPatch):
    weight, bias, x = torch.randn(12, 20), torch.randn(12), torch.randn(3, 20)
    fast = Int8Linear(weight, bias, (12,))
    monkeypatch.setattr(module, "can_pack", lambda _: False)
    plain = Int8Linear(weight, bias, (12,))
    assert plain.nbytes == 12 * 20 + 12 * 4
    assert torch.equal(plain.weight, fast.weight)
    torch.testing.assert_close(plain(x), F.linear(x, fast.weight, bias))
    torch.testing.assert_close(plain(x), fast(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("form", [Int8Linear, Bfloat16Linear])
def test_it_cannot_be_saved_without_its_weights(form: type[PackedLinear]):
    with pytest.raises(ValueError, match="for inference alone"):
        form(torch.randn(4, 4), None, (4,)).state_dict()
