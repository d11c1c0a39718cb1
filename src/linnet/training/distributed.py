"""The processes that train one model: this one, unless torchrun started several.

What is asked of all of them stands here in the form for one, where it costs nothing; `many` has the other form.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from linnet.core.system import is_distributed
from linnet.inference.device import resolve_device
from linnet.training.stop import StopRequest

Batch = tuple[Tensor, Tensor]
Item = TypeVar("Item")
Made = TypeVar("Made")


class LostProcessError(RuntimeError):
    """Another process of the run ended, or does not answer; what it had not saved is made again."""


class PeerError(Exception):
    """This process ends as well; why, another one said. `code`: the exit code that belongs to it."""

    def __init__(self, code: int) -> None:
        super().__init__("another process of the run said why")
        self.code = code


class Processes:
    """One process, the first of one.

    rank: its number, from 0. count: how many there are, on_this_machine: how many of them here. waited_s: the seconds
    that it has spent waiting for others.
    """

    rank, count, on_this_machine, waited_s = 0, 1, 1, 0.0

    @property
    def first(self) -> bool:
        """Whether it is the one that writes the run folder and speaks to the user."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Whether one of them says so."""
        return flag

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all of them, the same for each."""
        return sums

    def sum_of(self, number: float) -> float:
        """The sum of each one's number."""
        return number

    def gather(self, plain: Item) -> list[Item]:
        """What each of them has, for the first; an empty list for the others."""
        return [plain]

    def broadcast_from_rank0(self, make: Callable[[], Made]) -> Made:
        """What the first makes, for all of them; so is a `UserError`. Plain data alone."""
        return make()

    def shard_batch(self, batch: Batch) -> Batch:
        """This one's rows of a batch `[B, T]`."""
        return batch

    def until_requested(self, stop: StopRequest, items: Iterable[Item]) -> Iterator[Item]:
        """This one's share of some work; `Stopped`, for all of them, where a stop is requested meanwhile."""
        return stop.until_requested(items)

    def within_step(self, stop: StopRequest) -> Callable[[Iterable[Item]], Iterator[Item]]:
        """How the batches of a step are gone through: one process may leave off between two of them."""
        return stop.until_requested

    def device(self, name: str) -> torch.device:
        """The device of this one; `UserError` where there is none of that name."""
        return resolve_device(name, "training.device")

    def leave_group(self) -> None:
        """Take no part any more in what all do together: from here on what is summed are this one's numbers alone.

        The others, in the midst of a step, wait until this one ends, and then end too. It is the one that says why.
        """

    def least(self, number: int) -> int:
        """The least of the numbers that it and those have who went apart as well."""
        return number

    def check_batch(self, batch_size: int, field: str = "training.batch_size") -> None:
        """`UserError`, which names the field, where a batch cannot be divided among them."""


ALONE = Processes()


@contextmanager
def processes() -> Iterator[Processes]:
    """This process among those that it was started with; within it the same ones again.

    What ends one of them ends all: the first that fails says why, from the others comes `PeerError`.
    """
    if not is_distributed():
        yield Processes()
        return
    from linnet.training.processes.many import joined  # torch.distributed, where it is needed

    with joined() as several:
        yield several
