"""Checkpoints: a folder for each, written whole, verified by hash when read. Tensors as safetensors, the rest as JSON.

`checkpoints/step-00001000/` is a model folder (`config.json`, `model.safetensors`, `tokenizer.json`) with
`optimizer.safetensors` (moments), `checkpoint.json` (where the run stands) and the manifest that covers all of these.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.atomic import atomic_directory, check_free_space, remove_folder
from linnet.core.checksum import (
    CHECKSUM_MISMATCH,
    MANIFEST,
    LaterVersionError,
    check_files,
    refuse_later_version,
    write_file_checksums,
)
from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of, write_json
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import CONFIG, TOKENIZER, WEIGHTS, save_decoder
from linnet.training.train_state import TrainState

VERSION = 3
MOMENTS = "optimizer.safetensors"
SUMMARY = "checkpoint.json"
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    path: Path
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    standing: TrainState


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies; names sort by step."""
    return folder / f"{_PREFIX}{step:08d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    found = [re.fullmatch(rf"{_PREFIX}(\d{{8,18}})", path.name, re.ASCII) for path in folder.glob(f"{_PREFIX}*")]
    return sorted(int(name[1]) for name in found if name and name[0] == checkpoint_path(folder, int(name[1])).name)


def save_checkpoint(
    folder: Path,
    step: int,
    decoder: Decoder,
    tokenizer: Tokenizer,
    moments: dict[str, Tensor],
    standing: TrainState,
) -> Path:
    """Write the checkpoint of a step; it appears whole or not at all, and replaces an older one of the same step."""
    target = checkpoint_path(folder, step)
    with atomic_directory(target) as temporary:
        check_free_space(target, sum(t.nbytes for t in (*decoder.state_dict().values(), *moments.values())))
        save_decoder(decoder, temporary)
        write_tensors(temporary / MOMENTS, moments)
        finish_checkpoint(temporary, tokenizer, standing.to_dict())
    return target


def finish_checkpoint(temporary: Path, tokenizer: Tokenizer, standing: dict[str, Any]) -> None:
    """Put beside description, weights and moments what else belongs to them, and checksum them all."""
    tokenizer.save(temporary / TOKENIZER)
    write_json(temporary / SUMMARY, {"version": VERSION, "standing": standing})
    write_file_checksums(temporary, (CONFIG, WEIGHTS, TOKENIZER, MOMENTS, SUMMARY))


def load_newest(folder: Path, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; a damaged one is named to `note` and passed over.

    `LaterVersionError` for one of a later linnet, `OSError` where the machine cannot read now: neither is damage,
    and what is passed over is made again.
    """
    for step in reversed(checkpoint_steps(folder)):
        path = checkpoint_path(folder, step)
        try:
            return _load(path)
        except LaterVersionError:
            raise
        except UserError as error:
            note(f"damaged checkpoint passed over: {error}")
    return None


def prune(folder: Path, keep: int, *also: int | None) -> None:
    """Remove all checkpoints but the `keep` newest and those of the steps `also` (the best)."""
    for step in checkpoint_steps(folder)[:-keep]:
        if step not in also:
            remove_folder(checkpoint_path(folder, step))


def discard_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the run goes on from `step`, and what comes after is made again."""
    for later in checkpoint_steps(folder):
        if later > step:
            remove_folder(checkpoint_path(folder, later))


def _load(path: Path) -> Checkpoint:
    check_files(path, (CONFIG, WEIGHTS, TOKENIZER, MOMENTS, SUMMARY))
    summary = read_json(path / SUMMARY)
    if isinstance(summary, dict) and (path / MANIFEST).exists():
        refuse_later_version(path / SUMMARY, summary.get("version"), VERSION)
    if not isinstance(summary, dict) or summary.get("version") not in (1, 2, VERSION):
        raise UserError(f"{path / SUMMARY}: not a summary of version {VERSION}")
    _check_old_hashes(path, summary)
    standing = TrainState.from_dict(summary.get("standing"), str(path / SUMMARY))
    if checkpoint_path(path.parent, standing.step) != path:
        raise UserError(f"{path / SUMMARY}: standing.step: {standing.step}: expected that of the folder's name")
    return Checkpoint(path, read_tensors(path / WEIGHTS), read_tensors(path / MOMENTS), standing)


def _check_old_hashes(path: Path, summary: dict[str, Any]) -> None:
    """Those that a checkpoint of version 1 has in the place of a manifest."""
    hashes = summary.get("sha256")
    if not isinstance(hashes, dict):
        if not (path / MANIFEST).exists():
            raise UserError(f"{path / MANIFEST}: missing")
        return
    for name in (WEIGHTS, MOMENTS):
        if sha256_of(path / name) != hashes.get(name):
            raise UserError(f"{path / name}: {CHECKSUM_MISMATCH}")
