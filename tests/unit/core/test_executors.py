"""Tasks in processes of their own and on Slurm: each is carried out once, failures are named, a stop is heard."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest

from linnet.core.errors import UserError
from linnet.core.executors import LocalTasks, RayTasks, SlurmTasks, TaskList, TasksStopped, cluster_executor

SQUARES = """
import signal, sys, time
from pathlib import Path

def run_worker(folder, index, threads=0):
    if (Path(folder) / "wait").exists():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
        (Path(folder) / f"begun-{index}").touch()
        time.sleep(60)
    if index == 2 and (Path(folder) / "fail").exists():
        sys.stderr.write("error: two is too many\\n")
        return 2
    with (Path(folder) / str(index)).open("a") as file:
        file.write(f"{index * index}\\n")
    return 0

if __name__ == "__main__":
    sys.exit(run_worker(sys.argv[1], *map(int, sys.argv[2:])))
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Three tasks, each of which writes the square of its number."""
    (tmp_path / "squares.py").write_text(SQUARES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    folder, said = tmp_path / "out", []
    folder.mkdir()
    titles = ["nought", "one", "two"]
    return TaskList(
        module="squares",
        folder=folder,
        name="squares",
        titles=titles,
        failed="not squared",
        is_done=lambda index: (folder / str(index)).is_file(),
        log=said.append,
    )


def squares(tasks):
    return [(tasks.folder / str(index)).read_text() for index in range(3)]


def test_processes_carry_out_each_task_once(tasks):
    LocalTasks(2).run(tasks)
    assert squares(tasks) == ["0\n", "1\n", "4\n"]


def test_a_failed_task_is_named(tasks):
    (tasks.folder / "fail").touch()
    with pytest.raises(UserError, match=r"out: two: not squared: its process ended with code 2; the same command cont"):
        LocalTasks(3).run(tasks)


def test_a_stop_ends_the_processes_and_begins_no_further_task(tasks):
    (tasks.folder / "wait").touch()

    def stop_when_begun():
        end_s = time.monotonic() + 60
        while len(list(tasks.folder.glob("begun-*"))) < 2 and time.monotonic() < end_s:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_when_begun)
    stopping.start()
    with pytest.raises(TasksStopped) as stopped:
        LocalTasks(2).run(tasks)
    stopping.join()
    assert stopped.value.signal == signal.SIGTERM
    assert sorted(path.name for path in tasks.folder.glob("begun-*")) == ["begun-0", "begun-1"]


def test_what_a_task_of_slurm_said_last_is_told(tasks, sbatch):
    (tasks.folder / "fail").touch()
    with pytest.raises(UserError, match=r"^two: not finished .* see .*/2\.log: error: two is too many$"):
        SlurmTasks(3).run(tasks)


def test_slurm_gets_one_array_and_names_a_task_without_results(tasks, sbatch, monkeypatch):
    monkeypatch.setenv("SBATCH_LOST", "1")
    with pytest.raises(UserError, match=r"^one: not finished \(sbatch ended with code 0\); see .*out/slurm/1\.log"):
        SlurmTasks(2, ("--time=0:10:00",)).run(tasks)
    monkeypatch.setenv("SBATCH_LOST", "")
    SlurmTasks(2).run(tasks)
    assert sbatch.read_text().splitlines() == ["--wait 3 jobs"] * 2
    assert squares(tasks) == ["0\n" * 2, "1\n", "4\n" * 2]
    script = (tasks.folder / "slurm" / "job.sh").read_text()
    assert "linnet-squares" in script and "#SBATCH --array=0-2%2\n" in script


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cloud", 1), "executor: cloud: expected local, ray or slurm"),
        (("ray", 1, ["--time=1"]), "slurm_option: --time=1: expected only with the slurm executor"),
    ],
    ids=["name", "option"],
)
def test_an_unknown_executor_is_refused(arguments, message):
    with pytest.raises(UserError) as refused:
        cluster_executor(*arguments)
    assert str(refused.value) == message


class FakeRay:
    """Of ray only what is asked for before it runs anything."""

    @staticmethod
    def is_initialized():
        return False

    @staticmethod
    def init(**options):
        raise ConnectionError("Failed to connect to Ray cluster\nat the address")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, r"^executor: ray: Ray does not start on this machine: Failed to connect to Ray cluster at the address$"),
        ("here:1", r"^executor: ray: Ray at here:1 is not reached: Failed"),
    ],
    ids=["own", "cluster"],
)
def test_ray_that_does_not_start_is_one_line(tasks, monkeypatch, address, expected):
    monkeypatch.setitem(sys.modules, "ray", FakeRay)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match=expected):
        RayTasks(2, address).run(tasks)


def test_ray_is_not_started_where_every_task_was_done_before(tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay)
    RayTasks(2).run(replace(tasks, titles=[]))


def test_without_ray_the_extra_is_named(tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"ray is not installed; pip install 'linnet\[ray\]'"):
        RayTasks(2).run(tasks)
