"""Reading safetensors files: tensors by name, never a pickle; what cannot be read is said in one line."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from linnet.core.errors import UserError


def read_tensors(
    path: str | Path, device: str | torch.device = "cpu", otherwise: str = "not a safetensors file"
) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on `device`; on the CPU they lie as the file does, which may be unaligned.

    `UserError` names a file that is missing, unreadable, or, in the words of `otherwise`, no such file.
    """
    if not Path(path).is_file():
        raise UserError(f"{path}: {'is a directory, expected a file' if Path(path).is_dir() else 'no such file'}")
    try:
        return load_file(path, device=str(device))
    except SafetensorError as error:
        raise UserError(f"{path}: {otherwise} ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
