import platform

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.ops import int4_linear
from linnet.ops.int8_linear import Int8Weight, dequantize, quantize
from linnet.ops.native import gemv, library
from linnet.ops.native.gemv import (
    PAGE,
    bfloat16_gemv,
    float32_gemv,
    float_lookup,
    gather_from_blocks,
    in_huge_pages,
    int4_gemv,
    int4_lookup,
    int4_matrix,
    int8_gemv,
    int8_lookup,
    to_int4_blocks,
)

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")

SHAPES = st.tuples(st.integers(1, 20), st.integers(1, 150), st.integers(1, 40))


def drawn(rows: int, inputs: int, outputs: int) -> tuple[torch.Tensor, ...]:
    """Rows, matrix, bias and summand."""
    draw = torch.Generator().manual_seed(rows + inputs + outputs)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    return tuple(torch.randn(shape, generator=draw) for shape in shapes)


def assert_same(found: torch.Tensor, expected: torch.Tensor, error: float) -> None:
    assert (found - expected).abs().max() <= error * expected.abs().max().clamp_min(1)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_bfloat16_equals_the_product_with_the_widened_weights(shape: tuple[int, int, int]):
    x, weight, bias, added = drawn(*shape)
    low = weight.bfloat16()
    expected = F.linear(x.double(), low.double())
    assert_same(bfloat16_gemv(COMPILED, low, None)(x), expected, 1e-5)
    assert_same(bfloat16_gemv(COMPILED, low, bias)(x, added), expected + bias + added, 1e-5)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_float32_equals_the_product(shape: tuple[int, int, int]):
    x, weight, bias, added = drawn(*shape)
    expected = F.linear(x.double(), weight.double(), bias.double()) + added
    assert_same(float32_gemv(COMPILED, weight, bias)(x, added), expected, 1e-5)


@settings(max_examples=40, deadline=None)
@given(SHAPES)
def test_a_row_has_the_same_product_alone_and_among_others(shape: tuple[int, int, int]):
    x, weight, bias, _ = drawn(*shape)
    for product in (float32_gemv(COMPILED, weight, bias), bfloat16_gemv(COMPILED, weight.bfloat16(), bias)):
        assert torch.equal(product(x), torch.cat([product(row[None]) for row in x]))


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_8_bits_are_within_the_stated_bound(shape: tuple[int, int, int]):
    x, weight, bias, added = drawn(*shape)
    packed = quantize(weight)
    matrix = dequantize(packed).double()
    found = int8_gemv(COMPILED, *packed, bias)(x, added)
    allowed = x.abs().amax(dim=1, keepdim=True) * matrix.abs().sum(dim=1) / 16254
    assert ((found - (F.linear(x.double(), matrix, bias.double()) + added)).abs() <= allowed + 1e-5).all()


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.sampled_from([32, 64, 128]))
def test_4_bits_are_within_the_stated_bound(shape: tuple[int, int, int], group: int):
    x, weight, bias, added = drawn(*shape)
    plain = int4_linear.quantize(weight, group)
    blocked, matrix = int4_linear.to_blocks(plain), int4_linear.dequantize(plain).double()
    found = int4_gemv(COMPILED, *blocked, bias)(x, added)
    allowed = x.abs().amax(dim=1, keepdim=True) * matrix.abs().sum(dim=1) / 16254
    assert ((found - (F.linear(x.double(), matrix, bias.double()) + added)).abs() <= allowed + 1e-5).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.integers(1, 40), st.sampled_from([32, 64]))
def test_blocks_contain_the_same_numbers(inputs: int, outputs: int, group: int):
    plain = int4_linear.quantize(torch.randn(outputs, inputs), group)
    blocks = to_int4_blocks(plain.pairs_OH, plain.scale_GO)
    again = int4_linear.unpack(int4_linear.to_blocks(plain))
    assert torch.equal(again.pairs_OH, plain.pairs_OH)
    assert torch.equal(again.scale_GO, plain.scale_GO)
    places = torch.randint(0, outputs, (7,))
    _, scales = gather_from_blocks(blocks, places)
    assert torch.equal(scales, plain.scale_GO[:, places])
    matrix, first = int4_linear.dequantize(plain), outputs // 2
    rows = int4_matrix(COMPILED, blocks, inputs, group, first, outputs - first)
    torch.testing.assert_close(rows, matrix[first:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 1000, 300), (21, 1000, 300), (13, 70, 33), (515, 33, 17)])
def test_integer_sums_do_not_depend_on_threads_or_rows(shape: tuple[int, int, int]):
    x, weight, bias, added = drawn(*shape)
    blocked = int4_linear.to_blocks(int4_linear.quantize(weight))
    rows = int8_gemv(COMPILED, *quantize(weight), bias), int4_gemv(COMPILED, *blocked, bias)
    threads = torch.get_num_threads()
    for few in rows:
        together = few(x, added)
        try:
            torch.set_num_threads(2 if threads == 1 else 1)
            assert torch.equal(few(x, added), together)
        finally:
            torch.set_num_threads(threads)
        each = [few(row[None], sum_[None]) for row, sum_ in zip(x, added, strict=True)]
        assert torch.equal(torch.cat(each), together)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_inputs_give_non_finite_outputs(wrong: float):
    x, weight, _, _ = drawn(3, 70, 20)
    x[1, 33] = wrong
    blocked = int4_linear.to_blocks(int4_linear.quantize(weight))
    for few in (int8_gemv(COMPILED, *quantize(weight), None), int4_gemv(COMPILED, *blocked, None)):
        assert few(x).isfinite().all(dim=1).tolist() == [True, False, True]
        assert few(x[1:2]).isnan().all()


def test_a_row_of_zeros_gives_the_bias():
    x, weight, bias, _ = drawn(1, 70, 20)
    assert torch.equal(int8_gemv(COMPILED, *quantize(weight), bias)(torch.zeros_like(x))[0], bias)


def test_the_largest_numbers_do_not_overflow():
    numbers, scale = torch.full((3, 4096), 127, dtype=torch.int8), torch.ones(3).bfloat16()
    numbers[1] = -127
    rows = int8_gemv(COMPILED, *Int8Weight(numbers, scale, 4096), None)
    for count in (1, 9):
        found = rows(torch.ones(count, 4096))
        torch.testing.assert_close(found, torch.tensor([[127.0, -127.0, 127.0]] * count) * 4096)


def test_zero_rows_give_zero_rows():
    x, weight = torch.empty(0, 40), torch.randn(24, 40)
    blocked = int4_linear.to_blocks(int4_linear.quantize(weight))
    few = float32_gemv(COMPILED, weight, None), bfloat16_gemv(COMPILED, weight.bfloat16(), None)
    for rows in (*few, int8_gemv(COMPILED, *quantize(weight), None), int4_gemv(COMPILED, *blocked, None)):
        assert rows(x).shape == (0, 24)


@pytest.mark.parametrize("wrong", [torch.zeros(1, 7), torch.zeros(8), torch.zeros(1, 8, device="meta")])
def test_a_row_of_another_width_is_refused(wrong: torch.Tensor):
    rows = bfloat16_gemv(COMPILED, torch.randn(4, 8).bfloat16(), None)
    with pytest.raises(ValueError, match="expected"):
        rows(wrong)
    with pytest.raises(ValueError, match="rows of 4 outputs"):
        rows(torch.zeros(1, 8), torch.zeros(1, 5))


def test_pytorchs_defaults_do_not_matter():
    x, weight, _, _ = drawn(2, 40, 10)
    rows = int8_gemv(COMPILED, *quantize(weight), None)
    expected = rows(x)
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.equal(rows(x), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_may_move_in_memory():
    x, weight, _, _ = drawn(1, 40, 10)
    rows, expected = float32_gemv(COMPILED, weight, None), F.linear(x, weight)
    weight.share_memory_()
    torch.testing.assert_close(rows(x), expected)


def test_a_row_is_looked_up():
    weight = drawn(1, 70, 21)[1]
    eight, four = quantize(weight), int4_linear.to_blocks(int4_linear.quantize(weight))
    found = {
        float_lookup(COMPILED, weight): weight,
        float_lookup(COMPILED, weight.bfloat16()): weight.bfloat16().float(),
        int8_lookup(COMPILED, *eight): dequantize(eight),
        int4_lookup(COMPILED, *four): int4_linear.dequantize(int4_linear.quantize(weight)),
    }
    for look_up, matrix in found.items():
        assert torch.equal(torch.cat([look_up(output) for output in range(21)]), matrix)
        for output in (-1, 21):  # 21 fills a block of 4 bits up
            with pytest.raises(IndexError, match=f"output {output} of 21"):
                look_up(output)


def test_a_tensor_in_huge_pages_is_unchanged(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(gemv, "_madvise", lambda: lambda *given: asked.append(given) or -1)
    x = torch.randint(-9, 9, (5 * PAGE // 7, 7), dtype=torch.int8)
    found = in_huge_pages(x)
    assert torch.equal(found, x) and found.data_ptr() != x.data_ptr()
    ((first, count, _),) = asked
    assert first % PAGE == count % PAGE == 0 < count
    assert found.data_ptr() <= first and first + count <= found.data_ptr() + found.nbytes
    small = torch.zeros(PAGE, dtype=torch.int8)
    assert in_huge_pages(small) is small and len(asked) == 1


@pytest.mark.skipif(platform.system() != "Linux", reason="another system")
def test_a_refusal_of_huge_pages_makes_no_difference():
    x = torch.randn(3, PAGE // 4)
    assert torch.equal(in_huge_pages(x), x)
