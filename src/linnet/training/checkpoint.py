"""Checkpoints: weights, optimizer and state of a run; the same files whatever the number of processes.

`checkpoints/step-00001000/` is a model folder (`config.json`, `model.safetensors`, `tokenizer.json`) with
`optimizer.safetensors`, `checkpoint.json` (the state of the run) and a manifest with the checksums of all of these.

Each process writes its shards directly to their places in the two tensor files, whose sizes are known beforehand; a
shard of rows is a contiguous range of bytes. Rank 0 then computes the checksums and gives the folder its name, so that
a checkpoint appears whole or not at all. When a checkpoint is read, each process reads the rows that it holds now.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from linnet.core import migration
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
from linnet.model.folder import CONFIG, TOKENIZER, WEIGHTS
from linnet.model.store import check_tensors, shapes_of
from linnet.training.distributed import SINGLE_PROCESS, Processes, as_shard, is_sharded, local
from linnet.training.optimizers.adamw import Optimizer
from linnet.training.state import Stateful, TrainState

VERSION = 4
OPTIMIZER, SUMMARY = "optimizer.safetensors", "checkpoint.json"
FILES = (CONFIG, WEIGHTS, TOKENIZER, OPTIMIZER, SUMMARY)

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The names of safetensors."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match their checksums. `load` reads its tensors."""

    path: Path
    state: TrainState
    optimizer_file: str = OPTIMIZER


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of a step; names sort by step."""
    return folder / f"step-{step:08d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, in order."""
    found = [re.fullmatch(r"step-(\d{8,18})", path.name, re.ASCII) for path in folder.glob("step-*")]
    return sorted(int(name[1]) for name in found if name and name[0] == checkpoint_path(folder, int(name[1])).name)


def prune(folder: Path, keep: int, *also: int | None) -> None:
    """Remove all checkpoints except the `keep` newest and those of the steps `also` (the best)."""
    for step in checkpoint_steps(folder)[:-keep]:
        if step not in also:
            remove_folder(checkpoint_path(folder, step))


def discard_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: the run continues from `step` and repeats these."""
    for later in checkpoint_steps(folder):
        if later > step:
            remove_folder(checkpoint_path(folder, later))


class CheckpointWriter:
    """Writes one checkpoint at a time; with several processes in the background, while training continues."""

    def __init__(self, processes: Processes = SINGLE_PROCESS, shard: int = 1) -> None:
        """shard: the number of processes that share one copy of the weights; those of the first copy write."""
        self._processes, self._writes_shards = processes, processes.rank < shard
        self._executor = ThreadPoolExecutor(1, "checkpoint") if processes.count > 1 else None

    def save(
        self,
        folder: Path,
        decoder: Decoder,
        tensors: Mapping[str, Tensor],
        tokenizer: Tokenizer,
        state: TrainState,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the checkpoint of `state.step`, replacing an older one; afterwards rank 0 calls `then`.

        tensors: those of the optimizer, and what callbacks save with them, as `parameter/key`. `OSError` before
        anything is written if there is no room for it.
        """
        self.wait()
        processes, target, opened = self._processes, checkpoint_path(folder, state.step), ExitStack()
        files = {WEIGHTS: decoder.state_dict(), OPTIMIZER: dict(tensors)}
        summary = {"version": VERSION, "state": state.to_dict()}  # a copy: training continues meanwhile
        try:
            temporary, pieces = self._begin(target, files, opened)
        except BaseException as error:
            opened.__exit__(type(error), error, error.__traceback__)
            raise

        def write_pieces() -> None:
            for name in dict.fromkeys(name for name, _, _ in pieces):
                with (temporary / name).open("r+b") as file:
                    for _, offset, part in (piece for piece in pieces if piece[0] == name):
                        file.seek(offset)
                        file.write(part.reshape(-1).view(torch.uint8).numpy().data)

        def finish() -> None:
            if processes.is_rank0:
                write_json(temporary / CONFIG, decoder.spec.model_dump())
                tokenizer.save(temporary / TOKENIZER)
                write_json(temporary / SUMMARY, summary)
                write_file_checksums(temporary, FILES)
                opened.close()  # gives the folder its name

        def write() -> None:
            with opened:
                self._together(write_pieces)
                self._together(finish)
            if processes.is_rank0:
                then()

        if self._executor is None:
            write()
        else:
            processes.pending_save = self._executor.submit(write)

    def wait(self) -> None:
        """Wait until the checkpoint in the background is complete; raises the error of writing it."""
        pending, self._processes.pending_save = self._processes.pending_save, None
        if pending is not None:
            with self._processes.waits.running(torch.device("cpu")):
                pending.result()

    def _begin(
        self, target: Path, files: Mapping[str, Mapping[str, Tensor]], opened: ExitStack
    ) -> tuple[Path, list[tuple[str, int, Tensor]]]:
        """Make the temporary folder of a checkpoint, with tensor files that have a header and their final size.

        Returns the folder, which `opened` closes, and what this process writes: file, offset in bytes, and values.
        """
        layouts = {name: _layout(tensors) for name, tensors in files.items()}

        def make() -> str:
            temporary = opened.enter_context(atomic_directory(target))
            check_free_space(target, sum(size_bytes for _, _, size_bytes in layouts.values()))
            for name, (header, _, size_bytes) in layouts.items():
                with (temporary / name).open("wb") as file:
                    file.write(header)
                    file.truncate(size_bytes)
            return str(temporary)

        temporary, pieces = Path(self._processes.broadcast_from_rank0(make)), list[tuple[str, int, Tensor]]()
        for file_name, tensors in files.items():
            for name, tensor in tensors.items():
                if not (self._writes_shards if is_sharded(tensor) else self._processes.is_rank0):
                    continue
                part = local(tensor.detach()).cpu().contiguous()
                if part.numel():
                    row_bytes = part.nbytes // part.shape[0] if part.dim() else 0
                    offset = layouts[file_name][1][name] + _rows_of(tensor)[0] * row_bytes
                    # What is written in the background must not change meanwhile.
                    pieces.append((file_name, offset, part if self._executor is None else part.clone()))
        return temporary, pieces

    def _together(self, act: Callable[[], None]) -> None:
        """Call a function in every process; if it fails in one, raise the first error in all."""
        error: Exception | None = None
        try:
            act()
        except Exception as caught:
            error = caught
        errors: list[Any] = [error]
        if self._processes.count > 1:
            errors = [None] * self._processes.count
            dist.all_gather_object(errors, error, group=self._processes.saving)
        for each in errors:
            if each is not None:
                raise each


def _layout(tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, int], int]:
    """Header of a safetensors file, offset of each tensor, and size of the file, in bytes. Wide dtypes come first."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    header, offsets, end = dict[str, Any](), dict[str, int](), 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        offsets[name], begin = end, end
        end += tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    first = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: first + at for name, at in offsets.items()}, first + end


def _rows_of(tensor: Any) -> tuple[int, int]:
    """The rows `[first, end)` of a tensor that this process holds."""
    if not is_sharded(tensor):
        return 0, tensor.shape[0] if tensor.dim() else 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offset[0], offset[0] + shape[0]


def find_newest(
    folder: Path, decoder: Decoder, note: Callable[[str], None], processes: Processes = SINGLE_PROCESS
) -> Checkpoint | None:
    """The newest undamaged checkpoint that rank 0 finds, or None; `UserError` for one of another model.

    A damaged one is reported to `note` and skipped; the run then repeats more steps. A checkpoint of a later linnet
    (`LaterVersionError`), or one that cannot be read now (`OSError`), is not damaged.
    """
    shapes = shapes_of(decoder)
    integers = [name for name, tensor in decoder.state_dict().items() if not tensor.is_floating_point()]

    def find() -> tuple[str, dict[str, Any], str] | None:
        for step in reversed(checkpoint_steps(folder)):
            path = checkpoint_path(folder, step)
            try:
                found = read_checkpoint(path)
                tensors = _shapes_in(path / WEIGHTS)
            except LaterVersionError:
                raise
            except UserError as error:
                note(f"damaged checkpoint skipped: {error}")
                continue
            check_tensors(tensors, shapes, path, "the run's model", integers)
            return str(path), found.state.to_dict(), found.optimizer_file
        return None

    found = processes.broadcast_from_rank0(find)
    return None if found is None else Checkpoint(Path(found[0]), TrainState.from_dict(found[1], found[0]), found[2])


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, after its files were compared with their checksums; `UserError` names a file that differs."""
    check_files(path, (SUMMARY,))
    summary = _read_summary(path)
    old = summary["version"] in migration.CHECKPOINT_VERSIONS
    if old and isinstance(summary.get("sha256"), dict):  # version 1 had these hashes and no manifest
        for name in (WEIGHTS, migration.OPTIMIZER):
            if sha256_of(path / name) != summary["sha256"].get(name):
                raise UserError(f"{path / name}: {CHECKSUM_MISMATCH}")
    elif not (path / MANIFEST).exists():
        raise UserError(f"{path / MANIFEST}: missing")
    else:
        check_files(path, (*FILES, migration.OPTIMIZER) if old else FILES)
    state = read_state(path, summary)
    if checkpoint_path(path.parent, state.step) != path:
        raise UserError(f"{path / SUMMARY}: state.step: {state.step}: expected that of the folder's name")
    return Checkpoint(path, state, migration.OPTIMIZER if old else OPTIMIZER)


def _read_summary(path: Path) -> dict[str, Any]:
    summary = read_json(path / SUMMARY)
    if isinstance(summary, dict) and (path / MANIFEST).exists():
        refuse_later_version(path / SUMMARY, summary.get("version"), VERSION)
    if not isinstance(summary, dict) or summary.get("version") not in (*migration.CHECKPOINT_VERSIONS, VERSION):
        raise UserError(f"{path / SUMMARY}: not a summary of version {VERSION}")
    return summary


def read_state(path: Path, summary: dict[str, Any] | None = None) -> TrainState:
    """The state in a checkpoint, whose tensors are not read. summary: the content of its `checkpoint.json`."""
    summary = _read_summary(path) if summary is None else summary
    origin, state = str(path / SUMMARY), summary.get("state")
    if summary["version"] in migration.CHECKPOINT_VERSIONS:
        state = migration.upgrade_train_state(summary, origin)
    return TrainState.from_dict(state, origin)


def _shapes_in(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file without their content, on the device meta."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return {
                name: torch.empty(each.get_shape(), dtype=_DTYPES.get(each.get_dtype()), device="meta")
                for name, each in slices.items()
            }
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from error


@torch.no_grad()
def load(checkpoint: Checkpoint, decoder: Decoder) -> dict[str, Tensor]:
    """Read the weights into a decoder, and return the optimizer's tensors; each process reads the rows it holds."""
    with safe_open(checkpoint.path / WEIGHTS, framework="pt") as file:
        for name, tensor in decoder.state_dict().items():
            local(tensor).copy_(_read_rows(file, name, tensor))
    parameters, tensors = dict(decoder.named_parameters()), dict[str, Tensor]()
    with safe_open(checkpoint.path / checkpoint.optimizer_file, framework="pt") as file:
        for path in file.keys():  # noqa: SIM118 - no mapping
            parameter = parameters[path.rpartition("/")[0]]
            if file.get_slice(path).get_shape() == list(parameter.shape):
                part = _read_rows(file, path, parameter)
                tensors[path] = as_shard(part.to(parameter.device), parameter) if is_sharded(parameter) else part
            else:
                tensors[path] = file.get_tensor(path)
    return tensors


def restore(
    checkpoint: Checkpoint | None, decoder: Decoder, optimizer: Optimizer, callbacks: Sequence[Stateful]
) -> None:
    """Load weights, optimizer and callbacks from a checkpoint.

    None: the weights stay; optimizer and callbacks get their initial state.
    """
    tensors = {} if checkpoint is None else load(checkpoint, decoder)
    states = {} if checkpoint is None else checkpoint.state.callbacks
    for callback in callbacks:
        tensors = callback.load_tensors(tensors)
        callback.load_state_dict(states.get(callback.name, {}))
    optimizer.state.clear()
    load_optimizer_tensors(optimizer, decoder, tensors)


def optimizer_tensors(optimizer: Optimizer, decoder: Decoder) -> dict[str, Tensor]:
    """The state of an optimizer as `parameter/key`; empty before the first update."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in decoder.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: Optimizer, decoder: Decoder, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors that `optimizer_tensors` returned. They are copied, so that PyTorch aligns their memory."""
    parameters = dict(decoder.named_parameters())
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        device = torch.device("cpu") if tensor.dtype == torch.int64 else parameter.device
        optimizer.state[parameter][key] = tensor.to(device, copy=True)


def _read_rows(file: Any, name: str, like: Tensor) -> Tensor:
    """The rows of a tensor in a file that this process holds of `like`."""
    if not is_sharded(like):
        whole: Tensor = file.get_tensor(name)
        return whole
    first, end = _rows_of(like)
    part: Tensor = file.get_slice(name)[first:end] if end > first else local(like).new_empty(local(like).shape)
    return part
