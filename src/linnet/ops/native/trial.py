"""The test of the compiled functions on the processor at hand: a small problem of each, before the first use."""

import ctypes
import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.gated_feed_forward import gated_silu_reference
from linnet.ops.native.attention import attention_past, attention_row, head_matrices_row
from linnet.ops.native.elementwise import KINDS, activation_row, norm_row, rotate_row, scale_add_row
from linnet.ops.native.gemv import (
    BLOCK,
    BYTES,
    Gemv,
    bfloat16_gemv,
    float32_gemv,
    float_lookup,
    gather_from_blocks,
    int4_gemv,
    int4_matrix,
    int8_gemv,
    int8_lookup,
    to_int4_blocks,
)
from linnet.ops.native.program import Recording

MAX_ERROR = 1e-3
"""Relative to the largest output: fixed point causes less than a tenth of it, a wrong function far more."""

ROWS, INPUTS, OUTPUTS, GROUP = 11, 70, 21, 32
"""More rows than one tile, the last tile not full; a single row is tried too."""

OPTIONS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


@torch.inference_mode()
def problem(library: ctypes.CDLL) -> str | None:
    """A description of the functions that are wrong; None if all are right."""
    errors = chain(_product_errors(library), _attention_errors(library), _elementwise_errors(library))
    wrong = {name: error for name, error in errors if not error <= MAX_ERROR}
    return ", ".join(f"{name} is off by {error:.1e}" for name, error in wrong.items()) or None


def _product_errors(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Products and look-ups of each kind of weights against plain PyTorch with the dequantized matrix."""
    generator = torch.Generator().manual_seed(0)
    x_RI, added_RO = (torch.randn(ROWS, size, generator=generator, **OPTIONS) for size in (INPUTS, OUTPUTS))
    bias_O, scale_O = (torch.rand(OUTPUTS, generator=generator, **OPTIONS) for _ in range(2))
    scale_O = scale_O.bfloat16()

    def error(gemv: Gemv, weight_OI: Tensor) -> float:
        expected_RO = F.linear(x_RI, weight_OI, bias_O) + added_RO
        found = gemv(x_RI, added_RO), gemv(x_RI[:1], added_RO[:1])
        errors = [_error(each_RO, expected_RO[: len(each_RO)]) for each_RO in found]
        return max(errors, key=lambda each: (math.isnan(each), each))  # NaN is the worst

    weight_OI = torch.randn(OUTPUTS, INPUTS, generator=generator, **OPTIONS).bfloat16()
    yield "float32", error(float32_gemv(library, weight_OI.float(), bias_O), weight_OI.float())
    yield "bfloat16", error(bfloat16_gemv(library, weight_OI, bias_O), weight_OI.float())
    yield "float32's lookup", _error(float_lookup(library, weight_OI.float())(2), weight_OI[2:3].float())
    yield "bfloat16's lookup", _error(float_lookup(library, weight_OI)(2), weight_OI[2:3].float())

    numbers_OI = torch.randint(-127, 128, (OUTPUTS, INPUTS), generator=generator, dtype=torch.int8, device="cpu")
    numbers_OJ = F.pad(numbers_OI, (0, -INPUTS % BYTES))
    gemv = int8_gemv(library, numbers_OJ, scale_O, INPUTS, bias_O)
    weight_OI = numbers_OI * scale_O.float()[:, None]
    yield "int8", error(gemv, weight_OI)
    yield "int8's lookup", _error(int8_lookup(library, numbers_OJ, scale_O, INPUTS)(2), weight_OI[2:3])

    width = INPUTS + -INPUTS % GROUP
    pairs_OH = torch.randint(0, 256, (OUTPUTS, width // 2), generator=generator, dtype=torch.uint8, device="cpu")
    scale_GO = torch.rand(width // GROUP, OUTPUTS, generator=generator, **OPTIONS).bfloat16()
    blocks_NGb = to_int4_blocks(pairs_OH, scale_GO)
    assert len(blocks_NGb) == -(-OUTPUTS // BLOCK)
    numbers, scales = gather_from_blocks(blocks_NGb, torch.arange(OUTPUTS, device="cpu"))
    weight = (numbers.view(OUTPUTS, -1, GROUP).float() - 8) * scales.t().float()[:, :, None]
    gemv = int4_gemv(library, blocks_NGb, INPUTS, OUTPUTS, GROUP, bias_O)
    weight_OI = weight.flatten(1)[:, :INPUTS]
    yield "int4", error(gemv, weight_OI)
    yield "int4's matrix", _error(int4_matrix(library, blocks_NGb, INPUTS, GROUP, 3, OUTPUTS - 3), weight_OI[3:])


def _attention_errors(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Attention, the product with an operator, and rotary embedding."""
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 30, 11, generator=generator, **OPTIONS) for _ in range(2))
    q_MPK, own_MK = (torch.randn(*shape, generator=generator, **OPTIONS) for shape in ((2, 3, 11), (2, 11)))
    read_1F = attention_row(library, keys, values, 0.3)(q_MPK, own_MK, own_MK, 20)
    expected = (q_MPK @ keys[:, :21].transpose(1, 2) * 0.3).softmax(dim=2) @ values[:, :21]
    yield "attention", _error(read_1F, expected.view(1, -1))
    k_1MSK, v_1MSK = (x[None, :, :21].bfloat16() for x in (keys, values))
    expected = (q_MPK @ k_1MSK[0].float().transpose(1, 2) * 0.3).softmax(dim=2) @ v_1MSK[0].float()
    read_1MPK = attention_past(library, q_MPK[None], k_1MSK, v_1MSK, 0.3, torch.tensor([21], device="cpu"))
    yield "attention to the past", _error(read_1MPK[0], expected)
    operator_MKK = torch.randn(2, 11, 11, generator=generator, **OPTIONS)
    yield "operator", _error(head_matrices_row(library, operator_MKK)(q_MPK), q_MPK @ operator_MKK)

    cos_CR, sin_CR = (torch.rand(4, 5, generator=generator, **OPTIONS) for _ in range(2))
    x_JK = torch.randn(3, 10, generator=generator, **OPTIONS)
    rotated = torch.view_as_complex(x_JK.view(3, 5, 2)) * torch.complex(cos_CR[2], sin_CR[2])
    expected = torch.view_as_real(rotated).flatten(1)
    yield "rotation", _error(rotate_row(library, cos_CR, sin_CR, "adjacent")(x_JK.clone(), 2), expected)


def _elementwise_errors(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Norms, activations, gates and sums, and a program that is recorded for one token and run for another."""
    generator = torch.Generator().manual_seed(0)
    x_1D, gain_D = (torch.randn(*shape, generator=generator, **OPTIONS) for shape in ((1, INPUTS), (INPUTS,)))
    yield "RMS norm", _error(norm_row(library, gain_D, None, 1e-5)(x_1D), F.rms_norm(x_1D, (INPUTS,), gain_D, 1e-5))
    bias_D = torch.randn(INPUTS, generator=generator, **OPTIONS)
    expected = F.layer_norm(x_1D, (INPUTS,), gain_D, bias_D, 1e-5)
    yield "layer norm", _error(norm_row(library, gain_D, bias_D, 1e-5)(x_1D), expected)

    silu, gelu, gelu_tanh, relu = F.silu(x_1D), F.gelu(x_1D), F.gelu(x_1D, approximate="tanh"), F.relu(x_1D)
    for kind, expected in zip(KINDS, (silu, gelu, gelu_tanh, relu, relu.square()), strict=True):
        yield kind, _error(activation_row(library, kind)(x_1D), expected)
    yield "gate", _error(activation_row(library, "silu", gated=True)(x_1D), gated_silu_reference(x_1D))
    table_CD = torch.randn(3, INPUTS, generator=generator, **OPTIONS)
    scale_add = scale_add_row(library, 0.5, table_CD)
    yield "sum", _error(scale_add(x_1D, 2), 0.5 * x_1D + table_CD[2])

    weight_OI = torch.randn(OUTPUTS, INPUTS, generator=generator, **OPTIONS)
    look_up = float_lookup(library, weight_OI)
    with Recording(token=3, position=1) as recording:
        out_1I = scale_add(look_up(3), 1)
    recording.program(library).run(token=5, position=2)
    yield "program", _error(out_1I, (0.5 * weight_OI[5] + table_CD[2])[None])


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
