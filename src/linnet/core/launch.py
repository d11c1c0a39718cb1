"""Whether this process is one of several that were started together, as torchrun does; asked without PyTorch."""

import os
import sys
from contextlib import suppress

from linnet.core.errors import UserError

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process that it starts; who starts them in another way tells it too."""


class NotDistributedError(UserError):
    """What was asked for is not made for several processes; each of them finds so."""


def is_distributed() -> bool:
    """Whether it is one of several."""
    count = os.environ.get("WORLD_SIZE", "1")
    return all(name in os.environ for name in TORCHRUN_VARIABLES) and count.isdecimal() and int(count) > 1


def is_rank0() -> bool:
    """Whether it is the one that says what each of them would say, as that a command line is wrong."""
    return not is_distributed() or os.environ["RANK"] == "0"


def refuse_distributed(verb: str) -> None:
    """`NotDistributedError` where it is one of several."""
    if is_distributed():
        raise NotDistributedError(f"{verb}: runs in one process, not in {os.environ['WORLD_SIZE']}; leave torchrun out")


def quiet_torch_distributed() -> None:
    """Let PyTorch's own lines about lost connections not bury the one that says why; before it is imported."""
    if is_distributed():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def exit_process(code: int) -> None:
    """End at once, where it is one of several: nobody is to wait for a thread that waits for another process.

    (PyTorch 2.13 aborts now and then, too, when the threads of its process groups are still there at the end.)
    """
    if is_distributed():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
