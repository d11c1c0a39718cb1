"""Which operators a model with fixed ones gets: the identity, random numbers, or a file's.

Legend: `H` heads, `K` head width.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.model.operator_file import SUFFIXES, read_operators

Shape = tuple[int, ...]

EXPECTED = "identity, random, or a file of operators (.safetensors, .npz)"


def operator_file(source: str) -> Path | None:
    """The file that a source of operators names; None where it names none, as `identity` and `random` do."""
    return Path(source) if source.endswith(SUFFIXES) else None


def choose_operators(source: str, shapes: Sequence[Shape], origin: str) -> list[Tensor]:
    """An operator for each shape `[H, K, K]`: `identity`, `random` (normal, torch's generator), or those of a file.

    `UserError`, with `origin` in front, where the file is none, or its operators have other shapes.
    """
    if source == "identity":
        return [torch.eye(shape[-1]).expand(shape) for shape in shapes]
    if source == "random":
        return [torch.randn(shape) for shape in shapes]
    file = operator_file(source)
    if file is None:
        raise UserError(f"{origin}: {source}: expected {EXPECTED}")
    try:
        operators = [layer["G"] for layer in read_operators(file)]
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None
    check_fit(shapes, [operator.shape for operator in operators], f"{origin}: {source}")
    return operators


def check_fit(shapes: Sequence[Shape], found: Sequence[Shape], where: str) -> None:
    """`UserError`, with `where` in front, unless operators of the shapes `found` are those that a model needs."""
    if len(found) != len(shapes):
        raise UserError(f"{where}: operators of {len(found)} layers: the model has {len(shapes)} plga layers")
    for index, (needed, given) in enumerate(zip(shapes, found, strict=True)):
        if tuple(given) != tuple(needed):
            raise UserError(f"{where}: layer{index}.G: shape {list(given)}: the model's is {list(needed)}")
