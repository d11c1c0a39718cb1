"""Several processes that train one model, started by torchrun on one machine or on many.

Three groups keep what happens at the same time apart: PyTorch's own carries tensors of the device (NCCL, or gloo on
CPUs), `talk` the few words of the processes to each other, `saving` what is said while a checkpoint is written.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.device import resolve_device
from linnet.training.distributed import (
    Batch,
    Item,
    LostProcessError,
    Made,
    PeerError,
    Processes,
)
from linnet.training.processes import shards
from linnet.training.progress.stopwatch import Stopwatch
from linnet.training.stop import Stopped, StopRequest

TIMEOUT_S = 600.0
"""Who is waited for longer is lost. A process that was killed is noticed at once, as its connections are closed."""

_BROKEN = r"gloo|[Cc]onnection|[Bb]roken pipe|[Tt]imed out|NCCL|[Ss]ocket"
"""What PyTorch says of a collective operation that another process does not take part in any more."""


class ManyProcesses(Processes):
    """One of several; every method is called by all of them, in the same order.

    written: what becomes of the checkpoint that is being written, if one is. apart: whether it takes no part any more
    in what all do together (`leave_group`).
    """

    apart, _on_gpu = False, False

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.on_this_machine = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        self.talk, self.saving = (dist.new_group(backend="gloo") for _ in range(2))
        self.written: Future[Any] | None = None
        self._store = dist.distributed_c10d._get_default_store()
        self._fails_first: bool | None = None
        self._number_apart = 0
        self._waits = Stopwatch()

    @property
    def waited_s(self) -> float:  # type: ignore[override]
        """Seconds in collective operations: until the others came, and until the data were there.

        Of what runs in the background (sums of gradients) only the wait in the end counts. On a GPU those of FSDP run
        beside what it computes, and are measured on their own stream.
        """
        return self._waits.seconds

    def waiting(self, device: torch.device) -> Any:
        """A context whose time counts as waiting."""
        return self._waits.running(device)

    def sum(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> None:
        """Make of a tensor the sum over a group of processes."""
        with self.waiting(tensor.device):
            if not self.apart:
                dist.all_reduce(tensor, group=group)

    def begin_sum(self, tensor: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
        """The same in the background, to be waited for; None where there is nothing to wait for."""
        return None if self.apart else dist.all_reduce(tensor, group=group, async_op=True)

    def any(self, flag: bool) -> bool:
        """Whether one of them says so."""
        said = torch.tensor([flag], dtype=torch.int32)
        self.sum(said, self.talk)
        return bool(said.item())

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all of them, the same for each."""
        summed = sums.clone()
        self.sum(summed)
        return summed

    def sum_of(self, number: float) -> float:
        """The sum of each one's number."""
        summed = torch.tensor(number, dtype=torch.float64)
        self.sum(summed, self.talk)
        return summed.item()

    def gather(self, plain: Item) -> list[Item]:
        """What each of them has, for the first; an empty list for the others."""
        found: list[Any] | None = [None] * self.count if self.first else None
        with self.waiting(torch.device("cpu")):
            dist.gather_object(plain, found, group=self.talk)
        return found or []

    def broadcast_from_rank0(self, make: Callable[[], Made]) -> Made:
        """What the first makes, for all of them; so is a `UserError`. Plain data alone."""
        made: list[Any] = [None, None]
        if self.first:
            try:
                made[0] = make()
            except UserError as error:
                made[1] = error
        with self.waiting(torch.device("cpu")):
            dist.broadcast_object_list(made, group=self.talk)
        if made[1] is not None:
            raise made[1]
        value: Made = made[0]
        return value

    def shard_batch(self, batch: Batch) -> Batch:
        """This one's rows of a batch `[B, T]`: `B / count` of them, in the order of the ranks."""
        inputs, targets = batch
        own = inputs.shape[0] // self.count
        part = slice(self.rank * own, (self.rank + 1) * own)
        return inputs[part], targets[part]

    def until_requested(self, stop: StopRequest, items: Iterable[Item]) -> Iterator[Item]:
        """Every so-manieth item; whether they were stopped, they agree on behind the last."""
        for number, item in enumerate(items):
            if stop.requested:
                break
            if number % self.count == self.rank:
                yield item
        if self.any(stop.requested):
            raise Stopped

    def within_step(self, stop: StopRequest) -> Callable[[Iterable[Item]], Iterator[Item]]:
        """All of a step's batches: they can stop together behind a step alone."""
        return iter

    def device(self, name: str) -> torch.device:
        """The GPU of this process's number on its machine, or the CPU."""
        device = resolve_device(name, "training.device")
        if device.type != "cuda":
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
        self._on_gpu = True
        return torch.device("cuda", number)

    def leave_group(self) -> None:
        """Take no part any more in what all do together: from here on what is summed are this one's numbers alone.

        The others, in the midst of a step, wait until this one ends, and then end too. It is the one that says why.
        """
        self.fails_first()
        self._number_apart = self._store.add("linnet/apart", 1)
        self.apart = True
        shards.leave_group()
        if self._on_gpu:
            _cut()  # what was begun on a GPU, and never ends, would hold up all that comes behind it

    def least(self, number: int) -> int:
        """The least of the numbers that it and those have who went apart as well."""
        try:
            self._store.set(f"linnet/apart/{self._number_apart}", str(number))
            count = self._store.add("linnet/apart", 0)
            return min(int(self._store.get(f"linnet/apart/{each}")) for each in range(1, count + 1))
        except (RuntimeError, OSError):  # who kept it is gone, or somebody was killed
            return number

    def fails_first(self) -> bool:
        """Whether this process, which fails, is the first that does; it says why. `RuntimeError`: nobody can tell."""
        if self._fails_first is None:
            self._fails_first = self._store.add("linnet/failed", 1) == 1
        return self._fails_first

    def check_batch(self, batch_size: int, field: str = "training.batch_size") -> None:
        """`UserError` where a batch cannot be divided among them."""
        if batch_size % self.count:
            raise UserError(
                "does not divide",
                field=field,
                value=batch_size,
                accepted=f"a multiple of the {self.count} processes: it is the batch of all of them together",
            )


_joined: ManyProcesses | None = None


@contextmanager
def joined() -> Iterator[ManyProcesses]:
    """Meet the other processes, once; `UserError` where they cannot be met."""
    global _joined
    if _joined is not None:
        yield _joined
        return
    _meet()
    _joined = ManyProcesses()
    try:
        yield _joined
    except BaseException as error:
        _leave_with(error, _joined)
    else:
        dist.destroy_process_group()
    finally:
        _joined = None


def _meet() -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(f"MASTER_ADDR, MASTER_PORT: {where}: no other process there ({error})") from None


def _leave_with(error: BaseException, several: ManyProcesses) -> None:
    """Let only the first that fails say why. Whoever waits for this one ends when it does, as its connections close."""
    if isinstance(error, RuntimeError | OSError) and re.search(_BROKEN, str(error)):
        lost = "another process of this run ended, or does not answer; the same command goes on from what was saved"
        error = LostProcessError(lost)
    told = _told_by_another(error, several)
    if several.written is not None and not several.written.done() and dist.is_initialized():
        _cut()
    if told and isinstance(error, Exception):
        raise PeerError(2 if isinstance(error, UserError) else 1) from None
    raise error


def _told_by_another(error: BaseException, several: ManyProcesses) -> bool:
    try:
        return not several.fails_first()
    except (RuntimeError, OSError):  # who kept it is gone: a mistake of the user's all make alike, and that one told it
        return isinstance(error, UserError)


def _cut() -> None:
    """End what a background thread waits for: this process would wait for it, and others for this process."""
    try:
        dist.distributed_c10d._abort_process_group()
    except (RuntimeError, AttributeError, NotImplementedError):
        dist.destroy_process_group()
