"""The device that a model runs on, and threads in forked processes."""

import os
import sys
from functools import cache, partial

import torch

from linnet.core.errors import UserError

DEVICES = ("cpu", "cuda", "mps")


def resolve_device(name: str, field: str = "device") -> torch.device:
    """`auto` (cuda if present, else cpu), `cpu`, `cuda`, `cuda:1` or `mps`; `UserError` for a device that is absent.

    `auto` does not select Apple's GPUs (`mps`): for small models their processors are often faster.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICES:
        raise UserError(field=field, value=repr(name), accepted="auto, cpu, cuda, cuda with a number (cuda:1), or mps")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # the second if PyTorch was built without the device
        raise UserError("not available here; try auto or cpu", field=field, value=repr(name)) from None
    return device


@cache
def one_thread_in_forks() -> None:
    """Make processes that are forked from this one from now on compute with one thread.

    PyTorch on Linux, and with it the native code, uses the threads of GCC's OpenMP. A forked process has none of these
    threads, but OpenMP there still counts them as waiting, so a computation with two threads would wait forever.
    """
    if sys.platform == "linux":
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
