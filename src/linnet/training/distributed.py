"""The processes that train one model, and their collective operations.

One process is a group of one, for which every collective operation returns at once. torchrun starts several, on one
machine or on many. Optimizers and checkpoints see sharded tensors (PyTorch's `DTensor`) through the functions at the
end; a tensor that is not sharded is its own only shard.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.system import Stopped, StopRequest, is_distributed, resolve_device
from linnet.data.loader import Batch
from linnet.training.timing import Stopwatch

Item = TypeVar("Item")

# PyTorch 2.13 renamed these and warns about the old names.
all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

TIMEOUT_S = 600.0
"""A process that does not answer for so long is lost. A killed process is noticed at once: its connections close."""

_CONNECTION_LOST = r"gloo|[Cc]onnection|[Bb]roken pipe|[Tt]imed out|NCCL|[Ss]ocket"
"""What PyTorch's messages contain when another process no longer takes part in a collective operation."""


class LostProcessError(RuntimeError):
    """Another process of the run ended or does not answer. Steps after the last checkpoint have to be repeated."""


class PeerError(Exception):
    """This process ends because another one failed and reported the reason. `code`: the exit code to use."""

    def __init__(self, code: int) -> None:
        super().__init__("another process of the run reported the reason")
        self.code = code


class Processes:
    """This process (`rank`, from 0) among the `count` processes of the run, of which `local_count` are on this machine.

    Every method is called by all processes in the same order. Three groups separate concurrent traffic: PyTorch's
    default group carries tensors of the device (NCCL, or gloo on CPUs), `control` carries small messages, and `saving`
    carries the messages of a checkpoint that is written in the background (`pending_save`).

    waits: the time spent in collective operations, waiting for other processes and for the data. Sums of gradients run
    in the background; only the wait at their end counts. On a GPU, FSDP's operations run beside the computation and are
    measured on their own stream.
    """

    def __init__(self, joined: bool = False) -> None:
        """joined: PyTorch's default process group is initialized, and this process is one of it."""
        self.rank, self.count, self.local_count = 0, 1, 1
        self.pending_save: Future[None] | None = None
        self.left_group = False
        self.waits, self._uses_gpu = Stopwatch(), False
        self._fails_first: bool | None = None
        self._leaver_number = 0
        self.control: dist.ProcessGroup | None = None
        self.saving: dist.ProcessGroup | None = None
        if joined:
            self.rank, self.count = dist.get_rank(), dist.get_world_size()
            self.local_count = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
            self.control, self.saving = (dist.new_group(backend="gloo") for _ in range(2))
            self._store = dist.distributed_c10d._get_default_store()

    @property
    def is_rank0(self) -> bool:
        """True for the process that writes the run folder and prints."""
        return self.rank == 0

    def sum_in_place(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Replace a tensor by its sum over a group of processes."""
        if self.count > 1 and not self.left_group:
            with self.waits.running(tensor.device):
                dist.all_reduce(tensor, group=group)

    def any(self, flag: bool) -> bool:
        """True everywhere if `flag` is true in one of the processes."""
        return self.sum_number(float(flag)) > 0

    def total(self, sums: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.count == 1:
            return sums
        summed = sums.clone()
        self.sum_in_place(summed)
        return summed

    def sum_number(self, number: float) -> float:
        """The sum of a number over all processes."""
        if self.count == 1:
            return number
        summed = torch.tensor(number, dtype=torch.float64)
        self.sum_in_place(summed, self.control)
        return summed.item()

    def gather(self, plain: Item) -> list[Item]:
        """The values of all processes in rank 0, an empty list in the others."""
        if self.count == 1:
            return [plain]
        found: list[Any] | None = [None] * self.count if self.is_rank0 else None
        with self.waits.running(torch.device("cpu")):
            dist.gather_object(plain, found, group=self.control)
        return found or []

    def broadcast_from_rank0(self, make: Callable[[], Item]) -> Item:
        """Call `make` in rank 0 and return its result, plain data, in all processes; a `UserError` is raised in all."""
        if self.count == 1:
            return make()
        made: list[Any] = [None, None]
        if self.is_rank0:
            try:
                made[0] = make()
            except UserError as error:
                made[1] = error
        with self.waits.running(torch.device("cpu")):
            dist.broadcast_object_list(made, group=self.control)
        if made[1] is not None:
            raise made[1]
        value: Item = made[0]
        return value

    def shard_batch(self, batch: Batch) -> Batch:
        """The examples of a batch that belong to this process, equally many in each, in the order of the ranks."""
        own = batch.examples // self.count
        return batch.part(self.rank * own, (self.rank + 1) * own)

    def share_work(self, stop: StopRequest, items: Iterable[Item]) -> Iterator[Item]:
        """Every `count`-th item, for this process; `Stopped` in all processes if a stop is requested meanwhile."""
        if self.count == 1:
            yield from stop.until_requested(items)
            return
        for number, item in enumerate(items):
            if stop.requested:
                break
            if number % self.count == self.rank:
                yield item
        if self.any(stop.requested):  # agreed on after the last item
            raise Stopped

    def device(self, name: str) -> torch.device:
        """The device `name`; with several processes the GPU of this one's local rank. `UserError` if it is missing."""
        device = resolve_device(name, "training.device")
        if self.count == 1 or device.type != "cuda":
            return device
        number, found = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if device.index is not None:
            raise UserError(field="training.device", value=name, accepted="cuda: each process takes a GPU of its own")
        if number >= found:
            raise UserError(
                f"process {number + 1} of this machine finds {found} GPUs",
                field="training.device",
                value=name,
                accepted=f"at most --nproc-per-node {found}, or cpu",
            )
        torch.cuda.set_device(number)
        self._uses_gpu = True
        return torch.device("cuda", number)

    def leave_group(self) -> None:
        """Leave all collective operations: from now on sums are those of this process alone.

        The others wait in the middle of a step until this process ends, and then end too; this one reports the reason.
        """
        global _left_group
        if self.count == 1:
            return
        self.fails_first()
        self._leaver_number = self._store.add("linnet/leavers", 1)
        self.left_group = _left_group = True
        if self._uses_gpu:
            _abort_groups()  # an operation that was begun on a GPU and never ends would block all that follow

    def smallest_of_leavers(self, number: int) -> int:
        """The smallest of the numbers that this process and the others that left the group pass."""
        if self.count == 1:
            return number
        try:
            self._store.set(f"linnet/leavers/{self._leaver_number}", str(number))
            count = self._store.add("linnet/leavers", 0)
            return min(int(self._store.get(f"linnet/leavers/{each}")) for each in range(1, count + 1))
        except (RuntimeError, OSError):  # the process that holds the store is gone, or another was killed
            return number

    def fails_first(self) -> bool:
        """True if this is the first process to fail, which reports the reason. `RuntimeError` if that is unknown."""
        if self._fails_first is None:
            self._fails_first = self._store.add("linnet/failed", 1) == 1
        return self._fails_first

    def check_batch(self, batch_size: int, field: str = "training.batch_size") -> None:
        """`UserError`, which names the field, if a batch cannot be divided among the processes."""
        if batch_size % self.count:
            raise UserError(
                "does not divide",
                field=field,
                value=batch_size,
                accepted=f"a multiple of the {self.count} processes: it is the batch of all of them together",
            )


SINGLE_PROCESS = Processes()

_joined: Processes | None = None


@contextmanager
def join_processes() -> Iterator[Processes]:
    """The processes that this one was started with; nested calls yield the same group.

    If one process fails, all end: the first reports the reason, the others raise `PeerError`. `UserError` if the other
    processes cannot be reached.
    """
    global _joined
    if not is_distributed():
        yield Processes()
        return
    if _joined is not None:
        yield _joined
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(f"MASTER_ADDR, MASTER_PORT: {where}: no other process there ({error})") from None
    _joined = Processes(joined=True)
    try:
        yield _joined
    except BaseException as error:
        _fail(error, _joined)
    else:
        dist.destroy_process_group()
    finally:
        _joined = None


def _fail(error: BaseException, processes: Processes) -> None:
    """Raise the error in the first process that fails, `PeerError` in the others, which notice closed connections."""
    if isinstance(error, RuntimeError | OSError) and re.search(_CONNECTION_LOST, str(error)):
        error = LostProcessError(
            "another process of this run ended, or does not answer; the same command continues from what was saved"
        )
    try:
        reported = not processes.fails_first()
    except (RuntimeError, OSError):  # the store is gone; all processes make the same user error, and rank 0 reported it
        reported = isinstance(error, UserError)
    if processes.pending_save is not None and not processes.pending_save.done() and dist.is_initialized():
        _abort_groups()
    if reported and isinstance(error, Exception):
        raise PeerError(2 if isinstance(error, UserError) else 1) from None
    raise error


def _abort_groups() -> None:
    """Abort the operations that a background thread waits for; otherwise the process could not end."""
    try:
        dist.distributed_c10d._abort_process_group()
    except (RuntimeError, AttributeError, NotImplementedError):
        dist.destroy_process_group()


_left_group = False
"""True if this process left its group: `whole` returns zeros for the shards of others, of the same size in memory."""


def is_sharded(tensor: Tensor) -> bool:
    """True if other processes hold the rest of a tensor."""
    return type(tensor) not in (Tensor, torch.nn.Parameter)


def local(tensor: Any) -> Tensor:
    """The part of a tensor that is in this process."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def as_shard(part: Tensor, like: Any) -> Tensor:
    """A tensor with the shape and sharding of `like`, whose shard in this process is `part`."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


def whole(tensor: Any) -> Tensor:
    """The whole tensor, gathered from all shards (of its first dimension); called by all processes.

    `DTensor.full_tensor` is not used: its coalesced operation can corrupt the memory of a process. PyTorch 2.13 and
    earlier write the name of the last completed operation from both threads of a gloo group without a lock, and
    "ALLGATHER_COALESCED" is too long to be stored within the string object.
    """
    if not is_sharded(tensor):
        return cast(Tensor, tensor)
    if _left_group:
        return local(tensor).new_zeros(tensor.shape)
    part, mesh = local(tensor), tensor.device_mesh
    rows = -(-tensor.shape[0] // mesh.size())  # the last shards may have fewer, or none
    if len(part) < rows:
        part = torch.cat([part, part.new_zeros(rows - len(part), *part.shape[1:])])
    gathered = part.new_empty(rows * mesh.size(), *part.shape[1:])
    all_gather(gathered, part.contiguous(), group=mesh.get_group())
    return gathered[: tensor.shape[0]]


def part_of(full: Tensor, like: Any) -> Tensor:
    """The shard of a whole tensor for this process, with the sharding of `like`."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None).to_local()
