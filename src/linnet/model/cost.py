"""What a model costs, from its description alone; equal to the built model, exactly."""

from dataclasses import dataclass
from typing import Literal

import torch

from linnet.layers.contract import Place, SublayerSpec
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.cost import Cost, linear_cost
from linnet.ops.bfloat16_linear import can_pack

WeightType = Literal["float32", "bfloat16", "int8"]
ELEMENT_BYTES: dict[WeightType, int] = {"float32": 4, "bfloat16": 2, "int8": 1}
SCALE_BYTES = 8
"""Beside each output of a map with weights of 8 bits: its scale and the offset of its fast form."""


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

    head_matrix: outputs and inputs of the head's matrix. tied: whether it is the embedding's.
    """

    embedding: Cost
    blocks: Cost
    head: Cost
    head_matrix: tuple[int, int]
    tied: bool

    def _parts(self, with_head: bool = True) -> list[Cost]:
        return [self.embedding, self.blocks, self.head][: 2 + with_head]

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return sum(part.parameters for part in self._parts())

    @property
    def active_parameters(self) -> int:
        """Those that one token uses; fewer than all where there are experts."""
        return sum(part.active_parameters for part in self._parts())

    def flops(self, tokens: int, with_head: bool) -> int:
        """Forward FLOPs of one sequence of `tokens` tokens; without the head's product with the vocabulary or with."""
        return sum(part.flops(tokens) for part in self._parts(with_head))

    def flops_per_token(self, tokens: int, with_head: bool) -> float:
        """Forward FLOPs per token of one sequence of `tokens` tokens."""
        return self.flops(tokens, with_head) / tokens

    def training_flops(self, tokens: int, with_head: bool) -> int:
        """FLOPs of forward and backward pass over one sequence of `tokens` tokens."""
        return sum(part.training_flops(tokens) for part in self._parts(with_head))

    def weights_bytes(self, dtype: WeightType) -> int:
        """Bytes of the weights as `inference.weights` holds them: `int8` for the matrices of linear maps, float32 else.

        A tied head of 8 bits has a matrix beside the embedding's, and so has one of bfloat16 where that is packed.
        """
        parts = sum(self._parts(), Cost())
        elements = parts.parameters + parts.buffers
        if dtype == "bfloat16" and self.tied and can_pack(torch.device("cpu")):
            elements += self.head_matrix[0] * self.head_matrix[1]
        if dtype != "int8":
            return ELEMENT_BYTES[dtype] * elements
        kept = sum(inputs * outputs for inputs, outputs in parts.matrices)
        matrices = [*parts.matrices, self.head_matrix] if self.tied else parts.matrices
        packed = sum(inputs * outputs + SCALE_BYTES * outputs for inputs, outputs in matrices)
        return 4 * (elements - kept) + packed

    def state_bytes(self, tokens: int, element_bytes: int = 4) -> int:
        """Bytes of decode state of one stream with room for `tokens` tokens."""
        return self.blocks.state_bytes(tokens, element_bytes)

    def training_memory(self, sequences: int, tokens: int) -> TrainingMemory:
        """Bytes of a step over `sequences` of `tokens` tokens each, in float32, on a CPU.

        A single sequence keeps a little less, and a GPU's kernels about as much; bfloat16 products about half.
        """
        weights = 4 * self.parameters
        buffers = 4 * sum(part.buffers for part in self._parts())
        kept = sum(part.kept(sequences, tokens) for part in self._parts())
        return TrainingMemory(weights + buffers, weights, 2 * weights, 4 * kept)


def model_cost(spec: ModelSpec) -> ModelCost:
    """Add up the parts."""
    blocks, width = Cost(), spec.d_model
    for index, block in enumerate(spec.blocks):
        first = sum(before.repeat for before in spec.blocks[:index])
        blocks += projection_cost(width, block.width or spec.d_model) + block_cost(block, spec, first)
        width = block.width or spec.d_model
        if block.norm.placement == "post" and block.norm.kind == "rms":
            blocks += _kept_alone(spec, index + 1, width)
    blocks += projection_cost(width, spec.d_model) + _cost_of_left(spec)
    narrow = spec.embedding.width or spec.d_model
    if spec.head.tied:
        blocks += projection_cost(spec.d_model, narrow)
    head_matrix = (narrow if spec.head.tied else spec.d_model, spec.vocab_size)
    return ModelCost(_embedding_cost(spec), blocks, _head_cost(spec, *head_matrix), head_matrix, spec.head.tied)


def _cost_of_left(spec: ModelSpec) -> Cost:
    """What the first layer that leaves values of a name keeps of them, where the gradients of a later one need them."""
    leaving: dict[str, list[tuple[SublayerSpec, int]]] = {}
    for block in spec.blocks:
        width = block.width or spec.d_model
        for part in filter(None, (block.mixer, block.feed_forward)):
            for field in part.leaves(width):
                leaving.setdefault(field, []).append((part, width))
    needed = (parts for parts in leaving.values() if any(part.needs_left for part, _ in parts))
    firsts = (parts[0] for parts in needed)
    return sum((first.cost_of_left(Place(width, spec.context_length)) for first, width in firsts), Cost())


def block_cost(block: BlockSpec, spec: ModelSpec, first: int = 0) -> Cost:
    """All layers of a block, without the projection that may stand before it; `first`: number of its first layer."""
    width = block.width or spec.d_model
    places = [Place(width, spec.context_length, first + index, spec.layers) for index in range(block.repeat)]
    if block.share_weights:
        return _layer_cost(block, places[0], spec.embedding.skip).repeated(block.repeat, shared=True)
    return sum((_layer_cost(block, place, spec.embedding.skip) for place in places), Cost())


def _layer_cost(block: BlockSpec, place: Place, skip: bool) -> Cost:
    """`skip`: two numbers, whose gradients need what they multiply: the stream before each layer, at first the
    embedding itself.
    """
    layer = block.mixer.cost(place) + block.norm.cost(place.width)
    if skip:
        layer += Cost(parameters=2, kept_per_token=place.width)
    if block.feed_forward is not None:
        layer += block.feed_forward.cost(place) + block.norm.cost(place.width)
        if block.residual == "parallel" and block.norm.kind == "layer":
            layer += Cost(kept_per_token=-place.width)  # both norms keep the same input
    return layer


def _kept_alone(spec: ModelSpec, reader: int, width: int) -> Cost:
    """The output of an `rms` norm before block `reader` (or the head), where the reader does not keep what it reads."""
    following = spec.blocks[reader] if reader < len(spec.blocks) else None
    projected = width != (spec.d_model if following is None else following.width or spec.d_model)
    norm = spec.head.norm if following is None else following.norm
    keeps = (
        projected
        or (following is not None and spec.embedding.skip)
        or norm is None
        or norm.kind == "layer"
        or (following is not None and following.norm.placement == "post")
    )
    return Cost() if keeps else Cost(kept_per_token=width)


def projection_cost(inputs: int, outputs: int) -> Cost:
    """What stands where the width changes; nothing where it does not."""
    if inputs == outputs:
        return Cost()
    return linear_cost(inputs, outputs, bias=False) + Cost(kept_per_token=inputs)


def _embedding_cost(spec: ModelSpec) -> Cost:
    learned = spec.embedding.positions == "learned"
    width = spec.embedding.width or spec.d_model
    tables = Cost(parameters=spec.vocab_size * width + (spec.context_length * spec.d_model if learned else 0))
    norm = spec.embedding.norm.cost(spec.d_model) if spec.embedding.norm else Cost()
    if spec.embedding.norm and spec.embedding.norm.kind == "rms":
        norm += _kept_alone(spec, 0, spec.d_model)
    return tables + projection_cost(width, spec.d_model) + norm


def _head_cost(spec: ModelSpec, inputs: int, outputs: int) -> Cost:
    """Norm and matrix; the gradients of its input, and of a tied matrix, are made with the loss and kept."""
    norm = spec.head.norm.cost(spec.d_model) if spec.head.norm else Cost()
    matrix = linear_cost(inputs, outputs, spec.head.bias) + Cost(kept_per_token=inputs)
    if spec.head.tied:
        again = inputs * outputs
        matrix = Cost(flops_per_token=matrix.flops_per_token, kept_per_token=inputs, kept_by_shape=(lambda *_: again,))
    return norm + matrix
