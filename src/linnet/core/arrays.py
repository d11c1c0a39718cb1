"""Arrays: names for NumPy's types, and safetensors files, which hold tensors by name and never a pickle."""

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from linnet.core.atomic import atomic_path, check_free_space
from linnet.core.checksum import CHECKSUM, CHECKSUM_MISMATCH, hex_digest
from linnet.core.errors import UserError
from linnet.core.files import open_file

if TYPE_CHECKING:  # PyTorch is imported only when a file is read or written
    import torch
    from torch import Tensor

Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
"""The shape of an array is part of its variable's name: `costs_LM`."""


def write_tensors(
    path: str | Path, tensors: "Mapping[str, Tensor]", notes: Mapping[str, str] | None = None, checksum: bool = False
) -> None:
    """Write tensors and, as the file's metadata, `notes`, atomically; `OSError` where the disk has no room for them.

    checksum: store a checksum of everything in the file, for a file that is not listed in a manifest.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain, metadata = _plain(tensors, notes or {}, checksum)
    check_free_space(Path(path), sum(tensor.numel() * tensor.element_size() for tensor in plain.values()))
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata or None)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            number = int(code[1]) if code else errno.EIO
            raise OSError(number, os.strerror(number), str(path)) from error


def pack_tensors(
    tensors: "Mapping[str, Tensor]", notes: Mapping[str, str] | None = None, checksum: bool = False
) -> bytes:
    """The content of the file that `write_tensors` writes."""
    from safetensors.torch import save

    plain, metadata = _plain(tensors, notes or {}, checksum)
    content: bytes = save(plain, metadata or None)
    return content


def unpack_tensors(
    content: bytes, origin: str, device: "str | torch.device" = "cpu"
) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors of the content of a safetensors file, and its notes; `UserError` as from `read_tensors`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
    except SafetensorError as error:
        raise UserError(f"{origin}: not a safetensors file ({error})") from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    notes = dict(header.get("__metadata__") or {})
    _check_content(tensors, notes, origin)
    return {name: tensor.to(device) for name, tensor in tensors.items()}, notes


def read_tensors(
    path: str | Path, device: "str | torch.device" = "cpu", otherwise: str = "not a safetensors file"
) -> "dict[str, Tensor]":
    """The tensors of a safetensors file, on `device`. On the CPU they stay where the file is mapped, maybe unaligned.

    `UserError` for a file that is missing, unreadable, changed since its checksum was stored, or not a safetensors file
    (`otherwise` words that). `OSError` for a failure of the machine.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    open_file(path).close()  # for its error messages
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: {otherwise} ({error})") from error
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"cannot be read ({error.strerror or error})", str(path)) from error
    except RuntimeError as error:  # PyTorch, which maps the file, puts the system's error number into its message
        code = re.search(r"unable to open file .*\((\d+)\)", str(error))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, f"cannot be read ({os.strerror(number)})", str(path)) from error
    _check_content(tensors, notes, path)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _plain(
    tensors: "Mapping[str, Tensor]", notes: Mapping[str, str], checksum: bool
) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors as they are stored, and the metadata of the file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return plain, dict(notes) | ({CHECKSUM: _checksum(plain, notes)} if checksum else {})


def _check_content(tensors: "Mapping[str, Tensor]", notes: dict[str, str], origin: str | Path) -> None:
    """Remove the checksum from the notes; `UserError` if it is not that of the content."""
    found = notes.pop(CHECKSUM, None)
    if found is not None and found != _checksum(tensors, notes):
        raise UserError(f"{origin}: {CHECKSUM_MISMATCH}; expected it unchanged")


def _checksum(tensors: "Mapping[str, Tensor]", notes: Mapping[str, str]) -> str:
    """BLAKE3 of the names, types, shapes and bytes of the tensors, and of the notes."""
    import torch

    hashed = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    hashed.update(json.dumps(dict(notes), sort_keys=True).encode())
    return hex_digest(hashed)
