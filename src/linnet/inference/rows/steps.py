"""One stream, one token at a time, in as few operations as can be.

A step of decoding reads each weight once and does little else, so that on a processor what lies between the products
may take as long as they do: calls of modules, views, norms. Here are the same steps on rows `[1, D]`, straight from the
weights. What it serves, `RowSteps.of` decides; everything else takes the decoder's own pass.

Legend: `D` width; rows are `[1, D]`.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Self

import torch
from torch import Tensor, nn

from linnet.inference.rows.key_value import key_value_row
from linnet.inference.rows.layers import Branch, RowFunction, feed_forward_of, norm_of
from linnet.inference.rows.maps import row_map_of
from linnet.inference.rows.ted import ted_row
from linnet.layers.contract import Mixer, Span, State
from linnet.layers.key_value import KeyValueState
from linnet.layers.mixers.attention import Attention
from linnet.layers.mixers.plga.module import Plga
from linnet.layers.mixers.ted.module import Ted
from linnet.layers.mixers.ted.state import TedState
from linnet.model.decoder import Block, Decoder, Layer
from linnet.model.state import DecoderState

MixerRow = Callable[[Tensor, Tensor, int], Tensor]
"""The row that is added to, the row that is read, its position."""

Step = Callable[[Tensor, int], Tensor]
"""A layer, or a projection between blocks: `[1, D]` and the position to `[1, D]`."""


class RowSteps:
    """The layers of a decoder and their states; `read` advances them."""

    def __init__(self, decoder: Decoder, state: DecoderState, steps: list[Step]) -> None:
        self._decoder, self._state, self._steps = decoder, state, steps

    @classmethod
    def of(cls, decoder: Decoder, state: DecoderState) -> Self | None:
        """For one stream in float32 on a processor, its prompt read, where some layer is known here; else None.

        It holds the tensors of `state`, which nothing else may advance or crop from here on.
        """
        if decoder.device.type != "cpu" or decoder.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return None
        if state.padding_B is not None or state.position == 0:
            return None
        layers = list(zip(decoder.layers, state.layers, strict=True))
        known = [_step_of(layer, held) for layer, held in layers]
        if not any(known):
            return None
        each = (step or _as_it_is(*layer) for step, layer in zip(known, layers, strict=True))
        steps: list[Step] = []
        for block in decoder.blocks_in_order():
            if block.project is not None:
                steps.append(_projection(block.project))
            steps += islice(each, block.repeat)
        return cls(decoder, state, steps)

    @torch.inference_mode()
    def read(self, token_11: Tensor) -> Tensor:
        """As `Decoder.hidden` of one token: `[1, 1, D]`."""
        state, decoder = self._state, self._decoder
        if state.position >= state.capacity:
            raise ValueError("1 more tokens: the state has room for 0")
        x_1D = decoder.embedding(token_11, state.span())[0]
        for step in self._steps:
            x_1D = step(x_1D, state.position)
        state.position += 1
        return decoder.after_blocks(x_1D[None])


def block_steps(block: Block, states: Sequence[State]) -> list[Step]:
    """The layers of a block, its projection left out; a layer that is not known here runs as it is."""
    layers = [(block.layer(index), state) for index, state in enumerate(states)]
    return [_step_of(layer, state) or _as_it_is(layer, state) for layer, state in layers]


def _as_it_is(layer: Layer, state: State) -> Step:
    def step(x_1D: Tensor, position: int) -> Tensor:
        out_11D: Tensor = layer(x_1D[None], state, Span(position))
        return out_11D[0]

    return step


def _projection(module: nn.Module) -> Step:
    project = row_map_of(module) or module
    return lambda x_1D, _: project(x_1D)


def _step_of(layer: Layer, state: State) -> Step | None:
    mixer, norm = _mixer_row(layer.mixer, state), norm_of(layer.mixer_norm)
    if mixer is None or norm is None:
        return None
    if layer.feed_forward is None:
        return _mixer_alone(layer.pre, mixer, norm)
    feed_forward, second_norm = feed_forward_of(layer.feed_forward), norm_of(layer.feed_forward_norm)
    if feed_forward is None or second_norm is None:
        return None
    return _whole(layer, mixer, norm, feed_forward, second_norm)


def _mixer_row(mixer: Mixer, state: State) -> MixerRow | None:
    if isinstance(mixer, Ted) and isinstance(state, TedState):
        return ted_row(mixer, state)
    if isinstance(mixer, Attention | Plga) and isinstance(state, KeyValueState):
        return key_value_row(mixer, state)
    return None


def _mixer_alone(pre: bool, mixer: MixerRow, norm: RowFunction) -> Step:
    if pre:
        return lambda x_1D, position: mixer(x_1D, norm(x_1D), position)
    return lambda x_1D, position: norm(mixer(x_1D, x_1D, position))


def _whole(layer: Layer, mixer: MixerRow, norm: RowFunction, feed_forward: Branch, second: RowFunction) -> Step:
    """As `Layer.forward`."""

    def pre(x_1D: Tensor, position: int) -> Tensor:
        x_1D = mixer(x_1D, norm(x_1D), position)
        return feed_forward(x_1D, second(x_1D))

    def parallel(x_1D: Tensor, position: int) -> Tensor:
        return feed_forward(mixer(x_1D, norm(x_1D), position), second(x_1D))

    def post(x_1D: Tensor, position: int) -> Tensor:
        x_1D = norm(mixer(x_1D, x_1D, position))
        return second(feed_forward(x_1D, x_1D))

    if not layer.pre:
        return post
    return parallel if layer.parallel else pre
