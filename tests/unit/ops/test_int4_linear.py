import os
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops import int4_linear as module
from linnet.ops.int4_linear import (
    BLOCK,
    Int4Weight,
    can_pack,
    dequantize,
    gather_rows,
    int4_linear,
    int4_linear_reference,
    int4_nbytes,
    pack,
    quantize,
    unpack,
)

needs_packing = pytest.mark.skipif(not can_pack(torch.device("cpu")), reason="no product of 4 bits on this processor")
groups = st.sampled_from([32, 64, 128])


def _matrix(outputs: int, inputs: int, power: int, seed: int) -> Tensor:
    """Outputs of very different sizes, one of zeros, one of a constant, and one far from zero."""
    torch.manual_seed(seed)
    weight_OI = torch.randn(outputs, inputs) * 10.0 ** torch.linspace(power - 3, power + 3, outputs)[:, None]
    weight_OI[outputs // 2] = 0
    weight_OI[outputs // 3] = 0.3 * 10.0**power
    weight_OI[-1] += 5 * 10.0**power
    return weight_OI


@given(st.integers(1, 33), st.integers(1, 300), st.integers(-20, 20), groups, st.integers(0, 99))
@example(outputs=4, inputs=3, power=0, group=32, seed=16)
def test_no_group_has_a_larger_error_than_with_the_scale_of_its_largest_element(outputs, inputs, power, group, seed):
    weight_OI = _matrix(outputs, inputs, power, seed)
    rounded_OI = dequantize(quantize(weight_OI, group))
    assert rounded_OI.shape == weight_OI.shape
    for begin in range(0, inputs, group):
        part_OI, found_OI = (matrix_OI[:, begin : begin + group] for matrix_OI in (weight_OI, rounded_OI))
        largest_O1 = part_OI.gather(1, part_OI.abs().argmax(dim=1, keepdim=True))
        scale_O1 = (largest_O1 / -8).bfloat16().float()
        scale_O1[scale_O1 == 0] = 1e-30
        plain_OI = (part_OI / scale_O1).round().clamp(-8, 7) * scale_O1  # as Q4_0 has it
        error_O, allowed_O = ((matrix_OI - part_OI).square().sum(dim=1) for matrix_OI in (found_OI, plain_OI))
        assert (error_O <= allowed_O * 1.0001 + 1e-38).all()


def test_the_searched_scale_has_a_smaller_error(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    weight_OI = torch.randn(64, 256)
    found = (dequantize(quantize(weight_OI)) - weight_OI).norm()
    monkeypatch.setattr(module, "SCALE_FACTORS", (1.0,))
    assert found < 0.98 * (dequantize(quantize(weight_OI)) - weight_OI).norm()


@pytest.mark.parametrize(("group", "bits"), [(32, 4.5), (128, 4.125)])
def test_predicted_bytes_equal_the_bytes_of_the_tensors(group: int, bits: float):
    weight = quantize(torch.randn(96, 256), group)
    assert int4_nbytes(96, 256, group) == 96 * 256 * bits / 8 == weight.pairs_OH.nbytes + weight.scale_GO.nbytes


@needs_packing
@given(st.integers(1, 150), st.integers(1, 200), groups, st.integers(0, 9))
def test_packing_is_lossless_and_rows_can_be_gathered(outputs, inputs, group, seed):
    weight = quantize(_matrix(outputs, inputs, 0, seed), group)
    packed = pack(weight)
    for found, kept in zip(unpack(packed)[:2], weight[:2], strict=True):
        assert torch.equal(found, kept)
    places = torch.randint(outputs, (2, 3))
    for form in (packed, weight):
        assert torch.equal(gather_rows(form, places), dequantize(weight)[places])


@needs_packing
@given(
    st.integers(1, 150),
    st.integers(1, 200),
    st.sampled_from([(), (1,), (1, 1), (0,), (2,), (3, 5), (40,)]),
    groups,
    st.integers(-8, 8),
    st.booleans(),
    st.integers(0, 9),
)
def test_the_fast_form_equals_the_definition_within_its_bound(outputs, inputs, batch, group, x_power, with_bias, seed):
    weight = quantize(_matrix(outputs, inputs, 0, seed), group)
    x = torch.randn(*batch, inputs) * 10.0**x_power
    bias_O = torch.randn(outputs) * 10.0**x_power if with_bias else None
    found, exact = int4_linear(x, pack(weight), bias_O), int4_linear_reference(x, weight, bias_O)
    summed = x.abs() @ dequantize(weight).abs().T
    allowed = summed / 256 + exact.abs() / 128 + (0 if bias_O is None else bias_O.abs() / 128) + 1e-30
    assert found.shape == exact.shape
    assert ((found - exact).abs() <= allowed).all()


@needs_packing
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_nan_is_propagated(rows: int, wrong: float):
    x, weight_OI = torch.randn(rows, 40), torch.randn(BLOCK + 6, 40)
    x[0, 35] = wrong
    out = int4_linear(x, pack(quantize(weight_OI)))
    assert not out[0].isfinite().any() and out[1:].isfinite().all()
    weight_OI[3, 2] = wrong
    out = int4_linear(torch.randn(rows, 40), pack(quantize(weight_OI)))
    assert out.isfinite().all(dim=0).tolist() == [output != 3 for output in range(BLOCK + 6)]


@needs_packing
def test_the_packing_of_a_processor_with_vectors_of_256_bits_is_read_as_it_is():
    """PyTorch packs blocks of 32 outputs there."""
    program = (
        "import torch; from linnet.ops.int4_linear import *; w = quantize(torch.randn(70, 40)); p = pack(w);"
        "assert torch.equal(unpack(p).pairs_OH, w.pairs_OH); x = torch.randn(40, 40);"
        "torch.testing.assert_close(int4_linear(x, p), int4_linear_reference(x, w))"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}, check=True)


def test_two_integers_are_stored_per_byte():
    pairs_OH = torch.tensor([[0x10, 0x32] + [0x88] * 14], dtype=torch.uint8)
    scale_GO = torch.tensor([[0.5]], dtype=torch.bfloat16)
    assert dequantize(Int4Weight(pairs_OH, scale_GO, 5)).tolist() == [[-4.0, -3.5, -3.0, -2.5, 0.0]]
