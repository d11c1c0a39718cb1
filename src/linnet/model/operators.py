"""Which operators a model with fixed ones gets: the identity, random numbers, or a file's.

Legend: `H` heads, `K` head width.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from linnet.errors import UserError
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
    operators = [layer["G"] for layer in read_operators(file)]
    _check_fit(shapes, operators, f"{origin}: {source}")
    return operators


def _check_fit(shapes: Sequence[Shape], operators: list[Tensor], where: str) -> None:
    if len(operators) != len(shapes):
        raise UserError(f"{where}: operators of {len(operators)} layers: the model has {len(shapes)} plga layers")
    for index, (shape, operator) in enumerate(zip(shapes, operators, strict=True)):
        if tuple(operator.shape) != tuple(shape):
            raise UserError(f"{where}: layer{index}.G: shape {list(operator.shape)}: the model's is {list(shape)}")
