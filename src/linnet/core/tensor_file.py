"""Safetensors files: tensors by name, never a pickle; what cannot be read or written is said in one line."""

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from linnet.core.atomic import atomic_path, check_free_space
from linnet.core.checksum import CHECKSUM, CHECKSUM_MISMATCH, hex_digest
from linnet.core.errors import UserError
from linnet.core.files import open_file


def write_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None, checksum: bool = False
) -> None:
    """Write tensors, and `notes` as the file's metadata, atomically; `OSError` where there is no room for them.

    checksum: a hash of all that goes with them, for a file that stands in no folder with a manifest.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    check_free_space(Path(path), sum(tensor.numel() * tensor.element_size() for tensor in plain.values()))
    metadata = dict(notes or {}) | ({CHECKSUM: _checksum(plain, notes or {})} if checksum else {})
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata or None)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            number = int(code[1]) if code else errno.EIO
            raise OSError(number, os.strerror(number), str(path)) from error


def read_tensors(
    path: str | Path, device: str | torch.device = "cpu", otherwise: str = "not a safetensors file"
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on `device`; on the CPU they lie as the file does, which may be unaligned.

    `UserError` names a file that is missing, unreadable, changed since it was with_checksum, or, in the words of
    `otherwise`, no such file. `OSError` for what the machine cannot do now.
    """
    open_file(path).close()
    try:
        notes, tensors = _load(path)
    except SafetensorError as error:
        raise UserError(f"{path}: {otherwise} ({error})") from error
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except OSError as error:  # of the machine: the file could be opened
        raise OSError(error.errno or errno.EIO, f"cannot be read ({error.strerror or error})", str(path)) from error
    found = notes.pop(CHECKSUM, None)
    if found is not None and found != _checksum(tensors, notes):
        raise UserError(f"{path}: {CHECKSUM_MISMATCH}; expected it unchanged")
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _load(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Notes and tensors; `OSError` also where PyTorch, which maps the file, says in words that the machine cannot."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
        return notes, load_file(path)
    except RuntimeError as error:
        code = re.search(r"unable to open file .*\((\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def _checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """BLAKE3 of names, kinds, shapes and bytes of the tensors, and of the notes."""
    hashed = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    hashed.update(json.dumps(dict(notes), sort_keys=True).encode())
    return hex_digest(hashed)
