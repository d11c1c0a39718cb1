"""What the compiled products are worth on the processor at hand: a small problem, before they serve there."""

import ctypes
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.gated import gated_silu_reference
from linnet.ops.native.attention import attention_past, attention_row, operator_row
from linnet.ops.native.elementwise import (
    KINDS,
    activation_row,
    glu_row,
    layer_norm_row,
    rms_norm_row,
    rotate_row,
    scale_add_row,
)
from linnet.ops.native.program import Recording
from linnet.ops.native.rows import (
    BLOCK,
    BYTES,
    Gemv,
    bfloat16_gemv,
    bfloat16_lookup,
    blocks_of,
    float32_gemv,
    float32_lookup,
    int4_gemv,
    int4_matrix,
    int8_gemv,
    int8_lookup,
    outputs_of,
)

LARGEST_ERROR = 1e-3
"""Relative to the largest output: fixed point is off by less than a tenth of it, what is wrong by far more."""

ROWS, INPUTS, OUTPUTS, GROUP = 11, 70, 21, 32
"""Rows: of more than one tile, the last not full; a row by itself is tried too."""

ALIKE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


@torch.inference_mode()
def problem(library: ctypes.CDLL) -> str | None:
    """What is wrong with them, in words; None: nothing."""
    found = chain(
        _errors_of_products(library),
        _errors_of_attention(library),
        _errors_beside_them(library),
        _errors_of_programs(library),
    )
    wrong = {name: error for name, error in found if not error <= LARGEST_ERROR}
    return ", ".join(f"{name} is off by {error:.1e}" for name, error in wrong.items()) or None


def _errors_of_products(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of each kind of weights, beside plain PyTorch with the matrix that they stand for."""
    draw = torch.Generator().manual_seed(0)
    x_RI, added_RO = (torch.randn(ROWS, size, generator=draw, **ALIKE) for size in (INPUTS, OUTPUTS))
    bias_O, scale_O = (torch.rand(OUTPUTS, generator=draw, **ALIKE) for _ in range(2))
    scale_O = scale_O.bfloat16()

    def error(rows: Gemv, weight_OI: Tensor) -> float:
        expected_RO = F.linear(x_RI, weight_OI, bias_O) + added_RO
        found = rows(x_RI, added_RO), rows(x_RI[:1], added_RO[:1])
        return _worst(_off(each_RO, expected_RO[: len(each_RO)]) for each_RO in found)

    weight_OI = torch.randn(OUTPUTS, INPUTS, generator=draw, **ALIKE).bfloat16()
    yield "float32", error(float32_gemv(library, weight_OI.float(), bias_O), weight_OI.float())
    yield "bfloat16", error(bfloat16_gemv(library, weight_OI, bias_O), weight_OI.float())

    yield "float32's lookup", _off(float32_lookup(library, weight_OI.float())(2), weight_OI[2:3].float())
    yield "bfloat16's lookup", _off(bfloat16_lookup(library, weight_OI)(2), weight_OI[2:3].float())

    numbers_OI = torch.randint(-127, 128, (OUTPUTS, INPUTS), generator=draw, dtype=torch.int8, device="cpu")
    numbers_OJ = F.pad(numbers_OI, (0, -INPUTS % BYTES))
    rows = int8_gemv(library, numbers_OJ, scale_O, INPUTS, bias_O)
    weight_OI = numbers_OI * scale_O.float()[:, None]
    yield "int8", error(rows, weight_OI)
    yield "int8's lookup", _off(int8_lookup(library, numbers_OJ, scale_O, INPUTS)(2), weight_OI[2:3])

    width = INPUTS + -INPUTS % GROUP
    pairs_OH = torch.randint(0, 256, (OUTPUTS, width // 2), generator=draw, dtype=torch.uint8, device="cpu")
    scale_GO = torch.rand(width // GROUP, OUTPUTS, generator=draw, **ALIKE).bfloat16()
    blocks_NGb = blocks_of(pairs_OH, scale_GO)
    assert len(blocks_NGb) == -(-OUTPUTS // BLOCK)
    numbers, scales = outputs_of(blocks_NGb, torch.arange(OUTPUTS, device="cpu"))
    weight = (numbers.view(OUTPUTS, -1, GROUP).float() - 8) * scales.t().float()[:, :, None]
    rows = int4_gemv(library, blocks_NGb, INPUTS, OUTPUTS, GROUP, bias_O)
    weight_OI = weight.flatten(1)[:, :INPUTS]
    yield "int4", error(rows, weight_OI)
    yield "int4's matrix", _off(int4_matrix(library, blocks_NGb, INPUTS, GROUP, 3, OUTPUTS - 3), weight_OI[3:])


def _errors_of_attention(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of attention, of what an operator makes of queries, and of rotation."""
    draw = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 30, 11, generator=draw, **ALIKE) for _ in range(2))
    q_MPK, own_MK = torch.randn(2, 3, 11, generator=draw, **ALIKE), torch.randn(2, 11, generator=draw, **ALIKE)
    read_1F = attention_row(library, keys, values, 0.3)(q_MPK, own_MK, own_MK, 20)
    expected = (q_MPK @ keys[:, :21].transpose(1, 2) * 0.3).softmax(dim=2) @ values[:, :21]
    yield "attention", _off(read_1F, expected.view(1, -1))
    k_1MSK, v_1MSK = (x[None, :, :21].bfloat16() for x in (keys, values))
    expected = (q_MPK @ k_1MSK[0].float().transpose(1, 2) * 0.3).softmax(dim=2) @ v_1MSK[0].float()
    read_1MPK = attention_past(library, q_MPK[None], k_1MSK, v_1MSK, 0.3, torch.tensor([21], device="cpu"))
    yield "attention to the past", _off(read_1MPK[0], expected)
    operator_MKK = torch.randn(2, 11, 11, generator=draw, **ALIKE)
    yield "operator", _off(operator_row(library, operator_MKK)(q_MPK), q_MPK @ operator_MKK)

    cos_CR, sin_CR = (torch.rand(4, 5, generator=draw, **ALIKE) for _ in range(2))
    x_JK = torch.randn(3, 10, generator=draw, **ALIKE)
    turned = torch.view_as_complex(x_JK.view(3, 5, 2)) * torch.complex(cos_CR[2], sin_CR[2])
    expected = torch.view_as_real(turned).flatten(1)
    yield "rotation", _off(rotate_row(library, cos_CR, sin_CR, "adjacent")(x_JK.clone(), 2), expected)


def _errors_beside_them(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of norms, activations, gates and sums."""
    draw = torch.Generator().manual_seed(0)
    x_1D, gain_D = torch.randn(1, INPUTS, generator=draw, **ALIKE), torch.randn(INPUTS, generator=draw, **ALIKE)
    yield "RMS norm", _off(rms_norm_row(library, gain_D, 1e-5)(x_1D), F.rms_norm(x_1D, (INPUTS,), gain_D, 1e-5))
    bias_D = torch.randn(INPUTS, generator=draw, **ALIKE)
    expected = F.layer_norm(x_1D, (INPUTS,), gain_D, bias_D, 1e-5)
    yield "layer norm", _off(layer_norm_row(library, gain_D, bias_D, 1e-5)(x_1D), expected)

    silu, gelu, gelu_tanh, relu = F.silu(x_1D), F.gelu(x_1D), F.gelu(x_1D, approximate="tanh"), F.relu(x_1D)
    for kind, expected in zip(KINDS, (silu, gelu, gelu_tanh, relu, relu.square()), strict=True):
        yield kind, _off(activation_row(library, kind)(x_1D), expected)
    yield "gate", _off(glu_row(library)(x_1D), gated_silu_reference(x_1D))
    table_CD = torch.randn(3, INPUTS, generator=draw, **ALIKE)
    yield "sum", _off(scale_add_row(library, 0.5, table_CD)(x_1D, 2), 0.5 * x_1D + table_CD[2])


def _errors_of_programs(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of a token's vector and its position's, written down for one token and run for another."""
    draw = torch.Generator().manual_seed(0)
    weight_OI, table_CI = (torch.randn(count, INPUTS, generator=draw, **ALIKE) for count in (OUTPUTS, 4))
    look_up, scaled = float32_lookup(library, weight_OI), scale_add_row(library, 0.5, table_CI)
    with Recording(token=3, position=1) as recording:
        out_1I = scaled(look_up(3), 1)
    program = recording.program(library)
    assert program is not None
    program.run(token=5, position=2)
    yield "program", _off(out_1I, (0.5 * weight_OI[5] + table_CI[2])[None])


def _worst(errors: Iterable[float]) -> float:
    """What is no number is the worst."""
    return max(errors, key=lambda error: (math.isnan(error), error))


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
