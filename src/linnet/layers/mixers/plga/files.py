"""Operators of power-law graph attention: on disk, with what they were deduced through, and by name.

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
"""The name of the operator, of which a calibration consists."""

SUFFIXES = (".safetensors", ".npz")

EXPECTED = "identity, random, or a file of operators (.safetensors, .npz)"

MOST_OPERATOR_BYTES = 1 << 30
"""Of one array: the operators of a layer of 16,384 wide heads."""

_MOST_HEADER_BYTES = 10_000
_UNREADABLE = (
    *(ValueError, TypeError, SyntaxError, LookupError, RuntimeError, MemoryError, OSError, EOFError),
    *(tokenize.TokenError, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
"""What Python and NumPy raise for archives that are damaged or encrypted, and for headers that are none."""
_NUMBER = r"\d{1,6}"

LAYOUT = "layer{i}.G (and, with it, layer{i}.A, .A_LM, .A_P), or 0, 1, … for G alone"


def save_operators(layers: Sequence[Mapping[str, Tensor]], path: str | Path) -> None:
    """Write the outputs of each plga layer, `[H, K, K]` by name (`OUTPUTS`), as safetensors."""
    named = {f"layer{i}.{name}": tensor for i, layer in enumerate(layers) for name, tensor in layer.items()}
    write_tensors(path, {name: tensor.clone() for name, tensor in named.items()}, checksum=True)


def read_operators(path: str | Path) -> list[dict[str, Tensor]]:
    """The outputs of each plga layer, in order: `G`, and the others where the file has them, `[H, K, K]` each.

    A .safetensors or .npz file with arrays named as `LAYOUT` says, of shape `[H, K, K]` or `[1, H, K, K]`. `UserError`
    names the file and the array that is wrong.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected operators as .safetensors or .npz")
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _arrays(path).items():
        index, output = _place(name, path)
        layers.setdefault(index, {})[output] = _operator(tensor, f"{path}: {name}")
    _check(layers, path)
    return [layers[index] for index in sorted(layers)]


def _arrays(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".npz":
        return read_tensors(path, otherwise="neither a .npz nor a safetensors file")
    try:
        open_file(path).close()
        with zipfile.ZipFile(path) as archive:
            claimed = sum(entry.file_size for entry in archive.infolist())
            if claimed > available_bytes(torch.device("cpu")):
                raise ValueError(f"{claimed:,} bytes in it, more than there is memory for")
            return {
                entry.filename.removesuffix(".npy"): torch.from_numpy(_array(archive, entry))
                for entry in archive.infolist()
            }
    except UserError:
        raise
    except _UNREADABLE as error:
        raise UserError(f"{path}: not a .npz file of numbers ({error})") from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """An array of numbers; `ValueError` for anything else, before it takes memory or runs anything."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file, max_header_size=_MOST_HEADER_BYTES)
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} holds Python objects")
        size_bytes = math.prod(shape) * dtype.itemsize
        if not size_bytes <= min(entry.file_size, MOST_OPERATOR_BYTES):
            raise ValueError(f"{entry.filename}: {size_bytes:,} bytes in a file of {entry.file_size:,}")
    with archive.open(entry) as file:
        return np.lib.format.read_array(file, allow_pickle=False, max_header_size=_MOST_HEADER_BYTES)


def _place(name: str, path: Path) -> tuple[int, str]:
    if re.fullmatch(_NUMBER, name, re.ASCII):
        return int(name), "G"
    found = re.fullmatch(rf"layer({_NUMBER})\.(A|A_LM|A_P|G)", name, re.ASCII)
    if found is None:
        raise UserError(f"{path}: array {name!r}: expected {LAYOUT}")
    return int(found[1]), found[2]


def _operator(tensor: Tensor, where: str) -> Tensor:
    if tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.ndim != 3 or tensor.shape[1] != tensor.shape[2] or not tensor.numel():
        raise UserError(f"{where}: shape {list(tensor.shape)}: expected [H, K, K] or [1, H, K, K]")
    if not tensor.is_floating_point():
        raise UserError(f"{where}: of {str(tensor.dtype).removeprefix('torch.')}: expected floating point")
    return tensor


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

    `UserError`, with `origin` in front, where the file is none, or its operators have other shapes.
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
    check_fit(shapes, [operator.shape for operator in operators], f"{origin}: {source}")
    return operators


def check_fit(shapes: Sequence[Sequence[int]], found: Sequence[Sequence[int]], where: str) -> None:
    """`UserError`, with `where` in front, unless operators of the shapes `found` are those that a model needs."""
    if len(found) != len(shapes):
        raise UserError(f"{where}: operators of {len(found)} layers: the model has {len(shapes)} plga layers")
    for index, (needed, given) in enumerate(zip(shapes, found, strict=True)):
        if tuple(given) != tuple(needed):
            raise UserError(f"{where}: layer{index}.G: shape {list(given)}: the model's is {list(needed)}")
