"""What the compiled products are worth on the processor at hand: a small problem, before they serve there."""

import ctypes
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.rows import (
    BYTES,
    LANES,
    bfloat16_rows,
    blocks_of,
    float32_rows,
    int4_rows,
    int8_rows,
    outputs_of,
)

LARGEST_ERROR = 1e-3
"""Relative to the largest output: fixed point is off by less than a tenth of it, what is wrong by far more."""

ROWS, INPUTS, OUTPUTS, GROUP = 3, 70, 21, 32


@torch.inference_mode()
def problem(library: ctypes.CDLL) -> str | None:
    """What is wrong with them, in words; None: nothing."""
    wrong = {name: error for name, error in _errors(library) if not error <= LARGEST_ERROR}
    return ", ".join(f"{name} is off by {error:.1e}" for name, error in wrong.items()) or None


def _errors(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Of each kind of weights, beside plain PyTorch with the matrix that they stand for."""
    draw = torch.Generator().manual_seed(0)
    x_RI, added_RO = torch.randn(ROWS, INPUTS, generator=draw), torch.randn(ROWS, OUTPUTS, generator=draw)
    bias_O, scale_O = torch.randn(OUTPUTS, generator=draw), torch.rand(OUTPUTS, generator=draw).bfloat16()

    def error(found_RO: Tensor, weight_OI: Tensor) -> float:
        expected_RO = F.linear(x_RI, weight_OI, bias_O) + added_RO
        return float((found_RO - expected_RO).abs().max() / expected_RO.abs().max())

    weight_OI = torch.randn(OUTPUTS, INPUTS, generator=draw).bfloat16()
    yield "float32", error(float32_rows(library, weight_OI.float(), bias_O)(x_RI, added_RO), weight_OI.float())
    yield "bfloat16", error(bfloat16_rows(library, weight_OI, bias_O)(x_RI, added_RO), weight_OI.float())

    numbers_OI = torch.randint(-127, 128, (OUTPUTS, INPUTS), generator=draw, dtype=torch.int8)
    numbers_OJ = F.pad(numbers_OI, (0, -INPUTS % BYTES))
    rows = int8_rows(library, numbers_OJ, scale_O, INPUTS, bias_O)
    yield "int8", error(rows(x_RI, added_RO), numbers_OI * scale_O.float()[:, None])

    width = INPUTS + -INPUTS % GROUP
    pairs_OH = torch.randint(0, 256, (OUTPUTS, width // 2), generator=draw, dtype=torch.uint8)
    scale_GO = torch.rand(width // GROUP, OUTPUTS, generator=draw).bfloat16()
    blocks_NGb = blocks_of(pairs_OH, scale_GO)
    assert len(blocks_NGb) == -(-OUTPUTS // LANES)
    numbers, scales = outputs_of(blocks_NGb, torch.arange(OUTPUTS))
    weight = (numbers.view(OUTPUTS, -1, GROUP).float() - 8) * scales.t().float()[:, :, None]
    rows = int4_rows(library, blocks_NGb, INPUTS, OUTPUTS, GROUP, bias_O)
    yield "int4", error(rows(x_RI, added_RO), weight.flatten(1)[:, :INPUTS])
