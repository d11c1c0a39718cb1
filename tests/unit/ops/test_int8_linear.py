import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops.int8_linear import (
    MAX_INPUT,
    Int8Weight,
    dequantize,
    gather_rows,
    has_fast_form,
    int8_linear,
    int8_linear_reference,
    int8_nbytes,
    pack,
    quantize,
    unpack,
)

needs_packing = pytest.mark.skipif(
    not has_fast_form(torch.device("cpu")), reason="no product of bytes on this processor"
)

POWERS = st.integers(-20, 20)


def _matrix(outputs: int, inputs: int, power: int, seed: int) -> Tensor:
    """Outputs of very different sizes, and one of zeros."""
    torch.manual_seed(seed)
    sizes_O1 = 10.0 ** torch.linspace(power - 3, power + 3, outputs)[:, None]
    weight_OI = torch.randn(outputs, inputs) * sizes_O1
    weight_OI[outputs // 2] = 0
    return weight_OI


def _exact(x: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    wide = weight._replace(scale_O=weight.scale_O.double())
    return int8_linear_reference(x.double(), wide, None if bias is None else bias.double())


def _assert_within_bound(x: Tensor, weight: Int8Weight, bias: Tensor | None, packed: bool = False) -> None:
    """The error that bfloat16 allows for one row and fixed point for several, and float32's rounding of such sums."""
    actual, exact = int8_linear(x, pack(weight) if packed else weight, bias), _exact(x, weight, bias)
    matrix_OI = dequantize(weight).double().abs()
    if x.numel() == weight.inputs and not packed:
        allowed = (x.abs().double() @ matrix_OI.T) / 256 + exact.abs() / 128 + 1e-30
        allowed = allowed if bias is None else allowed + bias.abs() / 128
    else:
        largest = x.abs().amax(dim=-1, keepdim=True).double() * matrix_OI.sum(dim=1)
        allowed = largest * (0.5 / MAX_INPUT + 1e-6) + (0 if bias is None else bias.abs() * 1e-6) + 1e-30
    assert actual.shape == exact.shape
    assert ((actual - exact).abs() <= allowed).all()


@given(st.integers(1, 33), st.integers(1, 70), POWERS, st.integers(0, 99))
def test_the_error_of_a_weight_is_at_most_half_a_step(outputs, inputs, power, seed):
    weight_OI = _matrix(outputs, inputs, power, seed)
    rounded = quantize(weight_OI)
    assert rounded.numbers_OJ.dtype == torch.int8
    assert rounded.numbers_OJ.abs().amax(dim=1).tolist() == [127 * bool(row.any()) for row in weight_OI]
    error_OI = (dequantize(rounded) - weight_OI).abs()
    assert (error_OI <= rounded.scale_O[:, None].float() * 0.50001).all()


@needs_packing
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([(), (1,), (1, 1), (0,), (2,), (7,), (3, 5)]),
    POWERS,
    st.integers(-8, 8),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_fast_form_equals_the_definition_within_its_bound(inputs, outputs, batch, power, x_power, with_bias, seed):
    weight = quantize(_matrix(outputs, inputs, power, seed))
    x = torch.randn(*batch, inputs) * 10.0**x_power
    bias = torch.randn(outputs) * 10.0 ** (power + x_power) if with_bias else None
    _assert_within_bound(x, weight, bias)
    _assert_within_bound(x, weight, bias, packed=True)


@needs_packing
@given(st.integers(1, 9), st.integers(1, 40))
def test_input_that_is_not_contiguous(rows, inputs):
    weight = quantize(_matrix(5, inputs, 0, 0))
    for x in (
        torch.randn(inputs, rows).T,
        torch.randn(rows, 2 * inputs)[:, ::2],
        torch.randn(rows, inputs + 3)[:, 1:-2],
    ):
        _assert_within_bound(x, weight, None)


@needs_packing
@pytest.mark.parametrize(("inputs", "outputs"), [(896, 333), (2389, 64)])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_the_widths_of_a_real_model(inputs, outputs, rows):
    _assert_within_bound(torch.randn(rows, inputs), quantize(torch.randn(outputs, inputs)), torch.randn(outputs))


@needs_packing
def test_the_result_of_a_row_does_not_depend_on_other_rows():
    torch.manual_seed(0)
    weight, bias = quantize(torch.randn(48, 64)), torch.randn(48)
    x = torch.randn(5, 64)
    beside = torch.cat([x[:2], 1000 * torch.randn(6, 64)])
    assert torch.equal(int8_linear(beside, weight, bias)[:2], int8_linear(x, weight, bias)[:2])


@needs_packing
@pytest.mark.parametrize("rows", [1, 3])
def test_zeros_give_the_bias(rows):
    bias = torch.randn(7)
    out = int8_linear(torch.zeros(rows, 12), quantize(torch.randn(7, 12)), bias)
    torch.testing.assert_close(out, bias.expand(rows, 7), rtol=0, atol=1e-6)


@needs_packing
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_nan_is_propagated(rows, wrong):
    x, weight_OI = torch.randn(rows, 12), torch.randn(7, 12)
    x[0, 5] = wrong
    out = int8_linear(x, quantize(weight_OI))
    assert not out[0].isfinite().any() and out[1:].isfinite().all()
    weight_OI[3, 2] = wrong
    out = int8_linear(torch.randn(rows, 12), quantize(weight_OI))
    assert out.isfinite().all(dim=0).tolist() == [output != 3 for output in range(7)]


@needs_packing
@given(st.integers(1, 40), st.integers(1, 40))
def test_packing_is_lossless(outputs, inputs):
    weight = quantize(_matrix(outputs, inputs, 0, 0))
    assert torch.equal(unpack(pack(weight)).numbers_OJ, weight.numbers_OJ)


@given(st.integers(1, 40), st.integers(1, 40))
def test_rows_and_bytes_of_a_table(outputs, inputs):
    weight, places = quantize(_matrix(outputs, inputs, 0, 0)), torch.randint(outputs, (2, 3))
    assert torch.equal(gather_rows(weight, places), dequantize(weight)[places])
    assert int8_nbytes(outputs, inputs) == weight.numbers_OJ.nbytes + weight.scale_O.nbytes


@needs_packing
def test_the_largest_sums_do_not_overflow_without_byte_instructions():
    """oneDNN is restricted to AVX2, whose products of bytes are added in 16 bits."""
    code = """
import torch
from linnet.ops.int8_linear import *
numbers_OI = torch.full((8, 96), 127, dtype=torch.int8)
numbers_OI[1] = -127
weight = Int8Weight(numbers_OI, torch.ones(8, dtype=torch.bfloat16), 96)
for rows in (2, 5):
    for sign in (1.0, -1.0):
        x = torch.full((rows, 96), sign)
        for form in (weight, pack(weight)):
            torch.testing.assert_close(int8_linear(x, form), int8_linear_reference(x, weight))
"""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
