"""What a score sees of a model: its parts, with their widths, matrices and parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    mixer = block.mixer.cost(place).active_matrices
    feed_forward = block.feed_forward.cost(place).active_matrices if block.feed_forward is not None else ()
    parameters = block_cost(block, spec).parameters
    return Part(block.repeat, width, mixer * block.repeat, feed_forward * block.repeat, parameters)


def unit_part(blocks: Sequence[BlockSpec], spec: ModelSpec) -> Part:
    """Blocks of one width behind each other, as one part."""
    parts = [block_part(block, spec) for block in blocks]
    return Part(
        depth=sum(part.depth for part in parts),
        width=parts[0].width,
        mixer=tuple(matrix for part in parts for matrix in part.mixer),
        feed_forward=tuple(matrix for part in parts for matrix in part.feed_forward),
        parameters=sum(part.parameters for part in parts),
    )


def projection_part(inputs: int, outputs: int) -> Part:
    """What stands where the width changes; nothing where it does not."""
    return Part(0, outputs, (), (), projection_cost(inputs, outputs).parameters)


def outside_part(spec: ModelSpec) -> Part:
    """Embedding and head, with both projections of token vectors of another width."""
    cost, narrow = model_cost(spec), spec.embedding.width or spec.d_model
    back = projection_cost(spec.d_model, narrow).parameters if spec.head.tied else 0
    return Part(0, spec.d_model, (), (), cost.parameters - cost.blocks.parameters + back, outside=True)


def joined_widths(spec: ModelSpec) -> list[tuple[int, int]]:
    """The widths before and after each place where a projection stands if they differ."""
    inner = [block.width or spec.d_model for block in spec.blocks]
    return list(pairwise([spec.d_model, *inner, spec.d_model]))


def parts_of(spec: ModelSpec) -> tuple[Part, ...]:
    """All parts of a model, in the order in which a token passes them; their parameters add up to the model's."""
    first, *joins = (projection_part(*widths) for widths in joined_widths(spec))
    inner = (part for block, join in zip(spec.blocks, joins, strict=True) for part in (block_part(block, spec), join))
    return (outside_part(spec), first, *inner)
