"""What a model costs, from its description alone; equal to the built model, exactly."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from linnet.layers.contract import Place, SublayerSpec
from linnet.layers.cross_attention import CrossAttentionSpec
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.cost import Cost, linear_cost
from linnet.nn.norms import NormSpec
from linnet.ops.int4_linear import int4_nbytes
from linnet.ops.int8_linear import int8_nbytes
from linnet.ops.linear import can_pack_bfloat16

WeightType = Literal["float32", "bfloat16", "int8", "int4"]
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
STATE_BYTES: dict[WeightType, tuple[int, int]] = {"float32": (4, 4), "bfloat16": (2, 2), "int8": (4, 2), "int4": (4, 2)}
"""Of a state's elements, and of those that may be narrower."""
QUANTIZED_NBYTES: dict[str, Callable[[int, int], int]] = {"int8": int8_nbytes, "int4": int4_nbytes}
"""Of a matrix of so many outputs and inputs."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a training step of AdamW in float32 holds before its backward pass; what a product needs meanwhile,
    and what the program itself takes, come on top.

    activations: what the forward pass keeps for the backward pass, the gradient of the head's input included.
    """

    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.moments + self.activations


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model's parts; `head` is the norm and matrix behind the last layer (tied: `embedding`'s).

    table: inputs and outputs of the embedding's table as a matrix, and head_matrix of the head's; tied: whether they
    are one. encoder: all that a token
    of an encoder's input costs, what the decoder makes of it included, with the encoder's parameters. flops_of_pair: of
    a token of the decoder with one of the input. Where `inputs`, tokens of the input, are not said, they are as many as
    the decoder's.
    """

    embedding: Cost
    blocks: Cost
    head: Cost
    table: tuple[int, int]
    head_matrix: tuple[int, int]
    tied: bool
    encoder: Cost = field(default_factory=Cost)
    flops_of_pair: int = 0

    def _of_decoder(self, with_head: bool = True) -> list[Cost]:
        return [self.embedding, self.blocks, self.head][: 2 + with_head]

    def _parts(self) -> list[Cost]:
        return [*self._of_decoder(), self.encoder]

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return sum(part.parameters for part in self._parts())

    @property
    def active_parameters(self) -> int:
        """Those that one token uses; fewer than all where there are experts."""
        return sum(part.active_parameters for part in self._parts())

    def flops(self, tokens: int, with_head: bool, inputs: int | None = None) -> int:
        """Forward FLOPs of one sequence of `tokens` tokens; without the head's product with the vocabulary or with."""
        inputs = tokens if inputs is None else inputs
        of_input = self.encoder.flops(inputs) + self.flops_of_pair * tokens * inputs
        return sum(part.flops(tokens) for part in self._of_decoder(with_head)) + of_input

    def flops_per_token(self, tokens: int, with_head: bool, inputs: int | None = None) -> float:
        """Forward FLOPs per token of one sequence of `tokens` tokens."""
        return self.flops(tokens, with_head, inputs) / tokens

    def training_flops(self, tokens: int, with_head: bool, inputs: int | None = None) -> int:
        """FLOPs of forward and backward pass over one sequence of `tokens` tokens."""
        inputs = tokens if inputs is None else inputs
        of_input = self.encoder.training_flops(inputs) + 3 * self.flops_of_pair * tokens * inputs
        return sum(part.training_flops(tokens) for part in self._of_decoder(with_head)) + of_input

    def weights_bytes(self, dtype: WeightType) -> int:
        """Bytes of the weights as `inference.weights` holds them; `int8` and `int4` round linear maps and the table.

        A tied head of bfloat16 has a matrix beside the embedding's where that is packed.
        """
        parts = sum(self._parts(), Cost())
        elements = parts.parameters + parts.buffers
        if dtype in ELEMENT_BYTES:
            if dtype == "bfloat16" and self.tied and can_pack_bfloat16(torch.device("cpu")):
                elements += math.prod(self.head_matrix)
            return ELEMENT_BYTES[dtype] * elements
        matrices = [*parts.matrices, self.table]
        rounded = sum(QUANTIZED_NBYTES[dtype](outputs, inputs) for inputs, outputs in matrices)
        return 4 * (elements - sum(map(math.prod, matrices))) + rounded

    def state_bytes(
        self, tokens: int, element_bytes: int = 4, inputs: int | None = None, narrow_bytes: int | None = None
    ) -> int:
        """Bytes of decode state of one stream with room for `tokens` tokens (`Cost.state_bytes`)."""
        of_input = self.encoder.state_bytes(tokens if inputs is None else inputs, element_bytes)
        return self.blocks.state_bytes(tokens, element_bytes, narrow_bytes) + of_input

    def state_bytes_for_precision(self, weights: WeightType, tokens: int, inputs: int | None = None) -> int:
        """The same beside weights as `inference.weights` holds them."""
        element_bytes, narrow_bytes = STATE_BYTES[weights]
        return self.state_bytes(tokens, element_bytes, inputs, narrow_bytes)

    def training_memory(self, sequences: int, tokens: int, inputs: int | None = None) -> TrainingMemory:
        """Bytes of a step over `sequences` of `tokens` tokens each, in float32, on a CPU.

        A single sequence keeps a little less, and a GPU's kernels about as much; bfloat16 half to four fifths.
        """
        weights = 4 * self.parameters
        buffers = 4 * sum(part.buffers for part in self._parts())
        kept = sum(part.activation_elements(sequences, tokens) for part in self._of_decoder())
        kept += self.encoder.activation_elements(sequences, tokens if inputs is None else inputs)
        return TrainingMemory(weights + buffers, weights, 2 * weights, 4 * kept)


def model_cost(spec: ModelSpec) -> ModelCost:
    """Add up the parts."""
    blocks = _stack_cost(spec.blocks, spec, _place(spec), spec.head.norm) + _cost_of_left(spec.blocks, spec)
    narrow = spec.embedding.width or spec.d_model
    if spec.head.tied:
        blocks += projection_cost(spec.d_model, narrow)
    head_matrix = (narrow if spec.head.tied else spec.d_model, spec.vocab_size)
    pair = sum(cross.flops_per_pair(place) for cross, place in _reading(spec))
    parts = _embedding_cost(spec), blocks, _head_cost(spec, *head_matrix)
    return ModelCost(*parts, (narrow, spec.vocab_size), head_matrix, spec.head.tied, _encoder_cost(spec), pair)


def _place(spec: ModelSpec) -> Place:
    """Of the decoder's first layer, but for its width."""
    return Place(spec.d_model, spec.context_length, layers=spec.layers, memory_width=spec.memory_width)


def _stack_cost(blocks: Sequence[BlockSpec], spec: ModelSpec, first: Place, behind: NormSpec | None) -> Cost:
    """The blocks of a stack and the projections between them; `behind`: the norm that follows."""
    cost, width, index = Cost(), spec.d_model, first.index
    for number, block in enumerate(blocks):
        place = replace(first, width=block.width or spec.d_model, index=index)
        cost += projection_cost(width, place.width) + _block_cost(block, place, spec.embedding.skip)
        width, index = place.width, index + block.repeat
        if block.norm.placement == "post" and block.norm.kind == "rms":
            cost += _kept_alone(blocks[number + 1 :], spec, width, behind)
    return cost + projection_cost(width, spec.d_model)


def _encoder_cost(spec: ModelSpec) -> Cost:
    """What a token of the input costs in the encoder, and where the decoder's layers make keys and values of it."""
    if spec.encoder is None:
        return Cost()
    place = replace(_place(spec), layers=spec.encoder.layers, whole=True, memory_width=0)
    cost = _stack_cost(spec.encoder.blocks, spec, place, spec.encoder.norm)
    cost += _cost_of_left(spec.encoder.blocks, spec) + Cost(activations_per_token=spec.d_model)
    if spec.encoder.norm is not None:
        cost += spec.encoder.norm.cost(spec.d_model)
    embedding = replace(_embedding_cost(spec, spec.encoder.blocks), parameters=0, matrices=())
    read = sum((cross.memory_cost(place) for cross, place in _reading(spec)), Cost())
    return cost.without_state() + embedding + read


def _reading(spec: ModelSpec) -> Iterator[tuple[CrossAttentionSpec, Place]]:
    """The cross-attention of each layer that has one, and its place."""
    for block in spec.blocks:
        if block.cross_attention is not None:
            place = replace(_place(spec), width=block.width or spec.d_model)
            yield from [(block.cross_attention, place)] * block.repeat


def _cost_of_left(blocks: Sequence[BlockSpec], spec: ModelSpec) -> Cost:
    """What the first layer that leaves values of a name keeps of them, where the gradients of a later one need them."""
    leaving: dict[str, list[tuple[SublayerSpec, int]]] = {}
    for block in blocks:
        width = block.width or spec.d_model
        for part in block.parts.values():
            for name in part.cross_layer_values(width):
                leaving.setdefault(name, []).append((part, width))
    needed = (parts for parts in leaving.values() if any(part.needs_cross_layer_gradients for part, _ in parts))
    firsts = (parts[0] for parts in needed)
    return sum((first.cross_layer_cost(Place(width, spec.context_length)) for first, width in firsts), Cost())


def block_cost(block: BlockSpec, spec: ModelSpec, first: int = 0) -> Cost:
    """All layers of a block, without the projection that may stand before it; `first`: number of its first layer."""
    place = replace(_place(spec), width=block.width or spec.d_model, index=first)
    return _block_cost(block, place, spec.embedding.skip)


def _block_cost(block: BlockSpec, first: Place, skip: bool) -> Cost:
    if block.share_weights:
        return _layer_cost(block, first, skip).repeated(block.repeat, shared=True)
    places = (replace(first, index=first.index + index) for index in range(block.repeat))
    return sum((_layer_cost(block, place, skip) for place in places), Cost())


def _layer_cost(block: BlockSpec, place: Place, skip: bool) -> Cost:
    """`skip`: two numbers, whose gradients need what they multiply: the stream before each layer, at first the
    embedding itself.
    """
    layer = block.mixer.cost(place) + block.norm.cost(place.width)
    if skip:
        layer += Cost(parameters=2, activations_per_token=place.width)
    if block.cross_attention is not None:
        layer += block.cross_attention.cost(place) + block.norm.cost(place.width)
    if block.feed_forward is not None:
        layer += block.feed_forward.cost(place) + block.norm.cost(place.width)
        if block.residual == "parallel" and block.norm.kind == "layer":
            layer += Cost(activations_per_token=-place.width)  # both norms keep the same input
    return layer


def _kept_alone(behind: Sequence[BlockSpec], spec: ModelSpec, width: int, last: NormSpec | None) -> Cost:
    """The output of an `rms` norm before blocks, or `last`, where the reader does not keep what it reads."""
    following = behind[0] if behind else None
    projected = width != (spec.d_model if following is None else following.width or spec.d_model)
    norm = last if following is None else following.norm
    keeps = (
        projected
        or (following is not None and spec.embedding.skip)
        or norm is None
        or norm.kind == "layer"
        or (following is not None and following.norm.placement == "post")
    )
    return Cost() if keeps else Cost(activations_per_token=width)


def projection_cost(inputs: int, outputs: int) -> Cost:
    """What stands where the width changes; nothing where it does not."""
    if inputs == outputs:
        return Cost()
    return linear_cost(inputs, outputs, bias=False) + Cost(activations_per_token=inputs)


def _embedding_cost(spec: ModelSpec, blocks: Sequence[BlockSpec] | None = None) -> Cost:
    """`blocks`: that read it; None: the decoder's."""
    learned = spec.embedding.positions == "learned"
    width = spec.embedding.width or spec.d_model
    tables = Cost(parameters=spec.vocab_size * width + (spec.context_length * spec.d_model if learned else 0))
    norm = spec.embedding.norm.cost(spec.d_model) if spec.embedding.norm else Cost()
    if spec.embedding.norm and spec.embedding.norm.kind == "rms":
        norm += _kept_alone(spec.blocks if blocks is None else blocks, spec, spec.d_model, None)
    return tables + projection_cost(width, spec.d_model) + norm


def _head_cost(spec: ModelSpec, inputs: int, outputs: int) -> Cost:
    """Norm and matrix; the gradients of its input, and of a tied matrix, are made with the loss and kept."""
    norm = spec.head.norm.cost(spec.d_model) if spec.head.norm else Cost()
    matrix = linear_cost(inputs, outputs, spec.head.bias) + Cost(activations_per_token=inputs)
    if spec.head.tied:
        again = inputs * outputs
        matrix = Cost(
            flops_per_token=matrix.flops_per_token, activations_per_token=inputs, activation_memory=(lambda *_: again,)
        )
    if spec.head.scale and spec.head.norm is not None and spec.head.norm.kind == "rms":
        norm += Cost(activations_per_token=spec.d_model)  # its output, of which what is read is a copy
    return norm + matrix
