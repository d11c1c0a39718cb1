"""`linnet train` in a process that has room for so many rows of its own alone; run as a program.

`python limited_room.py PLACE ROOM... -- ARGUMENTS`: the room of each process, or `all`; PLACE, where it runs out of
memory in its third step: in the `forward` or `backward` pass, or in the `update`.
"""

import operator
import os
import sys
import time

from linnet.cli.main import main
from linnet.training import distributed, trainer
from linnet.training.distributed import Processes

PLACES = ("forward", "backward", "update")
PASSES_BEFORE = 4
"""Of the first two steps, of two batches each."""


class Limited:
    """Counts the passes of a decoder, and runs out of memory."""

    def __init__(self, place: str, rooms: list[str]) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self.room = sys.maxsize if rooms[rank] == "all" else int(rooms[rank])
        self.place, self.passes, self.rows = place, 0, 0
        self.before, self.failing = (sum(room != "all" for room in some) for some in (rooms[:rank], rooms))

    def configure_objective(self, *given):
        """The objective that the trainer asks for, and the place where it ends."""
        objective = self.make_objective(*given)

        def in_the_midst(layer, given, out):
            self.at("forward")
            if out.requires_grad:
                out.register_hook(lambda _: self.at("backward"))

        given[2].layers[0].register_forward_hook(in_the_midst)

        def minimized(decoder, batch):
            self.passes, self.rows = self.passes + 1, len(batch)
            return objective(decoder, batch)

        return minimized

    def build_optimizer(self, *given):
        """The optimizer, which needs memory as well."""
        optimizer = self.make_optimizer(*given)
        update, parameters = optimizer.step, list(given[1].parameters())

        def step():
            self.at("update")
            assert all(p.grad is not None for p in parameters), "a step that is measured is a whole step"
            assert all(map(operator.is_, parameters, given[1].parameters())), "layers are still gathered"
            update()

        optimizer.step = step
        return optimizer

    def at(self, place: str) -> None:
        """Fail here, where it is the place, and the room too small."""
        if place == self.place and self.rows > self.room and self.passes > PASSES_BEFORE:
            wait_for_leavers(self.before)  # the first process fails first
            raise MemoryError

    make_objective, make_optimizer = staticmethod(trainer.configure_objective), staticmethod(trainer.build_optimizer)


def wait_for_leavers(count: int) -> None:
    """Until so many processes have left the group."""
    with distributed.join_processes() as processes:
        while count and processes._store.add("linnet/leavers", 0) < count:
            time.sleep(0.01)


def run_limited() -> None:
    cut = sys.argv.index("--")
    place, *rooms = sys.argv[1:cut]
    limited = Limited(place, rooms)

    def smallest_of_leavers(processes: Processes, number: int) -> int:
        """When all that fail have failed, however short the steps are that measure what fits."""
        wait_for_leavers(limited.failing)
        return smallest(processes, number)

    smallest, Processes.smallest_of_leavers = Processes.smallest_of_leavers, smallest_of_leavers
    trainer.configure_objective, trainer.build_optimizer = limited.configure_objective, limited.build_optimizer
    sys.argv[1:] = sys.argv[cut + 1 :]
    main()


if __name__ == "__main__":
    run_limited()
