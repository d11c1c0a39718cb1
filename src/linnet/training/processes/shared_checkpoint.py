"""Checkpoints of several processes, by `torch.distributed.checkpoint`: written while training goes on.

Each process writes its shards as safetensors; the first one puts them together, so that a checkpoint is the same files
whoever wrote it (`checkpoint`), and is read by any number of processes. DCP's own format is never used: its `.metadata`
is a pickle.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from linnet.core.atomic import atomic_directory, check_free_space
from linnet.core.files import write_json
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import CONFIG, WEIGHTS, check_tensors, shapes_of
from linnet.training.checkpoint import MOMENTS, Checkpoint, checkpoint_path, finish_checkpoint, load_newest
from linnet.training.processes.many import ManyProcesses
from linnet.training.train_state import TrainState

OF_WEIGHTS, OF_MOMENTS = 1, 2
"""The numbers of the two files that the shards become."""


class SharedSaver:
    """Writes one checkpoint at a time, in the background."""

    def __init__(self, processes: ManyProcesses) -> None:
        self._processes = processes

    def save(
        self,
        folder: Path,
        decoder: Decoder,
        moments: dict[str, Tensor],
        tokenizer: Tokenizer,
        standing: TrainState,
        then: Callable[[], None],
    ) -> None:
        """Copy what is to be written, and go on; `then` comes in the first process when it stands."""
        self.settle()
        tensors = {name: tensor.detach() for name, tensor in decoder.state_dict().items()}
        files = dict.fromkeys(tensors, OF_WEIGHTS) | dict.fromkeys(moments, OF_MOMENTS)
        target, opened = checkpoint_path(folder, standing.step), ExitStack()

        def begin() -> str:
            temporary = opened.enter_context(atomic_directory(target))
            check_free_space(target, 2 * sum(t.numel() * t.element_size() for t in (tensors | moments).values()))
            write_json(temporary / CONFIG, decoder.spec.model_dump())
            return str(temporary)

        plain = standing.to_dict()  # as it is now
        scalars = {name: tensor.cpu().clone() for name, tensor in moments.items() if tensor.dim() == 0}

        def finish(temporary: Path) -> None:
            _name(temporary)
            _write_scalars(temporary / MOMENTS, scalars)
            finish_checkpoint(temporary, tokenizer, plain)

        try:
            temporary = self._processes.broadcast_from_rank0(begin)
            writer = Writer(temporary, files, opened, finish, then)
            group = self._processes.saving
            # DCP knows no whole numbers; as wide are these.
            counts = {name: tensor.double() for name, tensor in scalars.items() if tensor.dtype == torch.int64}
            written: Any = async_save(tensors | moments | counts, storage_writer=writer, process_group=group)
            self._processes.written = written
        except BaseException as error:
            opened.__exit__(type(error), error, None)
            raise

    def settle(self) -> None:
        """Wait until what is being written stands; raises what went wrong with it."""
        written = self._processes.written
        if written is None:
            return
        with self._processes.waiting(torch.device("cpu")):
            try:
                written.result()
            except CheckpointException as error:
                raise next(iter(error.failures.values()))[0] from None
            finally:
                self._processes.written = None


class Writer(HuggingFaceStorageWriter):
    """Shards as safetensors in a temporary folder, put together in the end; then the folder takes its name."""

    def __init__(
        self,
        temporary: str,
        files: dict[str, int],
        opened: ExitStack,
        finish: Callable[[Path], None],
        then: Callable[[], None],
    ) -> None:
        super().__init__(temporary, fqn_to_index_mapping=files, save_distributed=True, enable_consolidation=True)
        self._temporary, self._opened, self._finish, self._then = Path(temporary), opened, finish, then

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """In the first process, when all have written."""
        with self._opened:
            super().finish(metadata, results)
            self._finish(self._temporary)
        self._then()


def _name(temporary: Path) -> None:
    """Give the two files their names, and leave nothing beside them."""
    for number, name in ((OF_WEIGHTS, WEIGHTS), (OF_MOMENTS, MOMENTS)):
        (found,) = temporary.glob(f"*-{number:05d}-of-*.safetensors")
        found.replace(temporary / name)
    shutil.rmtree(temporary / "sharded")
    (temporary / "model.safetensors.index.json").unlink()


def _write_scalars(path: Path, scalars: dict[str, Tensor]) -> None:
    """Put tensors without dimensions where they belong in a safetensors file: DCP leaves zeros there (PyTorch 2.13).

    Whole numbers have room of their width there, and are named as what they are.
    """
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, tensor in scalars.items():
            first, end = header[name]["data_offsets"]
            assert end - first == tensor.element_size(), name
            file.seek(8 + length + first)
            file.write(tensor.numpy().tobytes())
            if tensor.dtype == torch.int64:
                header[name]["dtype"] = "I64"
        text = json.dumps(header, separators=(",", ":")).encode()
        assert len(text) <= length, "a header that grew"
        file.seek(8)
        file.write(text.ljust(length))


def newest(processes: ManyProcesses, folder: Path, decoder: Decoder, note: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint, as the first process found it, without its tensors; None: there is none."""
    shapes = shapes_of(decoder)

    def find() -> tuple[str, dict[str, Any]] | None:
        found = load_newest(folder, note)
        if found is None:
            return None
        check_tensors(found.weights, shapes, found.path, "the run's model")
        return str(found.path), found.standing.to_dict()

    told = processes.broadcast_from_rank0(find)
    return None if told is None else Checkpoint(Path(told[0]), {}, {}, TrainState.from_dict(told[1], told[0]))


@torch.no_grad()
def fill(processes: ManyProcesses, found: Checkpoint, decoder: Decoder) -> dict[str, Tensor]:
    """Read a checkpoint's weights into the decoder, each process its shards; what lies beside them, sharded alike."""
    parameters = dict(decoder.named_parameters())
    tensors = {name: tensor.detach() for name, tensor in decoder.state_dict().items()}
    moments, plain = dict[str, Tensor](), dict[str, Tensor]()
    with safe_open(found.path / MOMENTS, framework="pt") as file:
        for path in file.keys():  # noqa: SIM118 - no mapping
            name, _, _ = path.rpartition("/")
            if file.get_slice(path).get_shape() == list(parameters[name].shape):
                moments[path] = torch.zeros_like(parameters[name]).detach()
            else:
                plain[path] = file.get_tensor(path)
    reader = HuggingFaceStorageReader(str(found.path))
    load(tensors | moments, storage_reader=reader, process_group=processes.saving)
    return moments | plain
