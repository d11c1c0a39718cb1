"""Where the jobs of a suite run: in this process, in several processes of this machine, on Ray, or on Slurm.

All but the first start `python -m linnet.experiments.executors DIR INDEX` (or the same function) for each job of
`DIR/jobs.json`. A job leaves its results in its run folder, and continues there when it is started again, so a killed
worker costs the steps since its last checkpoint.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError, print_error
from linnet.core.files import read_json, write_json, write_text
from linnet.experiments.jobs import ExperimentStopped, Job, Runner, is_complete, job_title, perform
from linnet.experiments.suite import SUITE, Suite
from linnet.training.distributed import StopRequest
from linnet.training.reporter import LineReporter

JOBS = "jobs.json"
DONE, REFUSED, STOPPED = 0, 2, 75
"""Exit codes of a worker; the last is EX_TEMPFAIL: the job was asked to stop, and saved."""

POLL_S = 0.1
RAY_RETRIES = 3
"""Times that Ray starts a job again whose worker died."""


@dataclass(frozen=True)
class JobContext:
    """What an executor needs: the suite, its folder, the runner for jobs in this process.

    calibration: returns the calibration file that a job takes from another run.
    """

    suite: Suite
    out: Path
    runner: Runner
    text: str | None
    calibration: Callable[[Job], Path | None]


class Executor(Protocol):
    """Carries out jobs that do not depend on each other; results lie in the run folders afterwards.

    Raises `ExperimentStopped` if it was asked to stop, `UserError` if a job cannot be trained.
    """

    def run(self, jobs: Sequence[Job], context: JobContext) -> None: ...


@dataclass(frozen=True)
class LocalExecutor:
    """This machine: one job after another in this process, or up to `workers` at a time in processes of their own."""

    workers: int = 1

    def run(self, jobs: Sequence[Job], context: JobContext) -> None:
        if self.workers == 1:
            for job in jobs:
                perform(context.suite, context.out, job, context.runner, context.text, context.calibration(job))
            return
        waiting = list(enumerate(_write_jobs(jobs, context)))
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = {}
        asked = False
        with StopRequest() as stop:
            try:
                while running or (waiting and not stop.requested):
                    while waiting and len(running) < self.workers and not stop.requested:
                        index, job = waiting.pop(0)
                        command = [sys.executable, "-m", __name__, str(context.out), str(index), str(threads)]
                        running[index] = job, subprocess.Popen(command, start_new_session=True)
                    if stop.requested and not asked:
                        asked = True
                        for _, process in running.values():
                            process.send_signal(signal.SIGTERM)  # the workers save their state, and end
                    for index, (job, process) in list(running.items()):
                        if (code := process.poll()) is not None:
                            del running[index]
                            if code not in (DONE, STOPPED):
                                _refuse(job, context, f"its process ended with code {code}")
                    time.sleep(POLL_S)
            finally:
                for _, process in running.values():
                    process.send_signal(signal.SIGTERM)
                for _, process in running.values():
                    process.wait()
        if stop.requested:
            raise ExperimentStopped("stopped; all jobs have saved their state", stop.signal)


@dataclass(frozen=True)
class RayExecutor:
    """A Ray cluster: the one at `address` (or in RAY_ADDRESS), else one of `workers` on this machine.

    The folder of the suite, the data and the linnet package must be reachable under the same paths on all nodes.
    """

    workers: int = 1
    address: str | None = None

    def run(self, jobs: Sequence[Job], context: JobContext) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("ray is not installed; pip install 'linnet[ray]'", field="executor", value="ray") from None
        todo = _write_jobs(jobs, context)
        own = not ray.is_initialized()
        if own:
            address = self.address or os.environ.get("RAY_ADDRESS")
            local = {} if address else {"num_cpus": self.workers, "include_dashboard": False}
            ray.init(address=address, log_to_driver=True, configure_logging=False, **local)
        work = ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(run_worker)
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        pending = {work.remote(str(context.out.resolve()), index, threads): job for index, job in enumerate(todo)}
        try:
            with StopRequest() as stop:
                while pending:
                    finished, _ = ray.wait(list(pending), timeout=POLL_S)
                    for reference in finished:
                        job = pending.pop(reference)
                        try:
                            code = ray.get(reference)
                        except ray.exceptions.RayError as error:
                            reason = str(error).splitlines()[0]
                            _refuse(job, context, f"its worker died {RAY_RETRIES + 1} times ({reason})")
                        if code not in (DONE, STOPPED):
                            _refuse(job, context, f"its worker ended with code {code}")
                    if stop.requested:
                        for reference in pending:
                            ray.cancel(reference)  # the worker gets SIGINT, and saves
                        ray.wait(list(pending), num_returns=len(pending), timeout=60) if pending else None
                        raise ExperimentStopped("stopped; all jobs have saved their state", stop.signal)
        finally:
            if own:
                ray.shutdown()


@dataclass(frozen=True)
class SlurmExecutor:
    """A Slurm cluster: one job array for all jobs, at most `workers` tasks at a time; waits until it has ended.

    options: of sbatch, as `--time=4:00:00`. The folder, data and Python environment must lie on a shared file system.
    """

    workers: int = 1
    options: tuple[str, ...] = ()

    def run(self, jobs: Sequence[Job], context: JobContext) -> None:
        todo = _write_jobs(jobs, context)
        if not todo:
            return
        out = context.out.resolve()
        script = out / "slurm" / "job.sh"
        script.parent.mkdir(parents=True, exist_ok=True)
        write_text(script, self.script(out, context.suite.name, len(todo)))
        context.runner.log(f"slurm: {len(todo)} jobs by {script}; logs beside it")
        try:
            code = subprocess.run(["sbatch", "--wait", str(script)], check=False).returncode
        except FileNotFoundError:
            raise UserError("there is no sbatch here", field="executor", value="slurm") from None
        for index, job in enumerate(todo):
            if not is_complete(context.suite, context.out, job):
                log = script.parent / f"{index}.log"
                raise UserError(
                    f"{job_title(context.suite, job)}: not finished (sbatch ended with code {code}); see {log}"
                )

    def script(self, out: Path, name: str, jobs: int) -> str:
        """The batch script of the array."""
        environment = [f"export {key}={shlex.quote(os.environ[key])}" for key in ("PYTHONPATH",) if key in os.environ]
        directives = [
            f"--job-name={shlex.quote('linnet ' + name).replace(' ', '-')}",
            f"--array=0-{jobs - 1}%{self.workers}",
            f"--output={out / 'slurm'}/%a.log",
            *self.options,
        ]
        lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives), *environment]
        worker = shlex.join([sys.executable, "-m", __name__, str(out)])
        return "\n".join([*lines, f"cd {shlex.quote(str(Path.cwd()))}", f'exec {worker} "$SLURM_ARRAY_TASK_ID"']) + "\n"


def make_executor(name: str, workers: int = 1, options: Sequence[str] = ()) -> Executor:
    """The executor of that name; `UserError` for an unknown one, and for options of another."""
    if options and name != "slurm":
        raise UserError(field="slurm_option", value=options[0], accepted="only with the slurm executor")
    if name == "local":
        return LocalExecutor(workers)
    if name == "ray":
        return RayExecutor(workers)
    if name == "slurm":
        return SlurmExecutor(workers, tuple(options))
    raise UserError(field="executor", value=name, accepted="local, ray or slurm")


def read_suite_folder(out: Path) -> tuple[Suite, dict[str, Any]]:
    """The suite in a folder, and all that its `suite.json` holds; `UserError` names the file and what is wrong."""
    path = out / SUITE
    plain = read_checked_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping, found {type(plain).__name__}")
    fields = {name: value for name, value in plain.items() if name in Suite.model_fields}
    return Suite.parse(fields, str(path)), plain


def run_worker(out: str, index: int, threads: int = 0) -> int:
    """Carry out one job of `jobs.json`; the exit code. threads: for PyTorch, unless the training says how many."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    folder = Path(out)
    suite, plain = read_suite_folder(folder)
    described = read_json(folder / JOBS)[index]
    job = Job.parse(described["job"], JOBS)

    calibration = None if described["calibration"] is None else Path(described["calibration"])
    runner = Runner(print_error, described["command"], lambda title: nullcontext(LineReporter(title)))
    try:
        perform(suite, folder, job, runner, plain.get("text_hash"), calibration)
    except ExperimentStopped as stopped:
        print_error(str(stopped))
        return STOPPED
    except UserError as error:
        print_error(f"error: {error}")
        return REFUSED
    return DONE


def _write_jobs(jobs: Sequence[Job], context: JobContext) -> list[Job]:
    """Write `jobs.json` with the jobs that are not complete."""
    todo = [job for job in jobs if not is_complete(context.suite, context.out, job)]
    plain = []
    for job in todo:
        calibration = context.calibration(job)
        command = {"calibration": None if calibration is None else str(calibration), "command": context.runner.command}
        plain.append({"job": job.model_dump(), **command})
    write_json(context.out / JOBS, plain)
    return todo


def _refuse(job: Job, context: JobContext, reason: str) -> None:
    problem = f"{context.out}: {job_title(context.suite, job)}: not trained: {reason}"
    raise UserError(f"{problem}; the same command continues")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(run_worker(arguments[0], int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else 0))
