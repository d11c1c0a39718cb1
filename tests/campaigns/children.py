"""A command in a child of this process, which has imported everything already: an input costs milliseconds.

The child does what `linnet` does as a process of its own: arguments, streams, the interpreter's last words for an
exception that nobody caught. Its memory and its time are bounded.
"""

import faulthandler
import fcntl
import importlib
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import linnet

LIMIT_S = 20.0
"""A command of the campaigns takes a second; one that takes so long hangs."""

MEMORY_BYTES = 4 << 30
"""What a child may take beside what stands already."""

GRACE_S = 5.0
KEPT = 1_000_000
F_SETPIPE_SZ = 1031

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ON_TERMINAL = [False]
"""Whether children say what they say of themselves to a terminal, where there is progress to be seen."""

Arrange = Callable[[], None]
"""What a child does before its command: an attack from within."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `code` is negative where a signal ended it; `working`: it still said things at the limit."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False
    working: bool = False


def warm_up() -> None:
    """Import all that a command may import, and start no thread."""
    assert os.environ.get("OMP_NUM_THREADS") == "1", "set OMP_NUM_THREADS=1: a process with threads cannot be forked"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("COLUMNS", "100")
    for module in pkgutil.walk_packages(linnet.__path__, "linnet."):
        if not module.name.rpartition(".")[2].startswith("_"):  # `__main__`, and kernels, which want Triton
            importlib.import_module(module.name)
    import torch._dynamo  # noqa: F401 - optimizers import it when they are made

    from linnet.cli.main import VERBS, load_verb

    for verb in VERBS:
        load_verb(verb)


def command_line() -> int:
    """What a child runs unless it is given something else. (The tests of the frame put something broken here.)"""
    from linnet.cli.main import main

    return main()


def run(
    words: Sequence[str],
    folder: Path,
    arrange: Arrange | None = None,
    program: Callable[[], int] | None = None,
    limit_s: float = LIMIT_S,
    signal_after_s: float | None = None,
    number: int = signal.SIGKILL,
) -> Outcome:
    """`linnet WORDS` in `folder`; after `signal_after_s` it gets the signal `number`."""
    return Child(words, folder, arrange, program).ended(limit_s, signal_after_s, number)


class Child:
    """A command at work."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        arrange: Arrange | None = None,
        program: Callable[[], int] | None = None,
    ) -> None:
        self.said, self.heard = [b"", b""], 0
        pipes = [_pipe(), os.openpty() if ON_TERMINAL[0] else _pipe()]
        self.readers = [reader for reader, _ in pipes]
        for reader in self.readers:
            os.set_blocking(reader, False)
        self.began = time.monotonic()
        sys.stdout.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a child that is not yet the command has none
        self.process = os.fork()
        if self.process == 0:
            _be_the_command(words, folder, [writer for _, writer in pipes], arrange, program or command_line)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for _, writer in pipes:
            os.close(writer)

    def ended(
        self, limit_s: float = LIMIT_S, signal_after_s: float | None = None, number: int = signal.SIGKILL
    ) -> Outcome:
        """Wait for its end, or bring it about."""
        code, hung, working = self._wait(limit_s, signal_after_s, number)
        seconds = time.monotonic() - self.began
        self._listen()
        for reader in self.readers:
            os.close(reader)
        out, err = (content.decode("utf-8", errors="surrogateescape") for content in self.said)
        return Outcome(code, out, err, seconds, hung, working)

    def _listen(self) -> int:
        """Take in what was said; how much it is by now."""
        for number, reader in enumerate(self.readers):
            with suppress(OSError):  # nothing there now, or a terminal that nobody writes to any more
                while content := os.read(reader, 1 << 20):
                    self.said[number] = (self.said[number] + content)[-KEPT:]
                    self.heard += len(content)
        return self.heard

    def _wait(self, limit_s: float, signal_after_s: float | None, number: int) -> tuple[int, bool, bool]:
        said, hung, working, pause_s = 0, False, False, 0.001
        while True:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), hung, working
            passed, heard = time.monotonic() - self.began, self._listen()
            if signal_after_s is not None and passed >= signal_after_s:
                os.kill(self.process, number)
                signal_after_s = None
            if passed < limit_s / 2:
                said = heard
            elif passed > limit_s and not hung:
                hung, working = True, heard > said
                os.kill(self.process, signal.SIGINT)
            elif passed > limit_s + GRACE_S:
                working = False
                os.kill(self.process, signal.SIGKILL)
            time.sleep(pause_s)
            pause_s = min(0.02, pause_s * 1.3)


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, F_SETPIPE_SZ, 1 << 20)
    return reader, writer


def _be_the_command(
    words: Sequence[str], folder: Path, streams: list[int], arrange: Arrange | None, program: Callable[[], int]
) -> None:
    code = 70
    try:
        faulthandler.disable()
        os.setsid()
        os.chdir(folder)
        _use(streams)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGPIPE else signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        resource.setrlimit(resource.RLIMIT_AS, (memory_taken() + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["linnet", *words]
        if arrange:
            arrange()
        code = _interpreted(program)
    except KeyboardInterrupt:  # before or after the command
        code = 130
    except BaseException:  # of the frame itself
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _interpreted(program: Callable[[], int]) -> int:
    """The program as the interpreter runs it, to the exit code."""
    code = 0
    try:
        code = program()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BaseException:
            if stream is sys.stdout:
                print("Exception ignored: Traceback of the last flush", file=sys.stderr)
            code = 120
    return code & 0xFF


def _use(streams: list[int]) -> None:
    for number, handle in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the process's own
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115


def memory_taken() -> int:
    """Bytes of address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
