"""Python processes that start with the imports done, for tests with the fixture `warm_python`.

Imports of PyTorch and of the commands take a process two to four seconds, and a short training run a fraction of one.
Here a server process imports them once and forks. What it starts is in all else a process of its own (arguments,
environment, folder, streams, signals, exit code) and a child of the tests, as Linux lets a process adopt its
descendants. On other systems, and for other commands than `sys.executable`, `WarmPython` is `subprocess.Popen`. Tests
of how a process starts (what it imports, what Python reads from the environment) do not use it.
"""

import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from pathlib import Path
from subprocess import DEVNULL, Popen  # as it is: a fixture replaces it in its module
from typing import Any

IMPORTS = (
    "linnet.cli.compare",
    "linnet.cli.generate",
    "linnet.cli.main",
    "linnet.cli.prepare",
    "linnet.cli.train",
    "linnet.inference.step_packages",
    "linnet.training.parallel",
    "linnet.training.run",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
READ_AT_START = ("PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS", "ATEN_CPU_CAPABILITY")
"""Variables that have an effect only before Python or PyTorch starts."""

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
GIVEN = ("close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell", *PIPES)
GIVEN += ("restore_signals", "gid", "gids", "uid", "umask", "start_new_session")
"""What `subprocess.Popen` gives `_execute_child`, after the first three."""


class WarmPython(Popen):
    """`Popen` of `[sys.executable, FILE or -c PROGRAM or -m MODULE, ...]`."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        given = dict(zip(GIVEN, rest, strict=False))
        environment = dict(os.environ if given["env"] is None else given["env"])
        if not is_python(args) or differs_at_start(environment):
            super()._execute_child(args, executable, preexec_fn, *rest)
            return
        job = {
            "arguments": [os.fspath(word) for word in args[1:]],
            "environment": environment,
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "session": given["start_new_session"],
            "hears_hangups": signal.getsignal(signal.SIGHUP) != signal.SIG_IGN,
        }
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        self.pid = server().fork(job, [own if fd == -1 else fd for own, fd in enumerate(streams)])
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in PIPES))


def is_python(args: Any) -> bool:
    """Whether it is a command that the server can do, on a system where it can."""
    if sys.platform != "linux" or not isinstance(args, list | tuple) or len(args) < 2 or args[0] != sys.executable:
        return False
    return args[1] in ("-c", "-m") or not str(args[1]).startswith("-")


def differs_at_start(environment: dict[str, str]) -> bool:
    return any(environment.get(name) != os.environ.get(name) for name in READ_AT_START)


class Server:
    """The process that forks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # so that no import starts a thread, which a fork loses
        command = [sys.executable, __file__, str(its.fileno())]
        null = DEVNULL
        self.process = Popen(command, pass_fds=[its.fileno()], env=environment, stdin=null, stdout=null)
        its.close()

    def fork(self, job: dict[str, Any], streams: list[int]) -> int:
        """The process id of a child of this process that does the job."""
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        with self.lock:
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # for this fork only: other tests' orphans stay as they are
            try:
                socket.send_fds(self.socket, [b"job"], streams)
                self.socket.sendall(json.dumps(job).encode())
                answer = self.socket.recv(32)
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the server of warm processes ended"
        return int(answer)


@functools.cache
def server() -> Server:
    return Server()


def serve(requests: socket.socket) -> dict[str, Any]:
    """Answer until the tests end; what a forked process returns with is its job."""
    while True:
        word, streams, _, _ = socket.recv_fds(requests, 16, 3)
        if not word:
            os._exit(0)
        job = json.loads(requests.recv(1 << 20))
        read, written = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child:
                os.write(written, str(child).encode())
                os._exit(0)
            os.close(read)
            os.close(written)
            requests.close()  # the object too: at the end it would close its number, whoever has it then
            become(job, streams)
            return job
        os.close(written)
        for fd in streams:
            os.close(fd)
        os.waitpid(between, 0)  # then the tests have adopted its child
        requests.send(os.read(read, 32))
        os.close(read)


def become(job: dict[str, Any], streams: list[int]) -> None:
    """What a new process finds."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL if job["hears_hangups"] else signal.SIG_IGN)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    if job["session"]:
        os.setsid()
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    encoding = {"encoding": "utf-8"}
    sys.stdin = os.fdopen(0, **encoding, closefd=False)
    sys.stdout = os.fdopen(1, "w", **encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", **encoding, closefd=False, errors="backslashreplace", buffering=1)
    paths = job["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in paths if path and path not in sys.path[1:]]  # the first is the program's own


def do(arguments: list[str]) -> None:
    """As `python ARGUMENTS`."""
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[0] = ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and then the connection
    os.fsync = lambda handle: None  # as in the tests themselves
    for name in IMPORTS:
        importlib.import_module(name)
    sys.modules["linnet.inference.step_packages"].BUILDS.enabled = False  # nothing is compiled beside the tests
    gc.collect()
    gc.freeze()  # so that the collector of a fork does not copy this memory
    do(serve(requests)["arguments"])


if __name__ == "__main__":
    main()
