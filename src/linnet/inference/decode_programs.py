"""A whole step of one stream in one call: from a token to its logits (`ops.native.program`).

Legend: `D` width, `V` vocabulary; rows are `[1, D]`.
"""

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.nn.norms import RowFunction, norm_row
from linnet.nn.packed_linear import gemv, gemv_of
from linnet.ops.native import library
from linnet.ops.native.elementwise import scale_add_row
from linnet.ops.native.program import Program, Recording, UnrecordableError

Step = Callable[[Tensor, int], Tensor]
"""A layer, or a projection between blocks: `[1, D]` and the position to `[1, D]`."""

Whole = Callable[[int, int], Tensor]
"""A token and its position to a row."""

EMBEDDED = "embedding"
"""The name in a step's record under which layers that read what the embedding gave find it."""


def record_program(step: Whole, record: AuxiliaryOutputs) -> Whole:
    """The same step, as one call from the second time on where it can be one (`_Recorded`), on a processor.

    `record`: where its layers leave values for later ones. A row that it gives may be overwritten by the next.
    """
    compiled = library(torch.device("cpu"))
    return step if compiled is None else _Recorded(step, compiled, record)


class _Recorded:
    """A step that is written down when it is first done, and then run as a program, if it can be one."""

    def __init__(self, step: Whole, compiled: ctypes.CDLL, record: AuxiliaryOutputs) -> None:
        self._step, self._compiled, self._record = step, compiled, record
        self._program: Program | None = None
        self._recordable, self._out = True, torch.empty(0)

    def __call__(self, token: int, position: int) -> Tensor:
        """See record_program."""
        if self._program is None or not self._program.is_valid():
            return self._first(token, position)
        self._program.run(token, position)
        return self._out

    @torch.inference_mode()
    def _first(self, token: int, position: int) -> Tensor:
        try:
            if self._recordable:
                return self._written_down(token, position)
        except UnrecordableError:
            self._recordable = False
        return self._step(token, position)

    def _written_down(self, token: int, position: int) -> Tensor:
        with Recording(token, position) as recording:
            self._out = self._step(token, position)
        self._recordable = not self._record.values.keys() - {EMBEDDED}  # a program leaves nothing
        self._program = recording.program(self._compiled) if self._recordable else None
        return self._out


def token_step(decoder: Decoder, steps: Sequence[Step], record: AuxiliaryOutputs) -> Whole | None:
    """From a token to what the head's matrix gives, `[1, V]`, through steps of the layers, in one call where it can be.

    None where embedding and head have no form for rows. `record`: of the steps; see record_program.
    """
    compiled = library(decoder.device)
    if compiled is None:
        return None
    embed, behind = decoder.embedding.row(compiled), _behind(decoder, compiled)
    if embed is None or behind is None:
        return None

    def step(token: int, position: int) -> Tensor:
        x_1D = through(steps, embed(token, position)[None], position, record)
        for part in behind:
            x_1D = part(x_1D)
        return x_1D

    return _Recorded(step, compiled, record)


def through(steps: Sequence[Step], embedded_11D: Tensor, position: int, record: AuxiliaryOutputs) -> Tensor:
    """What steps of the layers make of what the embedding gave, `[1, D]`; the record is that of this step alone."""
    record.values.clear()
    record.values[EMBEDDED], x_1D = embedded_11D, embedded_11D[0].float()
    for layer in steps:
        x_1D = layer(x_1D, position)
    return x_1D


def _behind(decoder: Decoder, compiled: ctypes.CDLL) -> list[RowFunction] | None:
    """What `Decoder.after_blocks` and `Decoder.logits` do; None where a part has no form for rows."""
    parts: list[RowFunction] = []
    for module in (decoder.project, decoder.norm, decoder.head_project):
        linear = None if module is None else gemv_of(module)
        part = norm_row(module, compiled) if linear is None else linear.of
        if module is not None:
            if part is None:
                return None
            parts.append(part)
    if decoder.spec.head.scale:
        scaled = scale_add_row(compiled, decoder.spec.d_model**-0.5)
        parts.append(lambda x_1D: scaled(x_1D, 0))
    if decoder.head is None:
        weight_VE = decoder.embedding.tokens.weight
        head = gemv(weight_VE, None) if weight_VE.dtype == torch.float32 else None
    else:
        head = gemv_of(decoder.head)
    return None if head is None else [*parts, head.of]
