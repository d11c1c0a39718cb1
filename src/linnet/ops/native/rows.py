"""The products of `rows.cpp`, and how the weights of 4 bits lie for them.

Legend: `R` rows, `I` inputs, `J` inputs filled up, `O` outputs, `G` groups of inputs, `N` blocks of outputs, `S` runs
of eight inputs in a group.
"""

import ctypes
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 8
"""Outputs of a block of 4 bits."""
RUN = 8
"""Inputs whose numbers lie side by side in a block: the first four of each output in the low halves of its bytes."""
SCALE_BYTES = LANES * torch.bfloat16.itemsize
"""Of a group of a block."""
BYTES = 32
"""Inputs of 8 bits are filled up to a multiple."""
BYTES_OF_A_THREAD = 1 << 16
"""Weights that one thread reads before another is woken."""


class Rows:
    """`x W^T + b` of a few rows, plus what it is to be added to. In float32, without gradients.

    weights: what the function is told of them, between a row's inputs and the outputs. kept: lives as long.
    """

    __slots__ = ("_bias", "_function", "_kept", "_most_threads", "_weights", "inputs", "outputs")

    def __init__(
        self,
        function: Callable[..., None],
        inputs: int,
        outputs: int,
        weights: tuple[int, ...],
        bias_O: Tensor | None,
        kept: tuple[Tensor, ...],
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        bias = None if bias_O is None else bias_O.detach().float().contiguous()
        self._function, self._weights, self._kept = function, weights, (*kept, bias)
        self._bias = None if bias is None else bias.data_ptr()
        self._most_threads = 1 + kept[0].nbytes // BYTES_OF_A_THREAD

    def __call__(self, x_RI: Tensor, added_RO: Tensor | None = None) -> Tensor:
        """`[R, I] -> [R, O]`."""
        x_RI = x_RI.float().contiguous()
        count, inputs = x_RI.shape
        out_RO = torch.empty((count, self.outputs))
        added = None
        if added_RO is not None:
            added_RO = added_RO.float().contiguous()
            assert added_RO.shape == out_RO.shape
            added = added_RO.data_ptr()
        assert inputs == self.inputs
        threads = min(torch.get_num_threads(), self._most_threads)
        out, weights = out_RO.data_ptr(), self._weights
        self._function(x_RI.data_ptr(), count, inputs, *weights, self.outputs, self._bias, added, out, threads)
        return out_RO

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: weights of a converted decoder do not change."""
        return self


def float32_rows(library: ctypes.CDLL, weight_OI: Tensor, bias_O: Tensor | None) -> Rows:
    """Weights float32, as they are: what changes them in place changes the products."""
    outputs, inputs = weight_OI.shape
    weight = weight_OI.detach().contiguous()
    return Rows(library.linnet_float32_rows, inputs, outputs, (weight.data_ptr(),), bias_O, (weight,))


def bfloat16_rows(library: ctypes.CDLL, weight_OI: Tensor, bias_O: Tensor | None) -> Rows:
    """Weights bfloat16. The row stays float32: its products are those of float32 with the weights' numbers."""
    outputs, inputs = weight_OI.shape
    weight = weight_OI.contiguous()
    return Rows(library.linnet_bfloat16_rows, inputs, outputs, (weight.data_ptr(),), bias_O, (weight,))


def int8_rows(library: ctypes.CDLL, numbers_OJ: Tensor, scale_O: Tensor, inputs: int, bias_O: Tensor | None) -> Rows:
    """Numbers int8, J a multiple of `BYTES`, scales bfloat16.

    A row is in fixed point (as in `ops.int8_linear`): an output differs from the definition's by at most
    `max |x| sum |w| / 16254`, and float32's rounding.
    """
    outputs, width = numbers_OJ.shape
    assert width % BYTES == 0 and scale_O.dtype == torch.bfloat16
    kept = numbers_OJ.contiguous(), scale_O.contiguous()
    given = kept[0].data_ptr(), width, kept[1].data_ptr()
    return Rows(library.linnet_int8_rows, inputs, outputs, given, bias_O, kept)


def int4_rows(
    library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, outputs: int, group: int, bias_O: Tensor | None
) -> Rows:
    """Blocks of `blocks_of`; a row is in fixed point as for `int8_rows`."""
    given = blocks_NGb.data_ptr(), group
    return Rows(library.linnet_int4_rows, inputs, outputs, given, bias_O, (blocks_NGb,))


def int4_matrix(library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, group: int, first: int, count: int) -> Tensor:
    """Some outputs that lie side by side of the matrix that blocks stand for, float32 `[count, I]`."""
    blocks, groups, _ = blocks_NGb.shape
    assert first >= 0 and first + count <= blocks * LANES
    out_RJ = torch.empty((count, groups * group))
    threads = min(torch.get_num_threads(), 1 + out_RJ.numel() // BYTES_OF_A_THREAD)
    library.linnet_int4_matrix(blocks_NGb.data_ptr(), groups, group, first, count, out_RJ.data_ptr(), threads)
    return out_RJ if out_RJ.shape[1] == inputs else out_RJ[:, :inputs]


def blocks_of(pairs_OH: Tensor, scale_GO: Tensor) -> Tensor:
    """Weights of 4 bits (`ops.int4_linear.Int4Weight`) in blocks of outputs, uint8 `[N, G, b]`, as they are read.

    Of each group the numbers, and then the scales. Outputs that fill the last block up are zeros.
    """
    groups, outputs = scale_GO.shape
    more = -outputs % LANES
    numbers_OJ = torch.stack([pairs_OH & 15, pairs_OH >> 4], dim=-1).flatten(1)
    numbers = F.pad(numbers_OJ, (0, 0, 0, more)).view(-1, LANES, groups, numbers_OJ.shape[1] // groups // RUN, 2, 4)
    bytes_NGSL4 = (numbers[..., 0, :] | numbers[..., 1, :] << 4).permute(0, 2, 3, 1, 4)
    scale_NGL = F.pad(scale_GO, (0, more)).view(groups, -1, LANES).transpose(0, 1).contiguous()
    return torch.cat([bytes_NGSL4.flatten(2), scale_NGL.view(torch.uint8)], dim=2)


def outputs_of(blocks_NGb: Tensor, places_R: Tensor) -> tuple[Tensor, Tensor]:
    """Of some outputs: their numbers uint8 `[R, J]`, and their scales bfloat16 `[G, R]`."""
    (_, groups, size), rows = blocks_NGb.shape, len(places_R)
    lanes_R, own_RGb, row_R = places_R % LANES, blocks_NGb[places_R // LANES], torch.arange(rows)
    numbers, scales = torch.split(own_RGb, [size - SCALE_BYTES, SCALE_BYTES], dim=2)
    bytes_RGS4 = numbers.reshape(rows, groups, -1, LANES, 4)[row_R, :, :, lanes_R]
    numbers_RJ = torch.stack([bytes_RGS4 & 15, bytes_RGS4 >> 4], dim=3).flatten(1)
    scale_RGL = scales.contiguous().view(torch.bfloat16)
    return numbers_RJ, scale_RGL[row_R, :, lanes_R].t()
