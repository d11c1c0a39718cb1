"""The products of `rows.cpp` and `int4.cpp`, and how the weights of 4 bits lie for them.

Legend: `R` rows, `I` inputs, `J` inputs filled up, `O` outputs, `G` groups of inputs, `N` blocks of outputs, `S` runs
of eight inputs in a group.
"""

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.checks import empty, expect, plain
from linnet.ops.native.program import Along

BLOCK = 16
"""Outputs of a block of 4 bits."""
RUN = 8
"""Inputs whose numbers lie side by side in a block: the first four of each output in the low halves of its bytes."""
SCALE_BYTES = BLOCK * torch.bfloat16.itemsize
"""Of a group of a block."""
BYTES = 32
"""Inputs of 8 bits are filled up to a multiple."""
MOST_ROWS = 16
"""From more rows on products of many rows are faster, unless they say otherwise."""
BYTES_OF_A_THREAD = 1 << 16
"""Weights that one thread reads, for each row, before another is woken."""


class Gemv:
    """`x W^T + b` of a few rows, plus what it is to be added to. In float32, without gradients.

    weights: what the function is told of them, between a row's inputs and the outputs; tensors by their address.
    most_rows: from more on products of many rows are faster.
    """

    __slots__ = ("_bias", "_function", "_nbytes", "_wanted", "_weights", "inputs", "most_rows", "outputs")

    def __init__(
        self,
        function: Callable[..., None],
        inputs: int,
        outputs: int,
        weights: tuple[Tensor | int, ...],
        bias_O: Tensor | None,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self.inputs, self.outputs, self._function, self._weights = inputs, outputs, function, weights
        self.most_rows = most_rows
        self._bias = None if bias_O is None else plain(bias_O.detach())
        self._wanted = f"rows of {inputs} inputs", f"rows of {outputs} outputs"
        self._nbytes = sum(part.nbytes for part in weights if isinstance(part, Tensor))

    def __call__(self, x_RI: Tensor, added_RO: Tensor | None = None) -> Tensor:
        """`[R, I] -> [R, O]`; `ValueError` for other shapes, and for what is not on the CPU."""
        x_RI = plain(x_RI)
        expect(x_RI.dim() == 2 and x_RI.shape[1] == self.inputs, self._wanted[0], x_RI)
        count = x_RI.shape[0]
        if added_RO is not None:
            added_RO = plain(added_RO)
            expect(added_RO.shape == (count, self.outputs), self._wanted[1], added_RO)
        out_RO = empty(count, self.outputs)
        threads = min(torch.get_num_threads(), 1 + count * self._nbytes // BYTES_OF_A_THREAD)
        result = self.outputs, self._bias, added_RO, out_RO, threads
        if count:
            self._function(x_RI, count, self.inputs, *self._weights, *result)
        return out_RO


def float32_gemv(library: ctypes.CDLL, weight_OI: Tensor, bias_O: Tensor | None) -> Gemv:
    """Weights float32; those that lie one behind the other are not copied."""
    outputs, inputs = weight_OI.shape
    weight = plain(weight_OI.detach())
    return Gemv(library.linnet_float32_rows, inputs, outputs, (weight,), bias_O)


def bfloat16_gemv(library: ctypes.CDLL, weight_OI: Tensor, bias_O: Tensor | None, most_rows: int = MOST_ROWS) -> Gemv:
    """Weights bfloat16. The row stays float32: its products are those of float32 with the weights' numbers."""
    outputs, inputs = weight_OI.shape
    expect(weight_OI.dtype == torch.bfloat16 and weight_OI.is_cpu, "bfloat16 on the CPU", weight_OI)
    weight = weight_OI.contiguous()
    return Gemv(library.linnet_bfloat16_rows, inputs, outputs, (weight,), bias_O, most_rows)


def int8_gemv(library: ctypes.CDLL, numbers_OJ: Tensor, scale_O: Tensor, inputs: int, bias_O: Tensor | None) -> Gemv:
    """Numbers int8, J a multiple of `BYTES`, scales bfloat16.

    A row is in fixed point (as in `ops.int8_linear`): an output differs from the definition's by at most
    `max |x| sum |w| / 16254`, and float32's rounding.
    """
    outputs, width = numbers_OJ.shape
    fits = width % BYTES == 0 and inputs <= width and len(scale_O) == outputs and numbers_OJ.is_cpu
    expect(fits, f"a multiple of {BYTES} inputs and a scale for each output", numbers_OJ, scale_O)
    expect(numbers_OJ.dtype == torch.int8 and scale_O.dtype == torch.bfloat16, "int8, bfloat16", numbers_OJ, scale_O)
    given = numbers_OJ.contiguous(), width, scale_O.contiguous()
    return Gemv(library.linnet_int8_rows, inputs, outputs, given, bias_O)


def int4_gemv(
    library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, outputs: int, group: int, bias_O: Tensor | None
) -> Gemv:
    """Blocks of `blocks_of`; a row is in fixed point as for `int8_gemv`. Of any number of rows where the processor adds
    up products of bytes.
    """
    blocks, groups, size = blocks_NGb.shape
    fits = outputs <= blocks * BLOCK and inputs <= groups * group and size == BLOCK * group // 2 + SCALE_BYTES
    expect(fits and blocks_NGb.is_contiguous() and blocks_NGb.is_cpu, f"blocks of groups of {group}", blocks_NGb)
    most_rows = library.linnet_most_int4_rows()
    return Gemv(library.linnet_int4_rows, inputs, outputs, (blocks_NGb, group), bias_O, most_rows)


Lookup = Callable[[int], Tensor]
"""An output's weights as a row, `[1, I]`; `IndexError` for one that there is none of."""


def float32_lookup(library: ctypes.CDLL, weight_OI: Tensor) -> Lookup:
    """Of weights in float32."""
    return _lookup(library.linnet_float32_matrix, (plain(weight_OI.detach()),), weight_OI.shape[1])


def bfloat16_lookup(library: ctypes.CDLL, weight_OI: Tensor) -> Lookup:
    """Of weights in bfloat16."""
    expect(weight_OI.dtype == torch.bfloat16 and weight_OI.is_cpu, "bfloat16 on the CPU", weight_OI)
    return _lookup(library.linnet_bfloat16_matrix, (weight_OI.detach().contiguous(),), weight_OI.shape[1])


def int8_lookup(library: ctypes.CDLL, numbers_OJ: Tensor, scale_O: Tensor, inputs: int) -> Lookup:
    """Of numbers and scales as `int8_gemv` takes them."""
    return _lookup(library.linnet_int8_matrix, (numbers_OJ.contiguous(), scale_O.contiguous()[:, None]), inputs)


def _lookup(function: Callable[..., None], parts: tuple[Tensor, ...], inputs: int) -> Lookup:
    """Of parts with a row for each output."""
    steps, outputs = [part.shape[1] * part.element_size() for part in parts], len(parts[0])
    along = Along("token", dict(enumerate(steps)), outputs)

    def look_up(output: int) -> Tensor:
        if not 0 <= output < outputs:
            raise IndexError(f"output {output} of {outputs}")
        out_1I = empty(1, inputs)
        function(*(part[output] for part in parts), inputs, out_1I, 1, along=along)
        return out_1I

    return look_up


def int4_lookup(library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, outputs: int, group: int) -> Lookup:
    """Of blocks of `blocks_of`."""
    (_, groups, _), function, along = blocks_NGb.shape, library.linnet_int4_matrix, Along("token", {3: 1}, outputs)

    def look_up(output: int) -> Tensor:
        if not 0 <= output < outputs:
            raise IndexError(f"output {output} of {outputs}")
        out_1J = empty(1, groups * group)
        function(blocks_NGb, groups, group, output, 1, out_1J, 1, along=along)
        return out_1J[:, :inputs]

    return look_up


def int4_matrix(library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, group: int, first: int, count: int) -> Tensor:
    """Some outputs that lie side by side of the matrix that blocks stand for, float32 `[count, I]`."""
    blocks, groups, _ = blocks_NGb.shape
    if first < 0 or first + count > blocks * BLOCK:
        raise IndexError(f"outputs {first} to {first + count - 1} of {blocks * BLOCK}")
    out_RJ = empty(count, groups * group)
    threads = min(torch.get_num_threads(), 1 + out_RJ.numel() // BYTES_OF_A_THREAD)
    library.linnet_int4_matrix(blocks_NGb, groups, group, first, count, out_RJ, threads)
    return out_RJ if out_RJ.shape[1] == inputs else out_RJ[:, :inputs]


def blocks_of(pairs_OH: Tensor, scale_GO: Tensor) -> Tensor:
    """Weights of 4 bits (`ops.int4_linear.Int4Weight`) in blocks of outputs, uint8 `[N, G, b]`, as they are read.

    Of each group the numbers, and then the scales. Outputs that fill the last block up are zeros.
    """
    groups, outputs = scale_GO.shape
    more = -outputs % BLOCK
    numbers_OJ = torch.stack([pairs_OH & 15, pairs_OH >> 4], dim=-1).flatten(1)
    numbers = F.pad(numbers_OJ, (0, 0, 0, more)).view(-1, BLOCK, groups, numbers_OJ.shape[1] // groups // RUN, 2, 4)
    bytes_NGSL4 = (numbers[..., 0, :] | numbers[..., 1, :] << 4).permute(0, 2, 3, 1, 4)
    scale_NGL = F.pad(scale_GO, (0, more)).view(groups, -1, BLOCK).transpose(0, 1).contiguous()
    return torch.cat([bytes_NGSL4.flatten(2), scale_NGL.view(torch.uint8)], dim=2)


def outputs_of(blocks_NGb: Tensor, places_R: Tensor) -> tuple[Tensor, Tensor]:
    """Of some outputs: their numbers uint8 `[R, J]`, and their scales bfloat16 `[G, R]`."""
    (_, groups, size), rows = blocks_NGb.shape, len(places_R)
    lanes_R, own_RGb, row_R = places_R % BLOCK, blocks_NGb[places_R // BLOCK], torch.arange(rows)
    numbers, scales = torch.split(own_RGb, [size - SCALE_BYTES, SCALE_BYTES], dim=2)
    bytes_RGS4 = numbers.reshape(rows, groups, -1, BLOCK, 4)[row_R, :, :, lanes_R]
    numbers_RJ = torch.stack([bytes_RGS4 & 15, bytes_RGS4 >> 4], dim=3).flatten(1)
    scale_RGL = scales.contiguous().view(torch.bfloat16)
    return numbers_RJ, scale_RGL[row_R, :, lanes_R].t()
