"""Checkpoints: a folder for each, written whole, verified by hash when read. Tensors as safetensors, the rest as JSON.

`checkpoints/step-00001000/` is a model folder (`config.json`, `model.safetensors`, `tokenizer.json`) with
`optimiser.safetensors` (moments) and `checkpoint.json` (where the run stands, and the hashes of the tensors).
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import atomic_directory, read_json, sha256_of, write_json
from linnet.core.tensor_file import read_tensors
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import TOKENIZER, WEIGHTS, save_decoder

VERSION = 1
MOMENTS = "optimiser.safetensors"
SUMMARY = "checkpoint.json"
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    path: Path
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    standing: dict[str, Any]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies; names sort by step."""
    return folder / f"{_PREFIX}{step:08d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    found = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return sorted(int(number) for number in found if number.isdigit())


def save_checkpoint(
    folder: Path,
    step: int,
    decoder: Decoder,
    tokenizer: Tokenizer,
    moments: dict[str, Tensor],
    standing: dict[str, Any],
) -> Path:
    """Write the checkpoint of a step; it appears whole or not at all, and replaces an older one of the same step."""
    target = checkpoint_path(folder, step)
    with atomic_directory(target) as temporary:
        save_decoder(decoder, temporary)
        tokenizer.save(temporary / TOKENIZER)
        save_file({name: tensor.contiguous() for name, tensor in moments.items()}, temporary / MOMENTS)
        hashes = {name: sha256_of(temporary / name) for name in (WEIGHTS, MOMENTS)}
        write_json(temporary / SUMMARY, {"version": VERSION, "sha256": hashes, "standing": standing})
    return target


def load_newest(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; a damaged one is named to `note` and passed over."""
    for step in reversed(checkpoint_steps(folder)):
        path = checkpoint_path(folder, step)
        try:
            return _load(path)
        except UserError as error:
            note(f"damaged checkpoint passed over: {error}")
    return None


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all checkpoints but the `keep` newest and that of step `best`."""
    for step in checkpoint_steps(folder)[:-keep]:
        if step != best:
            shutil.rmtree(checkpoint_path(folder, step))


def discard_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the run goes on from `step`, and what comes after is made again."""
    for later in checkpoint_steps(folder):
        if later > step:
            shutil.rmtree(checkpoint_path(folder, later))


def _load(path: Path) -> Checkpoint:
    summary = read_json(path / SUMMARY)
    if not isinstance(summary, dict) or summary.get("version") != VERSION:
        raise UserError(f"{path / SUMMARY}: not a summary of version {VERSION}")
    for name, expected in summary["sha256"].items():
        if not (path / name).is_file():
            raise UserError(f"{path / name}: missing")
        if sha256_of(path / name) != expected:
            raise UserError(f"{path / name}: its content is not what was saved (hash differs)")
    return Checkpoint(path, read_tensors(path / WEIGHTS), read_tensors(path / MOMENTS), summary["standing"])
