"""Products of rows with weights of 32, 16, 8 and 4 bits (`rows.cpp`, `int4.cpp`), and the memory layout of the weights.

Legend: `R` rows, `I` inputs, `J` inputs padded, `O` outputs, `G` groups of inputs, `N` blocks of outputs, `S` runs of
eight inputs in a group.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.native.program import Stride, contiguous_float32, empty, expect

BLOCK = 16
"""Outputs of a block of 4-bit weights."""
RUN = 8
"""Consecutive inputs of a block; the first four of each output are in the low halves of its bytes."""
SCALE_BYTES = BLOCK * torch.bfloat16.itemsize
"""Bytes of the scales of one group of a block."""
BYTES = 32
"""Inputs of 8-bit weights are padded to a multiple."""
MAX_ROWS = 16
"""With more rows PyTorch's products are faster, unless a product states another limit."""
BYTES_PER_THREAD = 1 << 16
"""Weights, times rows, for which one thread is used; more bytes use more threads."""
PAGE = 1 << 21
"""Bytes of a huge page of Linux."""
_MADV_HUGEPAGE = 14


class Gemv:
    """`x W^T + b` of a few rows, plus an optional summand, in float32 and without gradients.

    weights: arguments of the native function between those of the input and those of the output; tensors are passed by
    address. max_rows: with more rows PyTorch's products are faster.
    """

    __slots__ = ("_bias", "_expected", "_function", "_nbytes", "_weights", "inputs", "max_rows", "outputs")

    def __init__(
        self,
        function: Callable[..., None],
        inputs: int,
        outputs: int,
        weights: tuple[Tensor | int, ...],
        bias_O: Tensor | None,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.inputs, self.outputs, self._function, self._weights = inputs, outputs, function, weights
        self.max_rows = max_rows
        self._bias = None if bias_O is None else contiguous_float32(bias_O.detach())
        self._expected = f"rows of {inputs} inputs", f"rows of {outputs} outputs"
        self._nbytes = sum(part.nbytes for part in weights if isinstance(part, Tensor))

    def __call__(self, x_RI: Tensor, added_RO: Tensor | None = None) -> Tensor:
        """`[R, I] -> [R, O]`; `ValueError` for other shapes, and for tensors that are not on the CPU."""
        x_RI = contiguous_float32(x_RI)
        expect(x_RI.dim() == 2 and x_RI.shape[1] == self.inputs, self._expected[0], x_RI)
        count = x_RI.shape[0]
        if added_RO is not None:
            added_RO = contiguous_float32(added_RO)
            expect(added_RO.shape == (count, self.outputs), self._expected[1], added_RO)
        out_RO = empty(count, self.outputs)
        threads = min(torch.get_num_threads(), 1 + count * self._nbytes // BYTES_PER_THREAD)
        if count:
            result = self.outputs, self._bias, added_RO, out_RO, threads
            self._function(x_RI, count, self.inputs, *self._weights, *result)
        return out_RO


def float32_gemv(library: ctypes.CDLL, weight_OI: Tensor, bias_O: Tensor | None) -> Gemv:
    """Weights in float32; contiguous ones are not copied."""
    outputs, inputs = weight_OI.shape
    weight = contiguous_float32(weight_OI.detach())
    return Gemv(library.linnet_float32_rows, inputs, outputs, (weight,), bias_O)


def bfloat16_gemv(library: ctypes.CDLL, weight_OI: Tensor, bias_O: Tensor | None, max_rows: int = MAX_ROWS) -> Gemv:
    """Weights in bfloat16. Rows stay in float32: products are those of float32 with the widened weights."""
    outputs, inputs = weight_OI.shape
    expect(weight_OI.dtype == torch.bfloat16 and weight_OI.is_cpu, "bfloat16 on the CPU", weight_OI)
    return Gemv(library.linnet_bfloat16_rows, inputs, outputs, (weight_OI.contiguous(),), bias_O, max_rows)


def int8_gemv(library: ctypes.CDLL, numbers_OJ: Tensor, scale_O: Tensor, inputs: int, bias_O: Tensor | None) -> Gemv:
    """Weights in int8 with J a multiple of `BYTES`; scales in bfloat16.

    Rows are converted to fixed point (as in `ops.int8_linear`): an output differs from the definition by at most
    `max |x| sum |w| / 16254`, and the rounding of float32.
    """
    outputs, width = numbers_OJ.shape
    fits = width % BYTES == 0 and inputs <= width and len(scale_O) == outputs and numbers_OJ.is_cpu
    expect(fits, f"a multiple of {BYTES} inputs and a scale for each output", numbers_OJ, scale_O)
    expect(numbers_OJ.dtype == torch.int8 and scale_O.dtype == torch.bfloat16, "int8, bfloat16", numbers_OJ, scale_O)
    weights = numbers_OJ.contiguous(), width, scale_O.contiguous()
    return Gemv(library.linnet_int8_rows, inputs, outputs, weights, bias_O)


def int4_gemv(
    library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, outputs: int, group: int, bias_O: Tensor | None
) -> Gemv:
    """Weights in blocks (`to_int4_blocks`); rows are converted to fixed point as for `int8_gemv`.

    The number of rows is not limited where the processor adds up products of bytes.
    """
    blocks, groups, size = blocks_NGb.shape
    fits = outputs <= blocks * BLOCK and inputs <= groups * group and size == BLOCK * group // 2 + SCALE_BYTES
    expect(fits and blocks_NGb.is_contiguous() and blocks_NGb.is_cpu, f"blocks of groups of {group}", blocks_NGb)
    max_rows = library.linnet_max_int4_rows()
    return Gemv(library.linnet_int4_rows, inputs, outputs, (blocks_NGb, group), bias_O, max_rows)


Lookup = Callable[[int], Tensor]
"""The weights of an output as a row, `[1, I]`; `IndexError` for an output out of range."""


def float_lookup(library: ctypes.CDLL, weight_OI: Tensor) -> Lookup:
    """Look up rows of weights in bfloat16 or float32, the latter also for weights of other dtypes."""
    if weight_OI.dtype == torch.bfloat16:
        expect(weight_OI.is_cpu, "bfloat16 on the CPU", weight_OI)
        return _lookup(library.linnet_bfloat16_matrix, (weight_OI.detach().contiguous(),), weight_OI.shape[1])
    return _lookup(library.linnet_float32_matrix, (contiguous_float32(weight_OI.detach()),), weight_OI.shape[1])


def int8_lookup(library: ctypes.CDLL, numbers_OJ: Tensor, scale_O: Tensor, inputs: int) -> Lookup:
    """Look up rows of weights as `int8_gemv` takes them."""
    return _lookup(library.linnet_int8_matrix, (numbers_OJ.contiguous(), scale_O.contiguous()[:, None]), inputs)


def _lookup(function: Callable[..., None], parts: tuple[Tensor, ...], inputs: int) -> Lookup:
    """Look up in parts that have a row for each output."""
    steps, outputs = [part.shape[1] * part.element_size() for part in parts], len(parts[0])
    stride = Stride("token", dict(enumerate(steps)), outputs)

    def look_up(output: int) -> Tensor:
        if not 0 <= output < outputs:
            raise IndexError(f"output {output} of {outputs}")
        out_1I = empty(1, inputs)
        function(*(part[output] for part in parts), inputs, out_1I, 1, stride=stride)
        return out_1I

    return look_up


def int4_lookup(library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, outputs: int, group: int) -> Lookup:
    """Look up rows of weights in blocks (`to_int4_blocks`)."""
    groups, function, stride = blocks_NGb.shape[1], library.linnet_int4_matrix, Stride("token", {3: 1}, outputs)

    def look_up(output: int) -> Tensor:
        if not 0 <= output < outputs:
            raise IndexError(f"output {output} of {outputs}")
        out_1J = empty(1, groups * group)
        function(blocks_NGb, groups, group, output, 1, out_1J, 1, stride=stride)
        return out_1J[:, :inputs]

    return look_up


def int4_matrix(library: ctypes.CDLL, blocks_NGb: Tensor, inputs: int, group: int, first: int, count: int) -> Tensor:
    """Consecutive rows of the matrix that blocks represent, float32 `[count, I]`."""
    blocks, groups, _ = blocks_NGb.shape
    if first < 0 or first + count > blocks * BLOCK:
        raise IndexError(f"outputs {first} to {first + count - 1} of {blocks * BLOCK}")
    out_RJ = empty(count, groups * group)
    threads = min(torch.get_num_threads(), 1 + out_RJ.numel() // BYTES_PER_THREAD)
    library.linnet_int4_matrix(blocks_NGb, groups, group, first, count, out_RJ, threads)
    return out_RJ if out_RJ.shape[1] == inputs else out_RJ[:, :inputs]


def to_int4_blocks(pairs_OH: Tensor, scale_GO: Tensor) -> Tensor:
    """4-bit weights (`ops.int4_linear.Int4Weight`) in blocks of outputs, uint8 `[N, G, b]`, in the order of reading.

    A group has first the numbers, then the scales. Outputs that pad the last block are zeros.
    """
    groups, outputs = scale_GO.shape
    missing = -outputs % BLOCK
    numbers_OJ = torch.stack([pairs_OH & 15, pairs_OH >> 4], dim=-1).flatten(1)
    shape = (-1, BLOCK, groups, numbers_OJ.shape[1] // groups // RUN, 2, 4)
    numbers = F.pad(numbers_OJ, (0, 0, 0, missing)).view(shape)
    bytes_NGSL4 = (numbers[..., 0, :] | numbers[..., 1, :] << 4).permute(0, 2, 3, 1, 4)
    scale_NGL = F.pad(scale_GO, (0, missing)).view(groups, -1, BLOCK).transpose(0, 1).contiguous()
    return torch.cat([bytes_NGSL4.flatten(2), scale_NGL.view(torch.uint8)], dim=2)


def gather_from_blocks(blocks_NGb: Tensor, indices_R: Tensor) -> tuple[Tensor, Tensor]:
    """Integers uint8 `[R, J]` and scales bfloat16 `[G, R]` of some outputs."""
    (_, groups, size), rows = blocks_NGb.shape, indices_R.shape[0]  # which may be a symbol of a graph
    lanes_R, blocks_RGb, row_R = indices_R % BLOCK, blocks_NGb[indices_R // BLOCK], torch.arange(rows)
    numbers, scales = torch.split(blocks_RGb, [size - SCALE_BYTES, SCALE_BYTES], dim=2)
    bytes_RGS4 = numbers.reshape(rows, groups, (size - SCALE_BYTES) // (4 * BLOCK), BLOCK, 4)[row_R, :, :, lanes_R]
    numbers_RJ = torch.stack([bytes_RGS4 & 15, bytes_RGS4 >> 4], dim=3).flatten(1)
    scale_RGL = scales.contiguous().view(torch.bfloat16)
    return numbers_RJ, scale_RGL[row_R, :, lanes_R].t()


def in_huge_pages(x: Tensor) -> Tensor:
    """A copy of a contiguous tensor in pages of 2 MiB, where the system has them; smaller tensors are returned.

    Reading all weights once per token then translates 500 times fewer addresses. The pages are requested before the
    memory is written: pages that exist already would be merged one by one.
    """
    if x.nbytes < 2 * PAGE:
        return x
    copy = torch.empty_like(x)
    first, end = -(-copy.data_ptr() // PAGE) * PAGE, (copy.data_ptr() + copy.nbytes) // PAGE * PAGE
    if (madvise := _madvise()) is not None:
        madvise(first, end - first, _MADV_HUGEPAGE)  # a refusal makes no difference
    return copy.copy_(x)


@cache
def _madvise() -> Any:
    """The function of Linux's C library; None on other systems."""
    call = getattr(ctypes.CDLL(None), "madvise", None)
    if call is not None:
        call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return call
