"""Jobs in processes of their own, on Ray, and on Slurm: the same results, also after a kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from linnet.cli.main import main
from linnet.core.errors import UserError
from linnet.experiments.executors import InProcessExecutor, JobContext, make_executor
from linnet.experiments.jobs import ExperimentStopped, Job, Runner
from linnet.experiments.results import ResultRow, ResultTable, read_rows
from linnet.experiments.run import run_suite
from linnet.experiments.suite import Suite

pytestmark = pytest.mark.usefixtures("warm_python")

PLAIN: dict[str, Any] = {
    "text": {"stories": 40},
    "tokenizer": {"kind": "bytes"},
    "model": {
        "vocab_size": 257,
        "d_model": 8,
        "context_length": 16,
        "blocks": [{"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 8}}],
    },
    "training": {"steps": 6, "batch_size": 2, "threads": 1, "precision": "float32", "evaluate": {"every": 3}},
    "seeds": [0],
    "runs": [{"name": "narrow"}, {"name": "wide", "set": {"model.d_model": 12}}],
}


def quality(out: Path) -> list[tuple[str, int, str, Any]]:
    """What must not depend on the executor."""
    rows = [row for row in read_rows(out / "results.jsonl") if row.measure == "likelihood"]
    return [(row.run, row.seed, row.status, row.values) for row in rows]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "out"
    run_suite(Suite.parse(PLAIN, "test"), out, Runner([].append))
    return out


def test_a_failed_job_is_named_and_two_processes_find_what_one_finds(straight: Path, tmp_path: Path):
    suite, out = Suite.parse(PLAIN, "test"), tmp_path / "out"
    foreign = out / "runs" / "wide-seed-0"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").touch()
    with pytest.raises(UserError, match=r"wide, seed 0: not trained: its process ended with code 2; the same command"):
        run_suite(suite, out, Runner([].append), executor=make_executor("local", 2))
    (foreign / "notes.txt").unlink()
    run_suite(suite, out, Runner([].append), executor=make_executor("local", 2))
    assert quality(out) == quality(straight) and len(quality(straight)) == 2


def test_what_was_complete_when_workers_were_stopped_is_in_the_record(tmp_path: Path):
    class StoppedAfterOne(InProcessExecutor):
        def run(self, jobs: Sequence[Job], context: JobContext) -> None:
            """Carry out the first job."""
            super().run(jobs[:1], context)
            raise ExperimentStopped("stopped", signal.SIGTERM)

    record = ResultTable(tmp_path / "record.jsonl")
    with pytest.raises(ExperimentStopped):
        run_suite(Suite.parse(PLAIN, "test"), tmp_path / "out", Runner([].append), "test", StoppedAfterOne(), record)
    assert {(row.run, row.measure) for row in ResultTable(tmp_path / "record.jsonl").rows.values()} == {
        ("narrow", "training"),
        ("narrow", "likelihood"),
    }


def _slow(folder: Path) -> tuple[Path, list[str]]:
    """A file of a suite that takes a while, and its command."""
    training = {**PLAIN["training"], "steps": 300, "log": {"every": 2}, "checkpoint": {"every": 20}}
    training["evaluate"] = {"every": 150, "tokens": 64}
    path = folder / "slow.yaml"
    path.write_text(yaml.safe_dump({**PLAIN, "training": training}))
    return path, ["compare", str(path), "--out", str(folder / "out"), "--json"]


def _lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _start_and_wait(words: list[str], out: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "linnet", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while min(_lines(out / "runs" / f"{name}-seed-0") for name in ("narrow", "wide")) < 15:
        assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_or_killed_processes_continue(tmp_path: Path, capsys, number: signal.Signals):
    _, words = _slow(tmp_path)
    (tmp_path / "straight").mkdir()
    _, alone = _slow(tmp_path / "straight")
    assert main(alone) == 0
    process = _start_and_wait([*words, "--workers", "2"], tmp_path / "out")
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number and "the same command continues" in said
    assert main([*words, "--workers", "2"]) == 0
    assert quality(tmp_path / "out") == quality(tmp_path / "straight" / "out")


@pytest.mark.slow
def test_ray_with_two_workers_killed_and_resumed(tmp_path: Path, capsys):
    pytest.importorskip("ray")
    _, words = _slow(tmp_path)
    (tmp_path / "straight").mkdir()
    _, alone = _slow(tmp_path / "straight")
    assert main(alone) == 0
    process = _start_and_wait([*words, "--executor", "ray", "--workers", "2"], tmp_path / "out")
    os.killpg(process.pid, signal.SIGKILL)  # the driver, and the Ray processes of its session
    process.communicate(timeout=60)
    assert not (tmp_path / "out" / "results.jsonl").exists()
    assert main([*words, "--executor", "ray", "--workers", "2"]) == 0
    assert quality(tmp_path / "out") == quality(tmp_path / "straight" / "out")


@pytest.mark.slow
def test_ray_starts_a_job_again_whose_worker_died(tmp_path: Path):
    pytest.importorskip("ray")
    _, words = _slow(tmp_path)
    process = _start_and_wait([*words, "--executor", "ray", "--workers", "2"], tmp_path / "out")
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    workers = [int(line.split()[0]) for line in found.splitlines() if "ray::run_worker" in line]
    assert workers, found
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(quality(tmp_path / "out")) == 2


@pytest.mark.slow
def test_slurm_gets_an_array_of_the_jobs_that_are_missing(
    straight: Path, tmp_path: Path, sbatch: Path, monkeypatch: pytest.MonkeyPatch
):
    suite, out = Suite.parse(PLAIN, "test"), tmp_path / "out"
    executor = make_executor("slurm", 3, ("--time=0:10:00",))
    monkeypatch.setenv("SBATCH_LOST", "1")
    with pytest.raises(UserError, match=r"wide, seed 0: not finished \(sbatch ended with code 0\); see .*slurm/1\.log"):
        run_suite(suite, out, Runner([].append), executor=executor)
    monkeypatch.setenv("SBATCH_LOST", "")
    run_suite(suite, out, Runner([].append), executor=executor)
    assert sbatch.read_text().splitlines() == ["--wait 2 jobs", "--wait 1 jobs"]
    assert quality(out) == quality(straight)
    script = (out / "slurm" / "job.sh").read_text()
    assert "#SBATCH --array=0-0%3\n" in script and "#SBATCH --time=0:10:00\n" in script
    run_suite(suite, out, Runner([].append), executor=executor)
    assert len(sbatch.read_text().splitlines()) == 2, "nothing is left to do"


def test_without_sbatch_there_is_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^executor: slurm: there is no sbatch here"):
        run_suite(Suite.parse(PLAIN, "test"), tmp_path / "out", Runner([].append), executor=make_executor("slurm"))


def test_a_run_that_takes_a_calibration_waits_for_the_other(tmp_path: Path):
    mixer = {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1, "start": "identity"}
    model = {**PLAIN["model"], "blocks": [{"mixer": mixer}]}
    runs = [{"name": "first"}, {"name": "second", "calibration_of": "first"}]
    suite = Suite.parse({**PLAIN, "model": model, "runs": runs}, "test")
    findings = run_suite(suite, tmp_path / "out", Runner([].append), executor=make_executor("local", 2))
    assert [run.seeds for run in findings.runs] == ["1", "1"] and not findings.failures
    assert (tmp_path / "out" / "calibrations" / "first-seed-0.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cloud",), "executor: cloud: expected local, ray or slurm"),
        (("local", 1, ["--time=1"]), "slurm_option: --time=1: expected only with the slurm executor"),
    ],
)
def test_an_unknown_executor_is_refused(arguments: tuple[Any, ...], message: str):
    with pytest.raises(UserError) as refused:
        make_executor(*arguments)
    assert str(refused.value) == message


def test_rows_record_their_inputs_and_origin(straight: Path):
    rows: list[ResultRow] = read_rows(straight / "results.jsonl")
    assert {row.measure for row in rows} == {"training", "likelihood"} and len(rows) == 4
    assert all({"model", "training", "text", "weights"} <= row.inputs.keys() for row in rows)
    assert all({"date", "processor", "torch"} <= row.origin.keys() for row in rows)
