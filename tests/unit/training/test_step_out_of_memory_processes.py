"""Real processes of which some run out of memory: the batch that fits is measured, and named once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from several import finish, start

pytestmark = pytest.mark.usefixtures("warm_python")

PROGRAM = Path(__file__).parent / "limited_room.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model, tiny_data) -> Path:
    folder = tmp_path_factory.mktemp("room")
    training = {"batch_size": 16, "gradient_accumulation": 2, "steps": 4, "threads": 1, "checkpoint": {"every": 1}}
    training |= {"evaluate": {"every": 10, "tokens": 100}, "schedule": {"warmup_steps": 0}, "precision": "float32"}
    model = tiny_model().model_dump(mode="json")
    (folder / "run.yaml").write_text(yaml.safe_dump({"model": model, "data": str(tiny_data), "training": training}))
    return folder


def ended(place: Path, name: str, rooms: list[str], where: str, *settings: str) -> tuple[list[int], str]:
    """Exit codes of processes with so much room each, and what they said together."""
    given = [word for setting in settings for word in ("--set", f"training.{setting}")]
    train = ["train", "--config", "run.yaml", "--out", name, *given]
    found = finish(start([PROGRAM, where, *rooms, "--", *train], len(rooms), cwd=place))
    return [code for code, _, _ in found], "".join(errors for _, _, errors in found)


def said(process: int, most: int, times: int) -> str:
    return (
        f"error: training.batch_size: 16: out of memory in step 3 of process {process} (saved: step 2); expected"
        f" at most {most}, which was measured to fit (accumulate {times} times as many batches for as large a step)"
    )


ASKED = [("forward", 1)]
OTHERS = [("forward", 2), ("backward", 2), ("backward", 1), ("update", 1), ("update", 2)]


@pytest.mark.parametrize(
    ("where", "shard"), [*ASKED, *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)]
)
def test_a_process_that_runs_out_of_memory_measures_what_fits(place: Path, where: str, shard: int):
    """The other one waits for it in the midst of the step, and ends without a word.

    With shards all that sends something in a step: Muon gathers matrices, layers are computed anew.
    """
    settings = ("parallel.checkpointing=true", "optimizer.kind=muon") if shard > 1 else ()
    codes, told = ended(place, f"{where}-{shard}", ["all", "5"], where, f"parallel.shard={shard}", *settings)
    assert codes == [1, 2], told
    assert told.count("error:") == 1 and "Traceback" not in told, told
    assert said(1, 10, 2) in told


def test_the_smallest_batch_of_all_processes_is_reported_once(place: Path):
    codes, told = ended(place, "all", ["5", "3"], "backward", "parallel.shard=2")
    assert codes == [2, 2], told
    assert told.count("error:") == 1 and "Traceback" not in told, told
    assert said(0, 6, 3) in told


@pytest.mark.slow
def test_an_error_says_if_not_one_sequence_fits(place: Path):
    codes, told = ended(place, "none", ["all", "0"], "forward")
    assert codes == [1, 2], told
    assert told.count("error:") == 1 and "not even one sequence for each process fits" in told


@pytest.mark.slow
def test_torchrun_shows_the_one_line(place: Path):
    """It keeps what the processes ask each other by, and so the first of them too can be the one that says it."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAM, "update", "5", "all", "--"]
    ended = subprocess.run(
        [sys.executable, *torchrun, "train", "--config", "run.yaml", "--out", "torchrun"],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode != 0 and said(0, 10, 2) in ended.stderr, ended.stderr
    assert ended.stderr.count("error: ") == 1, ended.stderr
