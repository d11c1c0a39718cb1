"""The stack of a model: layers on residual branches, in blocks of equal ones. A decoder has one, and so has an encoder.

Legend: `B` batch, `T` tokens of the chunk, `W` width of a block.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import FeedForward, Mixer, Place
from linnet.layers.passes import run
from linnet.model.spec import BlockSpec
from linnet.model.state import LayerStates
from linnet.nn.linear import Linear, WeightedSum


class Layer(nn.Module):
    """A mixer, maybe attention to an encoder's memory, and a feed-forward, each on a residual branch."""

    def __init__(self, spec: BlockSpec, place: Place, skip: bool = False) -> None:
        """`skip`: it reads the embedding too (`EmbeddingSpec`)."""
        super().__init__()
        self.skip = WeightedSum(1.0, 0.0) if skip else None
        self.pre, self.parallel = spec.norm.placement == "pre", spec.residual == "parallel"
        mixer, feed_forward = spec.mixer.build(place), spec.feed_forward.build(place) if spec.feed_forward else None
        assert isinstance(mixer, Mixer) and (feed_forward is None or isinstance(feed_forward, FeedForward))
        self.mixer: Mixer = mixer
        self.mixer_norm = spec.norm.build(place.width)
        cross = spec.cross_attention
        self.cross_attention = None if cross is None else cross.build(place)
        self.cross_attention_norm = None if cross is None else spec.norm.build(place.width)
        self.feed_forward: FeedForward | None = feed_forward
        self.feed_forward_norm = spec.norm.build(place.width) if spec.feed_forward else None

    def forward(
        self,
        x_BTW: Tensor,
        states: LayerStates,
        layout: BatchLayout,
        embedded_BTW: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, W] -> [B, T, W]`; what the embedding gave, where it is read."""
        if layout.record is not None:
            layout.record.begin_layer()
        x_BTW = self.mix_embedding(x_BTW, embedded_BTW)
        if not self.pre:
            x_BTW = self.mixer_norm(x_BTW + run(self.mixer, x_BTW, states.mixer, layout))
            if self.cross_attention is not None and self.cross_attention_norm is not None:
                x_BTW = self.cross_attention_norm(
                    x_BTW + run(self.cross_attention, x_BTW, states.cross_attention, layout)
                )
            if self.feed_forward is not None and self.feed_forward_norm is not None:
                x_BTW = self.feed_forward_norm(x_BTW + run(self.feed_forward, x_BTW, states.feed_forward, layout))
            return x_BTW
        before_BTW = x_BTW
        x_BTW = x_BTW + run(self.mixer, self.mixer_norm(x_BTW), states.mixer, layout)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            read_BTW = self.cross_attention_norm(x_BTW)
            x_BTW = x_BTW + run(self.cross_attention, read_BTW, states.cross_attention, layout)
        if self.feed_forward is not None and self.feed_forward_norm is not None:
            read_BTW = self.feed_forward_norm(before_BTW if self.parallel else x_BTW)
            x_BTW = x_BTW + run(self.feed_forward, read_BTW, states.feed_forward, layout)
        return x_BTW

    def initial_states(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> LayerStates:
        """Empty states; `retention`: the mixer's."""
        form = (batch, capacity, device, dtype)
        feed_forward = None if self.feed_forward is None else self.feed_forward.initial_state(*form)
        cross_attention = None if self.cross_attention is None else self.cross_attention.initial_state(*form)
        return LayerStates(self.mixer.initial_state(*form, cache_policy), feed_forward, cross_attention)

    def mix_embedding(self, x_BTW: Tensor, embedded_BTW: Tensor | None) -> Tensor:
        """The input of the mixer: the stream, mixed with the output of the embedding if the layer reads it."""
        if self.skip is None:
            return x_BTW
        assert embedded_BTW is not None
        mixed_BTW: Tensor = self.skip(x_BTW, embedded_BTW)
        return mixed_BTW


class Block(nn.Module):
    """Equal layers in sequence, after a projection if the width changes."""

    def __init__(self, spec: BlockSpec, width_before: int, place: Place, skip: bool = False) -> None:
        """`place`: of its first layer. `skip`: its layers read the embedding too."""
        super().__init__()
        self.width = place.width
        changes = width_before != self.width
        self.project = Linear(width_before, self.width, bias=False) if changes else None
        sets_of_weights = 1 if spec.share_weights else spec.repeat
        places = (replace(place, index=place.index + number) for number in range(sets_of_weights))
        self.layers = nn.ModuleList(Layer(spec, place, skip) for place in places)
        self.repeat = spec.repeat

    def forward(
        self,
        x: Tensor,
        states: Sequence[LayerStates],
        layout: BatchLayout,
        embedded_BTW: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, width before] -> [B, T, W]`; what the embedding gave, where layers read it."""
        if self.project is not None:
            x = self.project(x)
        for index, of_layer in enumerate(states):
            x = self.layer(index)(x, of_layer, layout, embedded_BTW)
        return x

    def unique_layers(self) -> list[Layer]:
        """The layers with weights of their own, each once."""
        return [self.layer(index) for index in range(len(self.layers))]

    def layer(self, index: int) -> Layer:
        """Layer `index` of this block in the order of a pass; with shared weights always the same one."""
        layer = self.layers[index % len(self.layers)]
        assert isinstance(layer, Layer)
        return layer


def build_blocks(specs: Sequence[BlockSpec], d_model: int, first: Place, skip: bool) -> nn.ModuleList:
    """The blocks of a stack behind a width of `d_model`; `first`: place of its first layer, but for the width."""
    blocks, width, index = nn.ModuleList(), d_model, first.index
    for spec in specs:
        place = replace(first, width=spec.width or d_model, index=index)
        blocks.append(Block(spec, width, place, skip))
        width, index = place.width, index + spec.repeat
    return blocks


def run_blocks(
    blocks: Iterable[nn.Module], x_BTD: Tensor, states: Sequence[LayerStates] | None, layout: BatchLayout
) -> Tensor:
    """What the blocks of a stack make of what the embedding gave: `[B, T, D] -> [B, T, W]`, W that of the last."""
    embedded_BTD, first = x_BTD, 0
    for block in blocks:
        assert isinstance(block, Block)
        own = [LayerStates()] * block.repeat if states is None else states[first : first + block.repeat]
        x_BTD = block(x_BTD, own, layout, embedded_BTD)
        first += block.repeat
    return x_BTD
