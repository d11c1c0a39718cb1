"""Operators of power-law graph attention in files, with the other deductive outputs, and by name.

Shapes: `H` heads, `K` head width.
"""

import lzma
import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.core.system import available_bytes
from linnet.layers.mixers.plga.operator import OUTPUTS

OPERATOR = OUTPUTS[-1]
"""The name of the operator, which is the calibration of a layer."""

SUFFIXES = (".safetensors", ".npz")

EXPECTED = "identity, random, or a file of operators (.safetensors, .npz)"

MAX_OPERATOR_BYTES = 1 << 30
"""The maximum size of an array, that of the operators of 16,384 wide heads."""

_MAX_HEADER_BYTES = 10_000
_UNREADABLE = (
    *(ValueError, TypeError, SyntaxError, LookupError, RuntimeError, MemoryError, OSError, EOFError),
    *(tokenize.TokenError, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
"""The exceptions of Python and NumPy for damaged or encrypted archives, and for invalid headers."""
_NUMBER = r"\d{1,6}"

LAYOUT = "layer{i}.G (and, with it, layer{i}.A, .A_LM, .A_P), or 0, 1, … for G alone"


def save_operators(layers: Sequence[Mapping[str, Tensor]], path: str | Path) -> None:
    """Write the outputs of each plga layer, `[H, K, K]` by name (`OUTPUTS`), as safetensors."""
    named = {f"layer{i}.{name}": tensor for i, layer in enumerate(layers) for name, tensor in layer.items()}
    write_tensors(path, {name: tensor.clone() for name, tensor in named.items()}, checksum=True)


def read_operators(path: str | Path) -> list[dict[str, Tensor]]:
    """The outputs of each plga layer, in order: `G`, and the others if the file has them, `[H, K, K]` each.

    path: a .safetensors or .npz file with arrays named as in `LAYOUT`, of shape `[H, K, K]` or `[1, H, K, K]`.
    `UserError` names the file and the invalid array.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected operators as .safetensors or .npz")
    layers: dict[int, dict[str, Tensor]] = {}
    for name, array in _arrays(path).items():
        found = re.fullmatch(rf"layer({_NUMBER})\.(A|A_LM|A_P|G)|({_NUMBER})", name, re.ASCII)
        if found is None:
            raise UserError(f"{path}: array {name!r}: expected {LAYOUT}")
        tensor = array[0] if array.ndim == 4 and len(array) == 1 else array
        if tensor.ndim != 3 or tensor.shape[1] != tensor.shape[2] or not tensor.numel():
            raise UserError(f"{path}: {name}: shape {list(tensor.shape)}: expected [H, K, K] or [1, H, K, K]")
        if not tensor.is_floating_point():
            raise UserError(f"{path}: {name}: of {str(tensor.dtype).removeprefix('torch.')}: expected floating point")
        layers.setdefault(int(found[1] or found[3]), {})[found[2] or "G"] = tensor
    _check(layers, path)
    return [layers[index] for index in sorted(layers)]


def _arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".npz":
        return read_tensors(path, otherwise="neither a .npz nor a safetensors file")
    try:
        open_file(path).close()
        with zipfile.ZipFile(path) as archive:
            size_bytes = sum(entry.file_size for entry in archive.infolist())
            if size_bytes > available_bytes(torch.device("cpu")):
                raise ValueError(f"{size_bytes:,} bytes in it, more than the available memory")
            return {
                entry.filename.removesuffix(".npy"): torch.from_numpy(_array(archive, entry))
                for entry in archive.infolist()
            }
    except UserError:
        raise
    except _UNREADABLE as error:
        raise UserError(f"{path}: not a .npz file of numbers ({error})") from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """An array of numbers; `ValueError` for anything else, before memory is allocated or objects are loaded."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file, max_header_size=_MAX_HEADER_BYTES)
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} holds Python objects")
        size_bytes = math.prod(shape) * dtype.itemsize
        if not size_bytes <= min(entry.file_size, MAX_OPERATOR_BYTES):
            raise ValueError(f"{entry.filename}: {size_bytes:,} bytes in a file of {entry.file_size:,}")
    with archive.open(entry) as file:
        return np.lib.format.read_array(file, allow_pickle=False, max_header_size=_MAX_HEADER_BYTES)


def _check(layers: dict[int, dict[str, Tensor]], path: Path) -> None:
    if not layers:
        raise UserError(f"{path}: holds no operator; expected {LAYOUT}")
    for index in range(len(layers)):
        if "G" not in layers.get(index, {}):
            raise UserError(f"{path}: layer{index}.G is missing; expected one for each layer from 0 on")
        shapes = {name: list(tensor.shape) for name, tensor in layers[index].items()}
        for name, shape in shapes.items():
            if shape != shapes["G"]:
                raise UserError(f"{path}: layer{index}.{name}: shape {shape}: expected that of G, {shapes['G']}")


def choose_operators(source: str, shapes: Sequence[Sequence[int]], origin: str) -> list[Tensor]:
    """An operator for each shape `[H, K, K]`: `identity`, `random` (normal, torch's generator), or those of a file.

    `UserError`, beginning with `origin`, if the file is invalid or its operators have other shapes.
    """
    if source == "identity":
        return [torch.eye(shape[-1]).expand(*shape) for shape in shapes]
    if source == "random":
        return [torch.randn(*shape) for shape in shapes]
    if not source.endswith(SUFFIXES):
        raise UserError(f"{origin}: {source}: expected {EXPECTED}")
    try:
        operators = [layer["G"] for layer in read_operators(source)]
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None
    where = f"{origin}: {source}"
    if len(operators) != len(shapes):
        raise UserError(f"{where}: operators of {len(operators)} layers: the model has {len(shapes)} plga layers")
    for index, (operator, shape) in enumerate(zip(operators, shapes, strict=True)):
        if tuple(operator.shape) != tuple(shape):
            stored = list(operator.shape)
            raise UserError(f"{where}: layer{index}.G: shape {stored}: the model's is {list(shape)}")
    return operators
