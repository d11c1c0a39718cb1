"""One stream, one token at a time, in as few operations as can be.

A step of decoding reads each weight once and does little else, so that on a processor what lies between the products
may take as long as they do: calls of modules, views, norms. Here are the same steps on rows `[1, D]`, as sublayers
(`Sublayer.decode_step`) and norms have them. What is served, `DecodeSteps.of` decides; everything else takes the
decoder's own pass.

Legend: `D` width; rows are `[1, D]`.
"""

import ctypes
from collections.abc import Sequence
from itertools import islice
from typing import Self

import torch
from torch import Tensor, nn

from linnet.inference.decode_programs import EMBEDDED, Step, Whole, through, token_step
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import DecodeStep
from linnet.model.decoder import Decoder
from linnet.model.stack import Block, Layer
from linnet.model.state import DecoderState, LayerStates
from linnet.nn.norms import RowFunction, norm_row
from linnet.nn.packed_linear import gemv_of, native_library_of


class DecodeSteps:
    """The layers of a decoder and their states; `read` advances them, and so does `logits`."""

    def __init__(
        self, decoder: Decoder, state: DecoderState, steps: list[Step], record: AuxiliaryOutputs, whole: Whole | None
    ) -> None:
        self._decoder, self._state, self._steps, self._record = decoder, state, steps, record
        self._whole = whole

    @classmethod
    def of(cls, decoder: Decoder, state: DecoderState) -> Self | None:
        """For one stream on a processor, its prompt read, where some layer has row steps; else None.

        In float32, and in bfloat16 where all layers have steps for it; rows are float32 then too.
        It holds the tensors of `state`, which nothing else may advance or crop from here on.
        """
        if decoder.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return None
        if decoder.dtype != torch.float32 and not (decoder.dtype == torch.bfloat16 and _in_bfloat16(decoder)):
            return None
        if len(state.positions) != 1 or state.position == 0:
            return None
        layers = list(zip(decoder.layers, state.by_layer(), strict=True))
        record = AuxiliaryOutputs()
        known = [_step_of(*layer, record) for layer in layers]
        if not any(known) or (decoder.dtype != torch.float32 and not all(known)):
            return None
        each = (step or _as_it_is(*layer, record) for step, layer in zip(known, layers, strict=True))
        steps: list[Step] = []
        for block in decoder.blocks_in_order():
            if block.project is not None:
                steps.append(_projection(block.project))
            steps += islice(each, block.repeat)
        return cls(decoder, state, steps, record, token_step(decoder, steps, record))

    def logits(self, token_11: Tensor) -> Tensor:
        """As `Decoder.logits` of one token: `[1, V]`, in float32 where the step is a program."""
        if self._whole is None:
            return self._decoder.logits(self.read(token_11))[:, 0]
        position = self._position()
        logits_1V = self._decoder.capped(self._whole(int(token_11), position).clone())
        self._state.positions = (position + 1,)
        return logits_1V

    @torch.inference_mode()
    def read(self, token_11: Tensor) -> Tensor:
        """As `Decoder.hidden` of one token: `[1, 1, D]`."""
        state, decoder, position = self._state, self._decoder, self._position()
        x_11D = decoder.embedding(token_11, BatchLayout(position))
        x_1D = through(self._steps, x_11D, position, self._record)
        state.positions = (position + 1,)
        return decoder.after_blocks(x_1D[None].to(x_11D.dtype))

    def _position(self) -> int:
        """Where the next token stands; `ValueError` where there is no room for it."""
        position = self._state.position
        if position >= self._state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        return position


def _in_bfloat16(decoder: Decoder) -> bool:
    """Whether every layer has row steps over weights and states of bfloat16."""
    layers = decoder.layers
    parts = [part for layer in layers for part in (layer.mixer, layer.feed_forward) if part is not None]
    plain = all(layer.skip is None and layer.cross_attention is None for layer in layers)
    return plain and all(part.bfloat16_decode for part in parts)


def block_steps(block: Block, states: Sequence[LayerStates], record: AuxiliaryOutputs) -> list[Step]:
    """The layers of a block, its projection left out; a layer without row steps runs as it is.

    record: of the step, what the embedding gave (`EMBEDDED`) and layers leave for later ones.
    """
    layers = [(block.layer(index), of_layer, record) for index, of_layer in enumerate(states)]
    return [_step_of(*layer) or _as_it_is(*layer) for layer in layers]


def _as_it_is(layer: Layer, states: LayerStates, record: AuxiliaryOutputs) -> Step:
    """`record`: of the step, what layers leave for later ones."""

    def step(x_1D: Tensor, position: int) -> Tensor:
        layout = BatchLayout(position, record=record)
        out_11D: Tensor = layer(x_1D[None], states, layout, record.values.get(EMBEDDED))
        return out_11D[0]

    return step


def _projection(module: nn.Module) -> Step:
    found = gemv_of(module)
    project = module if found is None else found.of
    return lambda x_1D, _: project(x_1D)


def _step_of(layer: Layer, states: LayerStates, record: AuxiliaryOutputs) -> Step | None:
    """As `Layer.forward`; None where one of its parts has no such form."""
    step = _branches(layer, states, record)
    if step is None or layer.skip is None:
        return step
    mix, values = layer.skip.row(), record.values
    return lambda x_1D, position: step(mix(x_1D, values[EMBEDDED][0]), position)


def _branches(layer: Layer, states: LayerStates, record: AuxiliaryOutputs) -> Step | None:
    compiled = next(filter(None, map(native_library_of, layer.modules())), None)  # norms are where products are
    mixer = _reading(layer, states, record, compiled)
    if mixer is None or layer.feed_forward is None:
        return mixer
    row = layer.feed_forward.decode_step(states.feed_forward, record)
    norm = norm_row(layer.feed_forward_norm, compiled)
    feed_forward = _branch(row, norm, layer.pre)
    if row is None or norm is None or feed_forward is None:
        return None
    if layer.parallel:
        return lambda x_1D, position: row(mixer(x_1D, position), norm(x_1D), position)
    return lambda x_1D, position: feed_forward(mixer(x_1D, position), position)


def _reading(layer: Layer, states: LayerStates, record: AuxiliaryOutputs, compiled: ctypes.CDLL | None) -> Step | None:
    """The mixer, and behind it attention to an encoder's memory where there is one."""
    mixer = _branch(layer.mixer.decode_step(states.mixer, record), norm_row(layer.mixer_norm, compiled), layer.pre)
    if mixer is None or layer.cross_attention is None:
        return mixer
    row = layer.cross_attention.decode_step(states.cross_attention, record)
    cross = _branch(row, norm_row(layer.cross_attention_norm, compiled), layer.pre)
    return None if cross is None else lambda x_1D, position: cross(mixer(x_1D, position), position)


def _branch(row: DecodeStep | None, norm: RowFunction | None, pre: bool) -> Step | None:
    if row is None or norm is None:
        return None
    if pre:
        return lambda x_1D, position: row(x_1D, norm(x_1D), position)
    return lambda x_1D, position: norm(row(x_1D, x_1D, position))
