"""The cost of a model, computed from its description alone; it is exactly that of the built model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
"""Bytes of an element of the state, and of an element that may be narrower (keys and values)."""
QUANTIZED_NBYTES: dict[str, Callable[[int, int], int]] = {"int8": int8_nbytes, "int4": int4_nbytes}
"""Bytes of a quantized matrix, from its numbers of outputs and inputs."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a training step with AdamW in float32 holds before its backward pass.

    Temporary memory of operations and the memory of the program itself are not included.

    activations: what the forward pass keeps for the backward pass, including the gradient of the head's input.
    """

    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model's parts. `head`: the norm and the matrix after the last layer.

    table, head_matrix: inputs and outputs of the embedding's table and of the head's matrix. tied: whether they are one
    matrix. encoder: the cost of a token of an encoder's input, with the keys and values that the decoder computes from
    it and the encoder's parameters. flops_of_pair: FLOPs of a token of the decoder with one of the input.

    `inputs` is the number of tokens of the encoder's input; by default it is that of the decoder's.
    """

    embedding: Cost
    blocks: Cost
    head: Cost
    table: tuple[int, int]
    head_matrix: tuple[int, int]
    tied: bool
    encoder: Cost = field(default_factory=Cost)
    flops_of_pair: int = 0

    @cached_property
    def whole(self) -> Cost:
        """The sum of all parts; shared parameters count once."""
        return self.embedding + self.blocks + self.head + self.encoder

    @property
    def parameters(self) -> int:
        """The number of all parameters; shared ones count once."""
        return self.whole.parameters

    @property
    def active_parameters(self) -> int:
        """The number of parameters that one token uses: fewer than all if there are experts."""
        return self.whole.active_parameters

    def flops(self, tokens: int, with_head: bool, inputs: int | None = None) -> int:
        """Forward FLOPs of one sequence of `tokens` tokens, with or without the head's product with the vocabulary."""
        inputs = tokens if inputs is None else inputs
        decoder = self.embedding + self.blocks + self.head if with_head else self.embedding + self.blocks
        return decoder.flops(tokens) + self.encoder.flops(inputs) + self.flops_of_pair * tokens * inputs

    def flops_per_token(self, tokens: int, with_head: bool, inputs: int | None = None) -> float:
        """Forward FLOPs per token of one sequence of `tokens` tokens."""
        return self.flops(tokens, with_head, inputs) / tokens

    def training_flops(self, tokens: int, with_head: bool, inputs: int | None = None) -> int:
        """FLOPs of forward and backward pass over one sequence of `tokens` tokens."""
        inputs = tokens if inputs is None else inputs
        decoder = self.embedding + self.blocks + self.head if with_head else self.embedding + self.blocks
        pairs = 3 * self.flops_of_pair * tokens * inputs
        return decoder.training_flops(tokens) + self.encoder.training_flops(inputs) + pairs

    def weights_bytes(self, dtype: WeightType) -> int:
        """Bytes of the weights as `inference.weights` holds them; `int8` and `int4` quantize linear maps and the table.

        A tied head in bfloat16 has a matrix beside the embedding's if the processor packs it.
        """
        elements = self.whole.parameters + self.whole.buffers
        if dtype in ELEMENT_BYTES:
            if dtype == "bfloat16" and self.tied and can_pack_bfloat16(torch.device("cpu")):
                elements += math.prod(self.head_matrix)
            return ELEMENT_BYTES[dtype] * elements
        matrices = [*self.whole.matrices, self.table]
        rounded = sum(QUANTIZED_NBYTES[dtype](outputs, inputs) for inputs, outputs in matrices)
        return 4 * (elements - sum(map(math.prod, matrices))) + rounded

    def state_bytes(
        self, tokens: int, element_bytes: int = 4, inputs: int | None = None, narrow_bytes: int | None = None
    ) -> int:
        """Bytes of decode state of one stream with room for `tokens` tokens (`Cost.state_bytes`)."""
        memory = self.encoder.state_bytes(tokens if inputs is None else inputs, element_bytes)
        return self.blocks.state_bytes(tokens, element_bytes, narrow_bytes) + memory

    def state_bytes_for_precision(self, weights: WeightType, tokens: int, inputs: int | None = None) -> int:
        """`state_bytes` with weights of this precision, as `inference.weights` holds them."""
        element_bytes, narrow_bytes = STATE_BYTES[weights]
        return self.state_bytes(tokens, element_bytes, inputs, narrow_bytes)

    def training_memory(self, sequences: int, tokens: int, inputs: int | None = None) -> TrainingMemory:
        """Bytes of a step over `sequences` of `tokens` tokens each, in float32, on a CPU.

        A single sequence needs slightly less, the kernels of a GPU about as much, and bfloat16 50 to 80 percent.
        """
        weights, buffers = 4 * self.parameters, 4 * self.whole.buffers
        elements = (self.embedding + self.blocks + self.head).activation_elements(sequences, tokens)
        elements += self.encoder.activation_elements(sequences, tokens if inputs is None else inputs)
        return TrainingMemory(weights + buffers, weights, 2 * weights, 4 * elements)


def model_cost(spec: ModelSpec) -> ModelCost:
    """The cost of a model, by parts."""
    blocks = _stack_cost(spec.blocks, spec, spec.first_place, spec.head.norm)
    blocks += _cross_layer_cost(spec.blocks, spec)
    narrow = spec.embedding.width or spec.d_model
    if spec.head.tied:
        blocks += projection_cost(spec.d_model, narrow)
    head_matrix = (narrow if spec.head.tied else spec.d_model, spec.vocab_size)
    return ModelCost(
        _embedding_cost(spec, spec.blocks),
        blocks,
        _head_cost(spec, *head_matrix),
        (narrow, spec.vocab_size),
        head_matrix,
        spec.head.tied,
        _encoder_cost(spec),
        sum(cross.flops_per_pair(place) for cross, place in _cross_attentions(spec)),
    )


def _stack_cost(blocks: Sequence[BlockSpec], spec: ModelSpec, first: Place, next_norm: NormSpec | None) -> Cost:
    """The blocks of a stack and the projections between them; `next_norm`: the norm after the stack."""
    cost, width, index = Cost(), spec.d_model, first.index
    for number, block in enumerate(blocks):
        place = replace(first, width=block.width or spec.d_model, index=index)
        cost += projection_cost(width, place.width) + block_cost(block, spec, place)
        width, index = place.width, index + block.repeat
        if block.norm.placement == "post" and block.norm.kind == "rms":
            cost += _norm_output_memory(blocks[number + 1 :], spec, width, next_norm)
    return cost + projection_cost(width, spec.d_model)


def _encoder_cost(spec: ModelSpec) -> Cost:
    """The cost of a token of the input in the encoder, and of the keys and values that the decoder computes from it."""
    if spec.encoder is None:
        return Cost()
    place = replace(spec.first_place, layers=spec.encoder.layers, whole=True, memory_width=0)
    cost = _stack_cost(spec.encoder.blocks, spec, place, spec.encoder.norm)
    cost += _cross_layer_cost(spec.encoder.blocks, spec) + Cost(activations_per_token=spec.d_model)
    if spec.encoder.norm is not None:
        cost += spec.encoder.norm.cost(spec.d_model)
    embedding = replace(_embedding_cost(spec, spec.encoder.blocks), parameters=0, matrices=())
    keys_values = sum((cross.memory_cost(place) for cross, place in _cross_attentions(spec)), Cost())
    return cost.without_state() + embedding + keys_values


def _cross_attentions(spec: ModelSpec) -> Iterator[tuple[CrossAttentionSpec, Place]]:
    """The cross-attention of each layer that has one, and its place."""
    for block in spec.blocks:
        if block.cross_attention is not None:
            place = replace(spec.first_place, width=block.width or spec.d_model)
            yield from [(block.cross_attention, place)] * block.repeat


def _cross_layer_cost(blocks: Sequence[BlockSpec], spec: ModelSpec) -> Cost:
    """The memory of values that the first layer saves for later ones, if the gradients of a later one need them."""
    by_name: dict[str, list[tuple[SublayerSpec, int]]] = {}
    for block in blocks:
        width = block.width or spec.d_model
        for part in block.parts.values():
            for name in part.cross_layer_values(width):
                by_name.setdefault(name, []).append((part, width))
    cost = Cost()
    for parts in by_name.values():
        if any(part.needs_cross_layer_gradients for part, _ in parts):
            first, width = parts[0]
            cost += first.cross_layer_cost(Place(width, spec.context_length))
    return cost


def block_cost(block: BlockSpec, spec: ModelSpec, first: Place | None = None) -> Cost:
    """The cost of all layers of a block, without a projection before it.

    first: the place of its first layer; by default that of the model's first layer, with the width of the block.
    """
    if first is None:
        first = replace(spec.first_place, width=block.width or spec.d_model)
    if block.share_weights:
        return _layer_cost(block, first, spec.embedding.skip).repeated(block.repeat, shared=True)
    places = (replace(first, index=first.index + index) for index in range(block.repeat))
    return sum((_layer_cost(block, place, spec.embedding.skip) for place in places), Cost())


def _layer_cost(block: BlockSpec, place: Place, skip: bool) -> Cost:
    """The sublayers of a layer and their norms. `skip`: whether it mixes the embedding into its input."""
    layer = block.mixer.cost(place) + block.norm.branch_cost(place.width)
    if skip:
        # The gradients of its two parameters need the input of the layer (in the first layer the embedding).
        layer += Cost(parameters=2, activations_per_token=place.width)
    if block.cross_attention is not None:
        layer += block.cross_attention.cost(place) + block.norm.branch_cost(place.width)
    if block.feed_forward is not None:
        layer += block.feed_forward.cost(place) + block.norm.branch_cost(place.width)
        if block.residual == "parallel" and block.norm.kind == "layer":
            layer += Cost(activations_per_token=-place.width)  # both norms keep the same input
    return layer


def _norm_output_memory(later: Sequence[BlockSpec], spec: ModelSpec, width: int, last: NormSpec | None) -> Cost:
    """The memory of an `rms` norm's output, unless the next module keeps it as its own input, which counts there.

    later: the blocks after the norm; last: the norm after all blocks.
    """
    if later:
        block = later[0]
        kept_there = spec.embedding.skip or block.norm.kind == "layer" or block.norm.placement in ("post", "output")
        projected = width != (block.width or spec.d_model)
    else:
        kept_there = last is None or last.kind == "layer"
        projected = width != spec.d_model
    return Cost() if kept_there or projected else Cost(activations_per_token=width)


def projection_cost(inputs: int, outputs: int) -> Cost:
    """The cost of the projection between two widths; nothing if they are equal."""
    if inputs == outputs:
        return Cost()
    return linear_cost(inputs, outputs, bias=False) + Cost(activations_per_token=inputs)


def _embedding_cost(spec: ModelSpec, blocks: Sequence[BlockSpec]) -> Cost:
    """The cost of the embedding; `blocks`: those that read it."""
    learned = spec.embedding.positions == "learned"
    width = spec.embedding.width or spec.d_model
    tables = Cost(parameters=spec.vocab_size * width + (spec.context_length * spec.d_model if learned else 0))
    norm = spec.embedding.norm.cost(spec.d_model) if spec.embedding.norm else Cost()
    if spec.embedding.norm and spec.embedding.norm.kind == "rms":
        norm += _norm_output_memory(blocks, spec, spec.d_model, None)
    return tables + projection_cost(width, spec.d_model) + norm


def _head_cost(spec: ModelSpec, inputs: int, outputs: int) -> Cost:
    """Norm and matrix; the gradients of its input and of a tied matrix are computed with the loss and kept."""
    norm = spec.head.norm.cost(spec.d_model) if spec.head.norm else Cost()
    matrix = linear_cost(inputs, outputs, spec.head.bias) + Cost(activations_per_token=inputs)
    if spec.head.tied:
        matrix = Cost(
            flops_per_token=matrix.flops_per_token,
            activations_per_token=inputs,
            activation_memory=(lambda *_: inputs * outputs,),
        )
    if spec.head.scale and spec.head.norm is not None and spec.head.norm.kind == "rms":
        norm += Cost(activations_per_token=spec.d_model)  # the output of the norm: the head reads a scaled copy
    value = Cost(parameters=inputs if spec.head.value else 0)  # read once in a text
    return norm + matrix + value
