"""Where the jobs of a suite run: in this process, in several processes of this machine, on Ray, or on Slurm.

All but the first carry out the jobs of `DIR/jobs.json` as tasks of `core.executors`. A job leaves its results in its
run folder, and continues there when it is started again, so a killed worker costs the steps since its last checkpoint.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError, print_error
from linnet.core.executors import (
    DONE,
    REFUSED,
    STOPPED,
    LocalTasks,
    TaskExecutor,
    TaskList,
    TaskOutcome,
    TasksStopped,
    cluster_executor,
)
from linnet.core.files import read_json, write_json
from linnet.experiments.jobs import ExperimentStopped, Job, Runner, is_complete, job_title, perform
from linnet.experiments.suite import SUITE, Suite
from linnet.training.reporter import LineReporter

JOBS = "jobs.json"


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
class InProcessExecutor:
    """This process: one job after another."""

    def run(self, jobs: Sequence[Job], context: JobContext) -> None:
        for job in jobs:
            perform(context.suite, context.out, job, context.runner, context.text, context.calibration(job))


@dataclass(frozen=True)
class WorkerExecutor:
    """Workers of one of the executors of tasks; the jobs that are not complete are written to `jobs.json` for them."""

    tasks: TaskExecutor

    def run(self, jobs: Sequence[Job], context: JobContext) -> None:
        todo = _write_jobs(jobs, context)
        suite, out = context.suite, context.out
        tasks = TaskList(
            module=__name__,
            folder=out,
            name=suite.name,
            titles=[job_title(suite, job) for job in todo],
            failed="not trained",
            is_done=lambda index: is_complete(suite, out, todo[index]),
            log=context.runner.log,
        )
        try:
            self.tasks.run(tasks)
        except TasksStopped as stopped:
            raise ExperimentStopped("stopped; all jobs have saved their state", stopped.signal) from None


def make_executor(name: str, workers: int = 1, options: Sequence[str] = ()) -> Executor:
    """The executor of that name; `UserError` for an unknown one, and for options of another."""
    tasks = cluster_executor(name, workers, options)
    if tasks is None:
        return InProcessExecutor() if workers == 1 else WorkerExecutor(LocalTasks(workers))
    return WorkerExecutor(tasks)


def read_suite_folder(out: Path) -> tuple[Suite, dict[str, Any]]:
    """The suite in a folder, and all that its `suite.json` holds; `UserError` names the file and what is wrong."""
    path = out / SUITE
    plain = read_checked_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping, found {type(plain).__name__}")
    fields = {name: value for name, value in plain.items() if name in Suite.model_fields}
    return Suite.parse(fields, str(path)), plain


def run_worker(out: str, index: int, threads: int = 0) -> TaskOutcome:
    """Carry out one job of `jobs.json`, or print why not. threads: for PyTorch, unless the training says how many."""
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
        return TaskOutcome(STOPPED)
    except UserError as error:
        print_error(f"error: {error}")
        return TaskOutcome(REFUSED)
    return TaskOutcome(DONE)


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


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(run_worker(arguments[0], int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else 0).code)
