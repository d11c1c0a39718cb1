"""Where tasks run that do not depend on each other: in processes of this machine, on Ray, or on Slurm.

A task is a folder and a number. A worker carries it out by `run_worker(folder, index, threads)` of a module, which
`python -m MODULE FOLDER INDEX [THREADS]` calls too. A task leaves its results in the folder, and continues there when
it is started again, so a killed worker costs the work since the task last saved.
"""

import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from linnet.core.errors import UserError, first_line, one_line
from linnet.core.files import write_text
from linnet.core.system import StopRequest

DONE, REFUSED, STOPPED = 0, 2, 75
"""Exit codes of a worker; the last is EX_TEMPFAIL: the task was asked to stop, and saved."""

POLL_S, SLURM_POLL_S = 0.1, 2.0
SLURM_MOST = 1000
"""Tasks at a time that are all that an array may have, unless Slurm is configured otherwise."""

RAY_RETRIES = 3
"""Times that Ray starts a task again whose worker died."""


class TaskOutcome(NamedTuple):
    """How a task ended: the exit code, and why it failed if its worker did not print that."""

    code: int
    reason: str = ""


class TasksStopped(Exception):  # noqa: N818 - a user asked for it
    """A run of tasks was asked to stop (by `signal`); each of them saved its state or did not begin."""

    def __init__(self, signal: int | None) -> None:
        super().__init__("stopped")
        self.signal = signal


@dataclass(frozen=True)
class TaskList:
    """Tasks that one module carries out in one folder.

    module: the name of the module with `run_worker`, which returns a `TaskOutcome`. titles: what each task is called in
    messages. failed: what messages say of a task that failed, as "not trained". is_done: whether the results of the
    task with a number are there. finished: is told the number of each task as it ends.
    """

    module: str
    folder: Path
    name: str
    titles: Sequence[str]
    failed: str
    is_done: Callable[[int], bool]
    log: Callable[[str], None]
    finished: Callable[[int], None] = lambda index: None

    def refuse(self, index: int, reason: str) -> NoReturn:
        """`UserError` that names the folder and a task."""
        problem = f"{self.folder}: {self.titles[index]}: {self.failed}: {reason}"
        raise UserError(f"{problem}; the same command continues")


class TaskExecutor(Protocol):
    """Carries out tasks; their results lie in the folder afterwards.

    Raises `TasksStopped` if it was asked to stop, `UserError` if a task failed.
    """

    def run(self, tasks: TaskList) -> None: ...


@dataclass(frozen=True)
class LocalTasks:
    """This machine: up to `workers` tasks at a time, in processes of their own."""

    workers: int = 1

    def run(self, tasks: TaskList) -> None:
        waiting = list(range(len(tasks.titles)))
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        running: dict[int, subprocess.Popen[bytes]] = {}
        asked = False
        with StopRequest() as stop:
            try:
                while running or (waiting and not stop.requested):
                    while waiting and len(running) < self.workers and not stop.requested:
                        index = waiting.pop(0)
                        command = [sys.executable, "-m", tasks.module, str(tasks.folder), str(index), str(threads)]
                        running[index] = subprocess.Popen(command, start_new_session=True)
                    if stop.requested and not asked:
                        asked = True
                        for process in running.values():
                            process.send_signal(signal.SIGTERM)  # the workers save their state, and end
                    for index, process in list(running.items()):
                        if (code := process.poll()) is not None:
                            del running[index]
                            if code not in (DONE, STOPPED):
                                tasks.refuse(index, f"its process ended with code {code}")
                            tasks.finished(index)
                    time.sleep(POLL_S)
            finally:
                for process in running.values():
                    process.send_signal(signal.SIGTERM)
                for process in running.values():
                    process.wait()
        if stop.requested:
            raise TasksStopped(stop.signal)


@dataclass(frozen=True)
class RayTasks:
    """A Ray cluster: the one at `address` (or in RAY_ADDRESS), else one of `workers` on this machine.

    The folder, what the tasks read, and the linnet package must be reachable under the same paths on all nodes.
    """

    workers: int = 1
    address: str | None = None

    def run(self, tasks: TaskList) -> None:
        if not tasks.titles:
            return
        ray = import_ray()
        own = not ray.is_initialized()
        if own:
            address = self.address or os.environ.get("RAY_ADDRESS")
            local = {} if address else {"num_cpus": self.workers, "include_dashboard": False}
            try:
                ray.init(address=address, log_to_driver=True, configure_logging=False, **local)
            except Exception as error:  # of many kinds, and for a slow start of none in particular
                place = f"Ray at {address} is not reached" if address else "Ray does not start on this machine"
                raise UserError(f"{place}: {one_line(str(error))}", field="executor", value="ray") from None
        run_worker = importlib.import_module(tasks.module).run_worker
        work = ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(run_worker)
        threads, folder = max(1, (os.cpu_count() or 1) // self.workers), str(tasks.folder.resolve())
        pending = {work.remote(folder, index, threads): index for index in range(len(tasks.titles))}
        try:
            with StopRequest() as stop:
                while pending:
                    finished, _ = ray.wait(list(pending), timeout=POLL_S)
                    for reference in finished:
                        index = pending.pop(reference)
                        try:
                            code, reason = ray.get(reference)
                        except ray.exceptions.RayTaskError as error:
                            tasks.refuse(index, f"its worker failed: {str(error).strip().splitlines()[-1]}")
                        except ray.exceptions.RayError as error:
                            lost = first_line(error)
                            tasks.refuse(index, f"its worker died {RAY_RETRIES + 1} times ({lost})")
                        if code not in (DONE, STOPPED):
                            tasks.refuse(index, reason or f"its worker ended with code {code}")
                        tasks.finished(index)
                    if stop.requested:
                        for reference in pending:
                            ray.cancel(reference)  # the worker gets SIGINT, and saves
                        ray.wait(list(pending), num_returns=len(pending), timeout=60) if pending else None
                        raise TasksStopped(stop.signal)
        finally:
            if own:
                ray.shutdown()


def import_ray() -> Any:
    """The package ray; `UserError` that names the extra where it is missing."""
    try:
        import ray
    except ImportError:
        raise UserError("ray is not installed; pip install 'linnet[ray]'", field="executor", value="ray") from None
    return ray


@dataclass(frozen=True)
class SlurmTasks:
    """A Slurm cluster: one job array for all tasks, at most `workers` of them at a time; waits until it has ended.

    options: of sbatch, as `--time=4:00:00`. The folder, what the tasks read, and the Python environment must lie on a
    shared file system.
    """

    workers: int = 1
    options: tuple[str, ...] = ()

    def run(self, tasks: TaskList) -> None:
        if not tasks.titles:
            return
        script = tasks.folder.resolve() / "slurm" / "job.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        write_text(script, self.script(tasks))
        tasks.log(f"slurm: {len(tasks.titles)} jobs by {script}; logs beside it")
        waiting = set(range(len(tasks.titles)))

        def count_done() -> None:
            for index in filter(tasks.is_done, sorted(waiting)):
                waiting.discard(index)
                tasks.finished(index)

        code = _submit(script, count_done)
        count_done()
        for index in sorted(waiting):
            log = script.parent / f"{index}.log"
            reason = f"not finished (sbatch ended with code {code}); see {log}{_last_error(log)}"
            raise UserError(f"{tasks.titles[index]}: {reason}")

    def script(self, tasks: TaskList) -> str:
        """The batch script of the array."""
        folder = tasks.folder.resolve()
        environment = [f"export {key}={shlex.quote(os.environ[key])}" for key in ("PYTHONPATH",) if key in os.environ]
        directives = [
            f"--job-name={shlex.quote('linnet ' + tasks.name).replace(' ', '-')}",
            f"--array=0-{len(tasks.titles) - 1}%{self.workers}",
            f"--output={folder / 'slurm'}/%a.log",
            *self.options,
        ]
        lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives), *environment]
        worker = shlex.join([sys.executable, "-m", tasks.module, str(folder)])
        return "\n".join([*lines, f"cd {shlex.quote(str(Path.cwd()))}", f'exec {worker} "$SLURM_ARRAY_TASK_ID"']) + "\n"


def _submit(script: Path, meanwhile: Callable[[], None]) -> int:
    """Submit a batch script and wait until its tasks have ended; the exit code of sbatch."""
    try:
        process = subprocess.Popen(["sbatch", "--wait", str(script)])
    except FileNotFoundError:
        raise UserError("there is no sbatch here", field="executor", value="slurm") from None
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(SLURM_POLL_S)
            meanwhile()
    except BaseException:
        process.kill()
        process.wait()
        raise


def _last_error(log: Path) -> str:
    """What the log of a task says at its end, if that is an error of the task's own."""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")[-2:]
        if lines[0].startswith("error: "):
            return f": {lines[0]}"
    return ""


def cluster_executor(name: str, workers: int | None, options: Sequence[str] = ()) -> TaskExecutor | None:
    """The executor for `ray` or `slurm`, None for `local`; options: of sbatch.

    workers: tasks at a time; None: as many as this machine has processors with Ray, all with Slurm.
    `UserError` for another name, and for options of sbatch with another than Slurm.
    """
    if options and name != "slurm":
        raise UserError(field="slurm_option", value=options[0], accepted="only with the slurm executor")
    if name == "local":
        return None
    if name == "ray":
        return RayTasks(workers or os.cpu_count() or 1)
    if name == "slurm":
        return SlurmTasks(workers or SLURM_MOST, tuple(options))
    raise UserError(field="executor", value=name, accepted="local, ray or slurm")
