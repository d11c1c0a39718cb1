"""What the compiled products are worth on the processor at hand: a small problem, before they serve there."""

import ctypes
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.gated import gated_silu_reference
from linnet.ops.native.attention import attention_row
from linnet.ops.native.elementwise import gated_silu_row, rms_norm_row, turn_row
from linnet.ops.native.rows import (
    BYTES,
    LANES,
    bfloat16_rows,
    blocks_of,
    float32_rows,
    int4_matrix,
    int4_rows,
    int8_rows,
    outputs_of,
)

LARGEST_ERROR = 1e-3
"""Relative to the largest output: fixed point is off by less than a tenth of it, what is wrong by far more."""

ROWS, INPUTS, OUTPUTS, GROUP = 3, 70, 21, 32


ALIKE: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


@torch.inference_mode()
def problem(library: ctypes.CDLL) -> str | None:
    """What is wrong with them, in words; None: nothing."""
    found = chain(_errors_of_products(library), _errors_beside_them(library))
    wrong = {name: error for name, error in found if not error <= LARGEST_ERROR}
    return ", ".join(f"{name} is off by {error:.1e}" for name, error in wrong.items()) or None


def _errors_of_products(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of each kind of weights, beside plain PyTorch with the matrix that they stand for."""
    draw = torch.Generator().manual_seed(0)
    x_RI, added_RO = (torch.randn(ROWS, size, generator=draw, **ALIKE) for size in (INPUTS, OUTPUTS))
    bias_O, scale_O = (torch.rand(OUTPUTS, generator=draw, **ALIKE) for _ in range(2))
    scale_O = scale_O.bfloat16()

    def error(found_RO: Tensor, weight_OI: Tensor) -> float:
        return _off(found_RO, F.linear(x_RI, weight_OI, bias_O) + added_RO)

    weight_OI = torch.randn(OUTPUTS, INPUTS, generator=draw, **ALIKE).bfloat16()
    yield "float32", error(float32_rows(library, weight_OI.float(), bias_O)(x_RI, added_RO), weight_OI.float())
    yield "bfloat16", error(bfloat16_rows(library, weight_OI, bias_O)(x_RI, added_RO), weight_OI.float())

    numbers_OI = torch.randint(-127, 128, (OUTPUTS, INPUTS), generator=draw, dtype=torch.int8, device="cpu")
    numbers_OJ = F.pad(numbers_OI, (0, -INPUTS % BYTES))
    rows = int8_rows(library, numbers_OJ, scale_O, INPUTS, bias_O)
    yield "int8", error(rows(x_RI, added_RO), numbers_OI * scale_O.float()[:, None])

    width = INPUTS + -INPUTS % GROUP
    pairs_OH = torch.randint(0, 256, (OUTPUTS, width // 2), generator=draw, dtype=torch.uint8, device="cpu")
    scale_GO = torch.rand(width // GROUP, OUTPUTS, generator=draw, **ALIKE).bfloat16()
    blocks_NGb = blocks_of(pairs_OH, scale_GO)
    assert len(blocks_NGb) == -(-OUTPUTS // LANES)
    numbers, scales = outputs_of(blocks_NGb, torch.arange(OUTPUTS, device="cpu"))
    weight = (numbers.view(OUTPUTS, -1, GROUP).float() - 8) * scales.t().float()[:, :, None]
    rows = int4_rows(library, blocks_NGb, INPUTS, OUTPUTS, GROUP, bias_O)
    weight_OI = weight.flatten(1)[:, :INPUTS]
    yield "int4", error(rows(x_RI, added_RO), weight_OI)
    yield "int4's matrix", _off(int4_matrix(library, blocks_NGb, INPUTS, GROUP, 3, OUTPUTS - 3), weight_OI[3:])


def _errors_beside_them(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of attention, rotation, norm and gate."""
    draw = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(2, 30, 11, generator=draw, **ALIKE) for _ in range(2))
    q_MPK, own_MK = torch.randn(2, 3, 11, generator=draw, **ALIKE), torch.randn(2, 11, generator=draw, **ALIKE)
    read_1F = attention_row(library, keys, values, 0.3)(q_MPK, own_MK, own_MK, 20)
    expected = (q_MPK @ keys[:, :21].transpose(1, 2) * 0.3).softmax(dim=2) @ values[:, :21]
    yield "attention", _off(read_1F, expected.view(1, -1))

    x_1D, gain_D = torch.randn(1, INPUTS, generator=draw, **ALIKE), torch.randn(INPUTS, generator=draw, **ALIKE)
    yield "RMS norm", _off(rms_norm_row(library, gain_D, 1e-5)(x_1D), F.rms_norm(x_1D, (INPUTS,), gain_D, 1e-5))
    yield "gate", _off(gated_silu_row(library)(x_1D), gated_silu_reference(x_1D))

    cos_CR, sin_CR = (torch.rand(4, 5, generator=draw, **ALIKE) for _ in range(2))
    x_JK = torch.randn(3, 10, generator=draw, **ALIKE)
    turned = torch.view_as_complex(x_JK.view(3, 5, 2)) * torch.complex(cos_CR[2], sin_CR[2])
    expected = torch.view_as_real(turned).flatten(1)
    yield "rotation", _off(turn_row(library, cos_CR, sin_CR, "adjacent")(x_JK.clone(), 2), expected)


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
