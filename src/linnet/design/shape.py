"""What a score sees of a model: its parts, with their widths, matrices and parameters."""

from collections.abc import Iterator
from dataclasses import dataclass

from linnet.layers.contract import Place
from linnet.model.cost import block_cost, model_cost, projection_cost
from linnet.model.spec import BlockSpec, ModelSpec

Matrix = tuple[int, int]
"""Inputs and outputs of a linear map."""


@dataclass(frozen=True)
class Part:
    """A block, a projection between widths, or what lies outside the decoder's blocks.

    depth: layers that a token passes in it. mixer, feed_forward: the linear maps of all these layers, a shared one as
    often as it is passed. parameters: shared ones once. outside: embedding and head.
    """

    depth: int
    width: int
    mixer: tuple[Matrix, ...]
    feed_forward: tuple[Matrix, ...]
    parameters: int
    outside: bool = False


def block_part(block: BlockSpec, spec: ModelSpec) -> Part:
    """A block without the projection before it."""
    width = block.width or spec.d_model
    place = Place(width, spec.context_length)
    mixer = block.mixer.cost(place).matrices
    feed_forward = block.feed_forward.cost(place).matrices if block.feed_forward is not None else ()
    parameters = block_cost(block, spec).parameters
    return Part(block.repeat, width, mixer * block.repeat, feed_forward * block.repeat, parameters)


def projection_part(inputs: int, outputs: int) -> Part:
    """What stands where the width changes; nothing where it does not."""
    return Part(0, outputs, (), (), projection_cost(inputs, outputs).parameters)


def outside_part(spec: ModelSpec) -> Part:
    """Embedding and head, with both projections of token vectors of another width."""
    cost, narrow = model_cost(spec), spec.embedding.width or spec.d_model
    back = projection_cost(spec.d_model, narrow).parameters if spec.head.tied else 0
    return Part(0, spec.d_model, (), (), cost.parameters - cost.blocks.parameters + back, outside=True)


def parts_of(spec: ModelSpec) -> tuple[Part, ...]:
    """All parts of a model; their parameters add up to the model's."""
    return tuple(_parts_of(spec))


def _parts_of(spec: ModelSpec) -> Iterator[Part]:
    yield outside_part(spec)
    width = spec.d_model
    for block in spec.blocks:
        inner = block.width or spec.d_model
        yield projection_part(width, inner)
        yield block_part(block, spec)
        width = inner
    yield projection_part(width, spec.d_model)
