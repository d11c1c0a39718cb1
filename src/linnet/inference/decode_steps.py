"""Decoding one stream token by token with few operations, and whole steps as one native call.

A decoding step reads each weight once and does little else, so on a processor the calls between the products (modules,
views, norms) may take as long as the products. `DecodeSteps` runs the same steps on rows `[1, D]`, in the forms that
sublayers (`Sublayer.decode_step`) and norms provide; `DecodeSteps.of` decides which models have them, and all others
use the ordinary pass of the decoder. If a whole step consists of native calls, these are recorded at the first token
and then run as a program, one call per token (`ops.native.program`).

Legend: `D` width, `V` vocabulary; rows are `[1, D]`.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Self

import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import DecodeStep, Sublayer
from linnet.layers.state import State
from linnet.model.decoder import Decoder
from linnet.model.stack import Block, Layer
from linnet.model.state import DecoderState, LayerStates
from linnet.nn.norms import RowFunction, norm_row
from linnet.nn.packed_linear import gemv, gemv_of, native_library_of
from linnet.ops.native import library
from linnet.ops.native.elementwise import scale_add_row
from linnet.ops.native.program import Program, Recording, UnrecordableError

LayerStep = Callable[[Tensor, int], Tensor]
"""A layer, or a projection between blocks: `[1, D]` and the position -> `[1, D]`."""

TokenStep = Callable[[int, int], Tensor]
"""A token and its position -> a row."""

EMBEDDED = "embedding"
"""The name of the embedding's output among the values that layers leave for later ones."""


class DecodeSteps:
    """The layers of a decoder and their states, which `read` and `logits` advance."""

    def __init__(
        self,
        decoder: Decoder,
        state: DecoderState,
        steps: list[LayerStep],
        record: AuxiliaryOutputs,
        whole: TokenStep | None,
    ) -> None:
        self._decoder, self._state, self._steps, self._record = decoder, state, steps, record
        self._whole = whole

    @classmethod
    def of(cls, decoder: Decoder, state: DecoderState) -> Self | None:
        """The steps for one stream on a CPU whose prompt has been read; None if no layer has a decode step.

        Weights and states are float32, or bfloat16 if all layers have steps for it; rows are float32 in both cases. The
        steps hold the tensors of `state`, which nothing else may advance or crop from here on.
        """
        if decoder.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return None
        if decoder.dtype != torch.float32:
            sublayers = (part for layer in decoder.layers for part in (layer.mixer, layer.feed_forward))
            plain = all(layer.skip is None and layer.cross_attention is None for layer in decoder.layers)
            has_steps = plain and all(part.bfloat16_decode for part in sublayers if part is not None)
            if decoder.dtype != torch.bfloat16 or not has_steps:
                return None
        if len(state.positions) != 1 or state.position == 0:
            return None
        layers = list(zip(decoder.layers, state.by_layer(), strict=True))
        record = AuxiliaryOutputs()
        known = [_layer_step(*layer, record) for layer in layers]
        if not any(known) or (decoder.dtype != torch.float32 and not all(known)):
            return None
        each = (step or _ordinary_step(*layer, record) for step, layer in zip(known, layers, strict=True))
        steps: list[LayerStep] = []
        for block in decoder.blocks_in_order():
            if block.project is not None:
                steps.append(_projection(block.project))
            steps += islice(each, block.repeat)
        return cls(decoder, state, steps, record, token_step(decoder, steps, record))

    @property
    def is_program(self) -> bool:
        """True if the last step was, or recorded, one native call."""
        return isinstance(self._whole, _RecordedStep) and self._whole._program is not None

    def logits(self, token_11: Tensor) -> Tensor:
        """`Decoder.logits` of one token: `[1, V]`, in float32 if the whole step has a form for rows."""
        if self._whole is None:
            return self._decoder.logits(self.read(token_11))[:, 0]
        position = self._position()
        logits_1V = self._decoder.capped(self._whole(int(token_11), position).clone())
        self._state.positions = (position + 1,)
        return logits_1V

    @torch.inference_mode()
    def read(self, token_11: Tensor) -> Tensor:
        """`Decoder.hidden` of one token: `[1, 1, D]`."""
        state, decoder, position = self._state, self._decoder, self._position()
        x_11D, self._record.token = decoder.embedding(token_11, BatchLayout(position)), int(token_11)
        x_1D = run_layers(self._steps, x_11D, position, self._record)
        state.positions = (position + 1,)
        return decoder.after_blocks(x_1D[None].to(x_11D.dtype))

    def _position(self) -> int:
        """The position of the next token; `ValueError` if the state has no room for it."""
        position = self._state.position
        if position >= self._state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        return position


def block_steps(block: Block, states: Sequence[LayerStates], record: AuxiliaryOutputs) -> list[LayerStep]:
    """The steps of the layers of a block, without its projection; a layer without a decode step runs its ordinary pass.

    record: the embedding's output (`EMBEDDED`) and the values that layers leave for later ones.
    """
    layers = [(block.layer(index), of_layer, record) for index, of_layer in enumerate(states)]
    return [_layer_step(*layer) or _ordinary_step(*layer) for layer in layers]


def _ordinary_step(layer: Layer, states: LayerStates, record: AuxiliaryOutputs) -> LayerStep:
    """The ordinary pass of a layer as a step."""

    def step(x_1D: Tensor, position: int) -> Tensor:
        tokens_11 = None if record.token is None else torch.tensor([[record.token]], device=x_1D.device)
        layout = BatchLayout(position, record=record, tokens_BT=tokens_11)
        out_11D: Tensor = layer(x_1D[None], states, layout, record.values.get(EMBEDDED))
        return out_11D[0]

    return step


def _projection(module: nn.Module) -> LayerStep:
    product = gemv_of(module)
    project = module if product is None else product.of
    return lambda x_1D, _: project(x_1D)


def _layer_step(layer: Layer, states: LayerStates, record: AuxiliaryOutputs) -> LayerStep | None:
    """`Layer.forward` for rows; None if one of its sublayers or norms has no form for rows."""
    native = next(filter(None, map(native_library_of, layer.modules())), None)  # norms run where products run
    parts: list[tuple[Sublayer | None, State | None, nn.Module | None]] = [
        (layer.mixer, states.mixer, layer.mixer_norm),
        (layer.cross_attention, states.cross_attention, layer.cross_attention_norm),
        (layer.feed_forward, states.feed_forward, layer.feed_forward_norm),
    ]
    branches: list[tuple[DecodeStep, RowFunction]] = []
    for sublayer, state, norm in parts:
        if sublayer is None:
            continue
        row, row_of_norm = sublayer.decode_step(state, record), norm_row(norm, native)
        if row is None or row_of_norm is None:
            return None
        branches.append((row, row_of_norm))
    if layer.placement in ("output", "sandwich"):
        after = [norm_row(norm, native) for norm in layer.output_norms.values()]
        return _step_with_output_norms(layer, branches, [norm for norm in after if norm is not None], record)
    pre, values = layer.pre, record.values
    skip = None if layer.skip is None else layer.skip.row()
    parallel = branches.pop() if layer.parallel and layer.feed_forward is not None else None

    def step(x_1D: Tensor, position: int) -> Tensor:
        if skip is not None:
            x_1D = skip(x_1D, values[EMBEDDED][0])
        out_1D = x_1D
        for run, norm_of in branches:
            out_1D = run(out_1D, norm_of(out_1D), position) if pre else norm_of(run(out_1D, out_1D, position))
        if parallel is not None:  # the feed-forward reads what the mixer reads
            run, norm_of = parallel
            out_1D = run(out_1D, norm_of(x_1D), position)
        return out_1D

    return step


def _step_with_output_norms(
    layer: Layer,
    branches: Sequence[tuple[DecodeStep, RowFunction]],
    after: Sequence[RowFunction],
    record: AuxiliaryOutputs,
) -> LayerStep:
    """A step of a layer whose branches are normalized before they are added; after: the second norms of `sandwich`."""
    skip, values = None if layer.skip is None else layer.skip.row(), record.values

    def step(x_1D: Tensor, position: int) -> Tensor:
        if skip is not None:
            x_1D = skip(x_1D, values[EMBEDDED][0])
        zero_1D = torch.zeros_like(x_1D)
        for index, (run, norm_of) in enumerate(branches):
            if after:
                x_1D = x_1D + after[index](run(zero_1D, norm_of(x_1D), position))
            else:
                x_1D = x_1D + norm_of(run(zero_1D, x_1D, position))
        return x_1D

    return step


def record_program(step: TokenStep, record: AuxiliaryOutputs) -> TokenStep:
    """The same step on a CPU; one native call from the second token on, if it can be recorded.

    record: values that layers leave for later ones. A returned row may be overwritten by the next call.
    """
    compiled = library(torch.device("cpu"))
    return step if compiled is None else _RecordedStep(step, compiled, record)


@dataclass
class _RecordedStep:
    """A step that is recorded when it first runs, and then run as a program if possible."""

    step: TokenStep
    compiled: ctypes.CDLL
    record: AuxiliaryOutputs
    _program: Program | None = field(default=None, init=False)
    _recordable: bool = field(default=True, init=False)
    _out: Tensor = field(default_factory=partial(torch.empty, 0), init=False)

    def __call__(self, token: int, position: int) -> Tensor:
        if self._program is not None and self._program.is_valid():
            self._program.run(token, position)
            return self._out
        with torch.inference_mode():
            if not self._recordable:
                return self.step(token, position)
            try:
                with Recording(token, position) as recording:
                    self._out = self.step(token, position)
            except UnrecordableError:
                self._recordable = False
                return self.step(token, position)
            self._recordable = not self.record.values.keys() - {EMBEDDED}  # a program leaves no values for layers
            self._program = recording.program(self.compiled) if self._recordable else None
            return self._out


def token_step(decoder: Decoder, steps: Sequence[LayerStep], record: AuxiliaryOutputs) -> TokenStep | None:
    """From a token to the head's product, `[1, V]`, through the steps of the layers; one native call if possible.

    None if embedding or head has no form for rows. record: that of the steps (`record_program`).
    """
    compiled = library(decoder.device)
    if compiled is None:
        return None
    embed, outputs = decoder.embedding.row(compiled), _output_parts(decoder, compiled)
    if embed is None or outputs is None:
        return None

    def step(token: int, position: int) -> Tensor:
        record.token = token
        x_1D = run_layers(steps, embed(token, position)[None], position, record)
        for part in outputs:
            x_1D = part(x_1D)
        return x_1D

    return _RecordedStep(step, compiled, record)


def run_layers(steps: Sequence[LayerStep], embedded_11D: Tensor, position: int, record: AuxiliaryOutputs) -> Tensor:
    """Run the steps of the layers on the embedding's output, `[1, D]`; `record` then holds the values of this step."""
    record.values.clear()
    record.values[EMBEDDED], x_1D = embedded_11D, embedded_11D[0].float()
    for layer in steps:
        x_1D = layer(x_1D, position)
    return x_1D


def _output_parts(decoder: Decoder, compiled: ctypes.CDLL) -> list[RowFunction] | None:
    """`Decoder.after_blocks` and `Decoder.logits` for rows; None if a part has no such form."""
    parts: list[RowFunction] = []
    for module in (decoder.project, decoder.norm, decoder.head_project):
        linear = None if module is None else gemv_of(module)
        part = norm_row(module, compiled) if linear is None else linear.of
        if module is not None:
            if part is None:
                return None
            parts.append(part)
    factor = decoder.spec.head.factor(decoder.spec.d_model)
    if factor is not None:
        scaled = scale_add_row(compiled, factor)
        parts.append(lambda x_1D: scaled(x_1D, 0))
    if decoder.head is None:
        weight_VE = decoder.embedding.tokens.weight
        head = gemv(weight_VE, None) if weight_VE.dtype == torch.float32 else None
    else:
        head = gemv_of(decoder.head)
    return None if head is None else [*parts, head.of]
