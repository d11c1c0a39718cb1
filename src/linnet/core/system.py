"""The machine and the process: memory, the C library's allocator, the load of other programs, signals, launches.

This module imports neither PyTorch nor psutil: the command line asks it at every start, help included.
"""

import ctypes
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from linnet.core.errors import UserError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

_CGROUP = Path("/sys/fs/cgroup")

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt`."""

DEVICES = ("cpu", "cuda", "mps")
"""The kinds of devices that models run on."""

ENDING_SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a process. Windows has no SIGHUP."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that torchrun sets in each process it starts; other launchers set them too."""

SCATTER_LIMIT = 1.4
"""Times scatter noticeably if the slowest tenth takes this many times the median (measured in experiments/LOG.md)."""

NOTICEABLE_LOAD = 0.25
"""Processors that other programs use: from this load on they are mentioned."""


def processor_name() -> str:
    """The name of the processor, as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def synchronize(device: "torch.device") -> None:
    """Wait until a device has done what it has been given, so that a clock read next includes it."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def available_bytes(device: "torch.device") -> int:
    """Bytes that this process can still allocate on a device.

    On the CPU the machine's free memory, the process's address space limit and its container's limit all count.
    """
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # of PyTorch's own cache
        return int(free + unused)
    import psutil

    limits = [int(psutil.virtual_memory().available)]
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(max(0, limit - int(psutil.Process().memory_info().vms)))
    with suppress(OSError):  # no container, or not Linux
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # The page cache in a container (cgroup 2) can be reclaimed, so it counts as free.
        cached = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))
        if most != "max":
            limits.append(max(0, int(most) - int(used) + cached))
    return min(limits)


def resolve_device(name: str, field: str = "device") -> "torch.device":
    """`auto` (cuda if present, else cpu), `cpu`, `cuda`, `cuda:1` or `mps`; `UserError` for a device that is absent.

    `auto` does not select Apple's GPUs (`mps`): for small models their processors are often faster.
    """
    import torch

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
    import torch

    if sys.platform == "linux":
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees; return True if that took effect.

    glibc returns a large block to the system when it is freed, so that every training step touches its pages for the
    first time again: up to a third of the time of long sequences (experiments/LOG.md). Nothing is changed where the C
    library is not glibc or where the user has configured it (`MALLOC_...`, `GLIBC_TUNABLES`). The setting holds until
    the process ends, so it is for programs, not for libraries.
    """
    configured = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if configured or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    never = 2**31 - 1
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, never))


class NotDistributedError(UserError):
    """A verb that runs in one process was started in several; each of them raises this error."""


def is_distributed() -> bool:
    """True if this process is one of several that were started together, as torchrun starts them."""
    count = os.environ.get("WORLD_SIZE", "1")
    return all(name in os.environ for name in TORCHRUN_VARIABLES) and count.isdecimal() and int(count) > 1


def is_rank0() -> bool:
    """True for the one process of a launch that prints what every process would print."""
    return not is_distributed() or os.environ["RANK"] == "0"


def refuse_distributed(verb: str) -> None:
    """`NotDistributedError` if this process is one of several."""
    if is_distributed():
        raise NotDistributedError(f"{verb}: runs in one process, not in {os.environ['WORLD_SIZE']}; leave torchrun out")


def quiet_torch_distributed() -> None:
    """Silence PyTorch's messages about lost connections, which would bury ours. Call before importing PyTorch."""
    if is_distributed():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def exit_process(code: int) -> None:
    """End a process of a distributed launch at once; do nothing in any other process.

    A normal exit would wait for threads that wait for other processes. (PyTorch 2.13 also aborts occasionally when the
    threads of its process groups still run at exit.)
    """
    if is_distributed():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def scatter(times_s: Sequence[float]) -> float:
    """The 90th percentile of times of the same work over their median: near 1 on a quiet machine."""
    ordered, quantiles = sorted(times_s), []
    for share in (0.9, 0.5):
        below, rest = divmod(share * (len(ordered) - 1), 1)
        first = ordered[int(below)]
        quantiles.append(first if rest == 0 else first + rest * (ordered[int(below) + 1] - first))
    return quantiles[0] / quantiles[1]


class OtherPrograms:
    """Measures the processor time that other programs use from its creation on."""

    def __init__(self) -> None:
        self._begun = self._now()

    def processors(self) -> float:
        """The mean number of processors busy with other programs; 0 where the system does not tell."""
        now = self._now()
        wall, all_s, own_s = (end - start for end, start in zip(now, self._begun, strict=True))
        return max(0.0, (all_s - own_s) / wall) if wall > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of the clock, of all busy processors, and of this process."""
        import psutil

        try:
            found = psutil.cpu_times()
        except (OSError, RuntimeError):
            return time.monotonic(), 0.0, 0.0
        idle = found.idle + getattr(found, "iowait", 0.0)
        # Linux counts the time of virtual machines among the users' time as well.
        guests = getattr(found, "guest", 0.0) + getattr(found, "guest_nice", 0.0)
        return time.monotonic(), sum(found) - idle - guests, time.process_time()


def is_overloaded(others: float, threads: int) -> bool:
    """True if other programs (`others` processors) and `threads` together need more processors than there are."""
    return others >= NOTICEABLE_LOAD and others + threads > (os.cpu_count() or 1) + NOTICEABLE_LOAD


def busy_advice(others: float, remedies: str) -> str:
    """Why times scatter and what the user can do: `remedies`, if other programs are the cause."""
    if others < NOTICEABLE_LOAD:
        return "other programs use hardly any processor: heat, saving of power, or a shared virtual machine may be why"
    return f"other programs use {others:.1f} of {os.cpu_count()} processors: end them, {remedies}"


class DeferredSignals:
    """A block that no handler of SIGINT, SIGTERM or SIGHUP interrupts: those signals are handled when it ends.

    The handlers of a command raise an exception, which otherwise could arrive between the making of a file and the
    `try` that removes it. Inside `handled()` signals are handled at once. Ignored signals stay ignored; one without a
    handler in Python ends the process as ever. Python runs handlers in the main thread alone.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._defer()
        return self

    def __exit__(self, *error: object) -> None:
        self._handle()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals in this block, which a `finally` outside of it cleans up after."""
        self._handle()
        try:
            yield
        finally:
            self._defer()

    def _defer(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in ENDING_SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, lambda caught, _: self._waiting.append(caught))
        except BaseException:  # a handler ran in between
            self._handle()
            raise

    def _handle(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
        while self._waiting:
            signal.raise_signal(self._waiting.pop())


class Stopped(Exception):  # noqa: N818 - not an error: a stop was requested
    """Raised between two items of work that can be left for later."""


class StopRequest:
    """A context in which Ctrl-C, SIGTERM and SIGHUP only set `requested`; `signal` is the first one received.

    A second Ctrl-C therefore cannot interrupt the saving that the first one started. Outside the main thread, where
    Python cannot handle signals, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():

            def request(number: int, frame: FrameType | None) -> None:
                self.requested, self.signal = True, self.signal or number

            heard = [number for number in ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup`
            self._before = {number: signal.signal(number, request) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def until_requested(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; `Stopped` before the next one once a stop is requested."""
        for item in items:
            if self.requested:
                raise Stopped
            yield item
