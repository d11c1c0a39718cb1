"""Weights that PyTorch has pickled, read without running anything that they may hold.

`torch.load(weights_only=True)` builds tensors and plain containers; whatever else a file asks for is refused.
"""

import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import open_file

_UNREADABLE = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ArithmeticError, AssertionError),
    *(ValueError, LookupError, AttributeError, TypeError),
)
"""What PyTorch's reader of pickles raises for those that are cut, damaged or ask for something else."""


def read_pth(path: Path, key: str | None = None) -> dict[str, Tensor]:
    """The tensors by name of `FILE[key]`, or of the file; `UserError` names the file and what it holds instead."""
    content = _content(path)
    named = content if key is None else content.get(key) if isinstance(content, dict) else None
    if not isinstance(named, dict):
        keys = ", ".join(sorted(map(str, content))[:5]) if isinstance(content, dict) else None
        found = type(content).__name__ if keys is None else f"the keys {keys or '(none)'}"
        raise UserError(f"{path}: expected a dictionary {f'with {key}' if key else 'of tensors'}, found {found}")
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            place = f"{path}: {key}" if key else str(path)
            raise UserError(f"{place}: {name!r} is of {type(value).__name__}, expected a tensor")
    return dict(named)


def _content(path: Path) -> Any:
    if not path.exists():
        raise UserError(f"{path}: no such file; expected a .pth file")
    open_file(path).close()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a kind of pickle that is refused below, or read as any other
            return torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        # Not in the library's words: they tell how to run what the file holds.
        raise UserError(
            f"{path}: not a file of tensors alone ({type(error).__name__}); nothing of it was run"
        ) from None


def check_one_precision(named: dict[str, Tensor], path: Path) -> None:
    """`UserError` for tensors of mixed precisions."""
    found = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in named.values()})
    if len(found) > 1:
        raise UserError(f"{path}: tensors of {' and '.join(found)}: expected one precision")
