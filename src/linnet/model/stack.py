"""The stack of a decoder or an encoder: layers with residual branches, in blocks of equal layers.

Shapes: `B` batch, `T` tokens of the chunk, `W` width of a block.
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

BRANCHES = ("mixer", "cross_attention", "feed_forward")
"""The branches of a layer, in order."""


class Layer(nn.Module):
    """A mixer, optional cross-attention to an encoder's memory, and a feed-forward, each on a residual branch.

    skip: whether the output of the embedding is mixed into its input (`EmbeddingSpec`).
    """

    def __init__(self, spec: BlockSpec, place: Place, skip: bool = False) -> None:
        super().__init__()
        self.skip = WeightedSum(1.0, 0.0) if skip else None
        self.placement, self.parallel = spec.norm.placement, spec.residual == "parallel"
        self.pre = self.placement in ("pre", "sandwich")
        mixer, feed_forward = spec.mixer.build(place), spec.feed_forward.build(place) if spec.feed_forward else None
        assert isinstance(mixer, Mixer) and (feed_forward is None or isinstance(feed_forward, FeedForward))
        self.mixer: Mixer = mixer
        self.mixer_norm = spec.norm.build(place.width)
        cross = spec.cross_attention
        self.cross_attention = None if cross is None else cross.build(place)
        self.cross_attention_norm = None if cross is None else spec.norm.build(place.width)
        self.feed_forward: FeedForward | None = feed_forward
        self.feed_forward_norm = spec.norm.build(place.width) if spec.feed_forward else None
        branches = [name for name in BRANCHES if getattr(self, name) is not None]
        self.output_norms = nn.ModuleDict(
            {name: spec.norm.build(place.width) for name in branches if self.placement == "sandwich"}
        )

    def forward(
        self,
        x_BTW: Tensor,
        states: LayerStates,
        layout: BatchLayout,
        embedded_BTW: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, W] -> [B, T, W]`; `embedded_BTW`: the output of the embedding, for a layer with `skip`."""
        if layout.record is not None and layout.record.outputs is not None:
            layout.record.outputs.append({})
        x_BTW = self.mix_embedding(x_BTW, embedded_BTW)
        input_BTW = x_BTW
        for name in BRANCHES:
            sublayer, norm, state = getattr(self, name), getattr(self, f"{name}_norm"), getattr(states, name)
            if sublayer is None or norm is None:
                continue
            if self.placement == "post":
                x_BTW = norm(x_BTW + run(sublayer, x_BTW, state, layout))
            elif self.placement == "output":
                x_BTW = x_BTW + norm(run(sublayer, x_BTW, state, layout))
            else:
                # Parallel branches, of a mixer and a feed-forward, read the same input.
                read_BTW = norm(input_BTW if self.parallel else x_BTW)
                out_BTW = run(sublayer, read_BTW, state, layout)
                x_BTW = x_BTW + (self.output_norms[name](out_BTW) if self.output_norms else out_BTW)
        return x_BTW

    def initial_states(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> LayerStates:
        """Empty states of its sublayers; the cache policy is that of the mixer."""
        arguments = (batch, capacity, device, dtype)
        mixer = self.mixer.initial_state(*arguments, cache_policy)
        feed_forward = None if self.feed_forward is None else self.feed_forward.initial_state(*arguments)
        cross_attention = None if self.cross_attention is None else self.cross_attention.initial_state(*arguments)
        return LayerStates(mixer, feed_forward, cross_attention)

    def mix_embedding(self, x_BTW: Tensor, embedded_BTW: Tensor | None) -> Tensor:
        """The input of the layer: the residual stream, mixed with the output of the embedding if it has `skip`."""
        if self.skip is None:
            return x_BTW
        assert embedded_BTW is not None
        mixed_BTW: Tensor = self.skip(x_BTW, embedded_BTW)
        return mixed_BTW


class Block(nn.Module):
    """Equal layers in sequence, after a projection if the width changes; `place`: the place of its first layer."""

    def __init__(self, spec: BlockSpec, width_before: int, place: Place, skip: bool = False) -> None:
        super().__init__()
        self.width, self.repeat = place.width, spec.repeat
        self.project = Linear(width_before, self.width, bias=False) if width_before != self.width else None
        indices = range(place.index, place.index + (1 if spec.share_weights else spec.repeat))
        self.layers = nn.ModuleList(Layer(spec, replace(place, index=index), skip) for index in indices)

    def forward(
        self,
        x: Tensor,
        states: Sequence[LayerStates],
        layout: BatchLayout,
        embedded_BTW: Tensor | None = None,
    ) -> Tensor:
        """`[B, T, width before] -> [B, T, W]`; `embedded_BTW`: the output of the embedding, for layers with `skip`."""
        if self.project is not None:
            x = self.project(x)
        for index, layer_states in enumerate(states):
            x = self.layer(index)(x, layer_states, layout, embedded_BTW)
        return x

    def unique_layers(self) -> list[Layer]:
        """The layers, each once."""
        return [self.layer(index) for index in range(len(self.layers))]

    def layer(self, index: int) -> Layer:
        """Layer `index` of this block in the order of a pass; the same for every index if weights are shared."""
        layer = self.layers[index % len(self.layers)]
        assert isinstance(layer, Layer)
        return layer


def build_blocks(specs: Sequence[BlockSpec], d_model: int, first: Place, skip: bool) -> nn.ModuleList:
    """The blocks of a stack with an input of width `d_model`; `first`: the place of its first layer (any width)."""
    blocks, width, index = nn.ModuleList(), d_model, first.index
    for spec in specs:
        place = replace(first, width=spec.width or d_model, index=index)
        blocks.append(Block(spec, width, place, skip))
        width, index = place.width, index + spec.repeat
    return blocks


def run_blocks(
    blocks: Iterable[nn.Module], x_BTD: Tensor, states: Sequence[LayerStates] | None, layout: BatchLayout
) -> Tensor:
    """From the output of the embedding to that of the last block, `[B, T, D] -> [B, T, W]`."""
    embedded_BTD, first = x_BTD, 0
    for block in blocks:
        assert isinstance(block, Block)
        block_states = [LayerStates()] * block.repeat if states is None else states[first : first + block.repeat]
        x_BTD = block(x_BTD, block_states, layout, embedded_BTD)
        first += block.repeat
    return x_BTD
