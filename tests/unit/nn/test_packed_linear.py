import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

from linnet.nn import packed_linear
from linnet.nn.packed_linear import Bfloat16Linear, Int4Linear, Int8Linear, PackedLinear, QuantizedEmbedding
from linnet.ops import int4_linear, int8_linear
from linnet.ops.linear import can_pack_bfloat16
from linnet.ops.native.gemv import MAX_ROWS

CPU = torch.device("cpu")
FORMS = [
    Int8Linear,
    Int4Linear,
    pytest.param(Bfloat16Linear, marks=pytest.mark.skipif(not can_pack_bfloat16(CPU), reason="no bfloat16")),
]


@pytest.fixture(params=["compiled", "by PyTorch"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether there are native products of a few rows."""
    if request.param == "by PyTorch":
        monkeypatch.setattr(packed_linear, "library", lambda _: None)
    elif packed_linear.library(CPU) is None:
        pytest.skip("no compiler, or another processor")
    return str(request.param)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_product_is_with_the_reported_matrix(form: type[PackedLinear], with_bias: bool):
    weight, bias = torch.randn(12, 20), torch.randn(12) if with_bias else None
    packed = form(weight, bias, (12,))
    dtype = torch.bfloat16 if form is Bfloat16Linear else torch.float32
    x = torch.randn(2, 3, 20).to(dtype)
    actual = packed(x)
    assert actual.dtype == dtype
    expected = F.linear(x.float(), packed.weight.float(), bias)
    # Inputs are rounded to bfloat16 or to 8 bits of the largest in a row, outputs to bfloat16.
    rounding = x.float().abs().amax(-1, keepdim=True) / 254 * packed.weight.float().abs().sum(1)
    rounding = torch.maximum(rounding, x.float().abs() @ packed.weight.float().abs().T / 256) + expected.abs() / 128
    assert ((actual.float() - expected).abs() <= rounding).all()
    # At most a step of the largest element: half of one in 8 bits; in 4 bits the end of the other sign is clipped.
    step = (
        weight.abs().amax(1, keepdim=True)
        * {Int4Linear: 1.05 / 8, Int8Linear: 1.01 / 254, Bfloat16Linear: 1 / 256}[form]
    )
    assert ((packed.weight.float() - weight).abs() <= step).all()


def test_nbytes_are_those_that_a_product_reads():
    assert Bfloat16Linear(torch.randn(64, 32), None, (64,)).nbytes == 64 * 32 * 2
    assert Int8Linear(torch.randn(64, 32), None, (64,)).nbytes == 64 * 32 + 2 * 64
    assert Int4Linear(torch.randn(64, 32), None, (64,)).nbytes == 64 * 32 // 2 + 2 * 64
    assert Int4Linear(torch.randn(64, 256), None, (64,), group=128).nbytes == 64 * 128 + 2 * 64 * 2


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear, Bfloat16Linear])
def test_parts_are_split_as_before(form: type[PackedLinear]):
    packed = form(torch.randn(12, 20), None, (7, 5))
    assert [part.shape for part in packed.split(torch.zeros(2, 12))] == [(2, 7), (2, 5)]


def test_bfloat16_without_a_fast_form_uses_a_plain_product(monkeypatch: pytest.MonkeyPatch):
    weight, bias, x = torch.randn(12, 20), torch.randn(12), torch.randn(3, 20).bfloat16()
    monkeypatch.setattr("linnet.nn.packed_linear.can_pack_bfloat16", lambda _: False)
    plain = Bfloat16Linear(weight, bias, (12,))
    assert plain.nbytes == 12 * 20 * 2
    assert torch.equal(plain(x), F.linear(x, weight.bfloat16(), bias.bfloat16()))


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear])
def test_without_a_fast_form_the_reference_is_used(form: type[PackedLinear], monkeypatch: pytest.MonkeyPatch):
    weight, bias, x = torch.randn(70, 20), torch.randn(70), torch.randn(1, 20)
    fast = form(weight, bias, (70,))
    monkeypatch.setattr(packed_linear, "library", lambda _: None)
    monkeypatch.setattr(int8_linear, "has_fast_form", lambda _: False)
    monkeypatch.setattr(int4_linear, "can_pack", lambda _: False)
    plain = form(weight, bias, (70,))
    assert plain.nbytes == fast.nbytes
    assert torch.equal(plain.weight, fast.weight)
    torch.testing.assert_close(plain(x), F.linear(x, fast.weight, bias))
    torch.testing.assert_close(plain(x), fast(x), rtol=0.02, atol=0.05)


@pytest.mark.skipif(not int8_linear.has_fast_form(CPU), reason="no products of bytes here")
def test_a_large_matrix_of_8_bits_is_packed_unless_it_is_a_table(monkeypatch: pytest.MonkeyPatch):
    weight, bias, x = torch.randn(70, 20), torch.randn(70), torch.randn(1, 20)
    monkeypatch.setattr(packed_linear, "library", lambda _: None)
    small = Int8Linear(weight, bias, (70,))
    monkeypatch.setattr(int8_linear, "MIN_PACKED_WEIGHTS", 1000)
    large, table = Int8Linear(weight, bias, (70,)), Int8Linear(weight, bias, (70,), is_table=True)
    assert torch.equal(table(x), small(x)) and table.nbytes == large.nbytes == small.nbytes
    torch.testing.assert_close(large(x), F.linear(x, large.weight, bias), rtol=1e-3, atol=5e-3)  # 14 bits, not 8
    assert torch.equal(large.weight, small.weight)


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear])
def test_an_embedding_looks_up_rows_of_its_table(form: type[Int8Linear] | type[Int4Linear]):
    table = form(torch.randn(70, 20), None, (70,))
    places = torch.tensor([[0, 69, 3], [3, 64, 1]])
    embedding = QuantizedEmbedding(table)
    assert torch.equal(embedding(places), embedding.weight[places])
    assert torch.equal(embedding.weight, table.weight)


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear, Bfloat16Linear])
def test_the_weights_follow_to_another_device(form: type[PackedLinear]):
    """The device meta represents any other device: only layout and device are tested."""
    packed = form(torch.randn(12, 20), torch.randn(12), (12,)).to("meta")
    assert packed.weight.device == packed.device == torch.device("meta")
    out = packed(torch.zeros(3, 20, dtype=packed.dtype, device="meta"))
    assert (out.device.type, out.shape, out.dtype) == ("meta", (3, 12), packed.dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("form", [Int8Linear, Int4Linear, Bfloat16Linear])
def test_moving_to_a_device_and_back_keeps_the_products(form: type[PackedLinear]):
    packed, x = form(torch.randn(12, 20), torch.randn(12), (12,)), torch.randn(3, 20)
    before, expected = packed.weight, packed(x.to(packed.dtype))
    there = packed.cuda()(x.to("cuda", packed.dtype))
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), expected, rtol=0.01, atol=0.02)
    assert torch.equal(packed.cpu().weight, before)
    assert torch.equal(packed(x.to(packed.dtype)), expected)


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear, Bfloat16Linear])
def test_a_move_to_the_same_device_keeps_the_weights(form: type[PackedLinear]):
    packed, x = form(torch.randn(12, 20), torch.randn(12), (12,)), torch.randn(3, 20)
    expected = packed(x.to(packed.dtype))
    assert torch.equal(packed.to("cpu", packed.dtype)(x.to(packed.dtype)), expected)


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear, Bfloat16Linear])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_another_precision_is_refused(form: type[PackedLinear], dtype: torch.dtype):
    packed = form(torch.randn(12, 20), torch.randn(12), (12,))
    if dtype == packed.dtype:
        packed.to(dtype)
    else:
        with pytest.raises(ValueError, match="converted weights stay in") as refused:
            packed.to(dtype)
        assert "\n" not in str(refused.value)
    assert packed.bias is not None and packed.bias.dtype == packed.dtype


@pytest.mark.parametrize("form", [Int8Linear, Int4Linear, Bfloat16Linear])
def test_saving_without_the_weights_is_refused(form: type[PackedLinear]):
    with pytest.raises(ValueError, match="for inference only"):
        form(torch.randn(4, 4), None, (4,)).state_dict()


@pytest.mark.skipif(packed_linear.library(CPU) is None, reason="no compiler, or another processor")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("most", [MAX_ROWS, None])
def test_few_rows_and_many_are_products_with_one_matrix(
    form: type[PackedLinear], most: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packed_linear, "SLICE", 1000)
    weight, bias = torch.randn(70, 40), torch.randn(70)
    packed = form(weight, bias, (70,))
    assert packed.gemv is not None
    packed.gemv.max_rows = most or packed.gemv.max_rows  # those of 4 bits may take all
    x = torch.randn(2, MAX_ROWS, 40).to(form.dtype)
    error = {"rtol": 0.02, "atol": 0.05} if form is Bfloat16Linear else {"rtol": 1e-3, "atol": 5e-3}
    many = packed(x)
    torch.testing.assert_close(packed(x[:1]), many[:1], **error)
    torch.testing.assert_close(many.float(), F.linear(x.float(), packed.weight.float(), bias), **error)
    row = x[0, :1].float()
    torch.testing.assert_close(packed.gemv(row, row.new_ones(1, 70)), packed(x[0, :1]).float() + 1, **error)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("form", FORMS)
def test_a_copy_has_its_own_products_and_can_be_pickled(form: type[PackedLinear]):
    packed = form(torch.randn(24, 40), torch.randn(24), (24,))
    if packed.gemv is None and form is Bfloat16Linear:
        pytest.skip("weights packed by oneDNN cannot be copied")
    x = torch.randn(1, 40).to(form.dtype)
    for copied in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed)) if packed.gemv is not None else packed):
        assert torch.equal(copied(x), packed(x))
        assert copied is packed or copied.gemv is not packed.gemv or packed.gemv is None


@pytest.mark.parametrize("places", [[13], [-1], [0, 13], [-1, 2]])
def test_rows_of_4_bits_out_of_range_are_refused(places: list[int]):
    table = Int4Linear(torch.randn(13, 40), None, (13,))
    if table.gemv is None:
        pytest.skip("no compiler, or another processor")
    with pytest.raises(IndexError):
        table.rows(torch.tensor(places))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_places_have_no_rows(shape: tuple[int, ...]):
    for packed in (Int4Linear, Int8Linear):
        table = packed(torch.randn(13, 64), None, (13,))
        assert table.rows(torch.zeros(shape, dtype=torch.int64)).shape == (*shape, 64)


@pytest.mark.parametrize("group", [0, 20, 48, 512])
def test_unsupported_group_sizes_are_refused(group: int):
    with pytest.raises(ValueError, match=f"group: {group}"):
        Int4Linear(torch.randn(8, 40), None, (8,), group)


@pytest.mark.usefixtures("products")
def test_few_rows_have_gradients_too():
    packed = Bfloat16Linear(torch.randn(8, 32), None, (8,))
    if packed._weight.is_mkldnn:
        pytest.skip("packed by oneDNN, without gradients for any number of rows")
    assert packed(torch.randn(1, 32).bfloat16().requires_grad_()).requires_grad
