"""Trackers: what they are told, and that a step is told once however a run is interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from linnet.core.errors import UserError
from linnet.training.callbacks import trackers
from linnet.training.reporter import Reporter
from linnet.training.run import train_run

pytestmark = pytest.mark.usefixtures("quick", "warm_python")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    return pytest.importorskip("wandb")


class Stops(Reporter):
    def __init__(self, at=None):
        self.at = at

    def step(self, progress):
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


class Recorded:
    """In the place of a tracker's library: what was told, by process."""

    def __init__(self, folder, run):
        self.told, self.begun, self.closed = [], [], 0
        Recorded.latest = self

    def begin(self, step):
        self.begun.append(step)

    def line(self, step, figures):
        self.told.append((step, figures))

    def close(self):
        self.closed += 1


def _lines(folder):
    return [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]


def test_trackers_get_every_line_and_are_closed(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setitem(trackers.KINDS, "tensorboard", Recorded)
    run = tiny_run(trackers=["tensorboard"])
    train_run(run, tmp_path, Stops(5))
    assert (Recorded.latest.begun, [step for step, _ in Recorded.latest.told]) == ([0], [2, 4])
    train_run(run, tmp_path)
    assert (Recorded.latest.begun, [step for step, _ in Recorded.latest.told]) == ([5], [6, 8, 10, 12])
    assert Recorded.latest.closed == 1
    step, figures = Recorded.latest.told[1]
    line = next(line for line in _lines(tmp_path) if line["step"] == step)
    assert figures["loss"] == line["loss"]
    assert figures["validation/bits_per_byte"] == line["validation"]["bits_per_byte"]
    assert "checksum" not in figures and "step" not in figures

    def broken(decoder, batch):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train_run(run, tmp_path / "broken", objective=broken)
    assert Recorded.latest.closed == 1


def test_without_trackers_nothing_is_imported_or_written(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setattr(trackers, "_imported", lambda module, extra: pytest.fail(module))
    train_run(tiny_run(steps=1), tmp_path)
    assert not {"tensorboard", "wandb", "trackers.json"} & {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_tracker_is_refused_before_the_run(tmp_path, tiny_run, monkeypatch, name):
    for module in ("tensorboard", "torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    message = rf"^training\.trackers: {name}: is not installed: `pip install 'linnet\[{name}\]'`$"
    with pytest.raises(UserError, match=message):
        train_run(tiny_run(trackers=[name]), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_an_unknown_tracker_is_refused(tiny_run):
    with pytest.raises(UserError, match=r"training\.trackers.*'mlflow'"):
        tiny_run(trackers=["mlflow"])


KILLED = """
import sys
from linnet.core.files import read_text
from linnet.core.spec import parse_yaml
from linnet.training.run import train_run
from linnet.training.spec import RunSpec
from linnet.training.reporter import Reporter
import os, signal

class Kills(Reporter):
    def step(self, progress):
        if progress.step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

train_run(RunSpec.parse(parse_yaml(read_text(sys.argv[1]), "x"), "x"), sys.argv[2], Kills())
"""


def _killed(run, folder, step):
    config = folder.with_suffix(".yaml")
    config.write_text(json.dumps(run.to_dict()))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(config), str(folder), str(step)], check=False)
    assert ended.returncode == -signal.SIGKILL


def _interrupted(run, folder, wait):
    """Killed twice behind a checkpoint, stopped once, finished; before the last two `wait` passes over a second, by
    which trackers order their files.
    """
    _killed(run, folder, 9)
    _killed(run, folder, 12)
    wait()
    train_run(run, folder, Stops(13))
    wait()
    train_run(run, folder)


def test_tensorboard_has_each_step_once(tmp_path, tiny_run, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    waits, clock = list[None](), time.time
    ahead = SimpleNamespace(time=lambda: clock() + 2 * len(waits))
    monkeypatch.setattr(event_file_writer, "time", ahead)  # of its file names
    run = tiny_run(steps=20, trackers=["tensorboard"], checkpoint={"every": 6}, evaluate={"every": 10, "tokens": 64})
    _interrupted(run, tmp_path / "run", lambda: waits.append(None))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    lines = _lines(tmp_path / "run")
    assert [step for step, _ in found] == list(range(2, 21, 2)) == [line["step"] for line in lines]
    assert [value for _, value in found] == pytest.approx([line["loss"] for line in lines], rel=1e-6)
    assert [event.step for event in events.Scalars("validation/bits_per_byte")] == [10, 20]


BLOCK = 32768


def _records(content):
    """The records of a .wandb file: a log of LevelDB (blocks, records in parts) behind seven bytes of its own."""
    place, whole = 7, b""
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if kind == 0 or place + 7 + size > len(content):
            return
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def _logged(folder):
    """Id, step and loss of all that the offline runs in a folder hold."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                told = record.history.item
                items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in told}
                found.append((path.stem, items["_step"], items["loss"]))
    return found


def test_weights_and_biases_resumes_one_run_and_gets_no_step_twice(tmp_path, tiny_run, offline):
    run = tiny_run(steps=20, trackers=["wandb"], checkpoint={"every": 6}, evaluate={"every": 10, "tokens": 64})
    _interrupted(run, tmp_path / "run", lambda: time.sleep(1.1))
    time.sleep(0.5)
    found = _logged(tmp_path / "run")
    steps = sorted(step for _, step, _ in found)
    assert len({identity for identity, _, _ in found}) == 1
    losses = {line["step"]: line["loss"] for line in _lines(tmp_path / "run")}
    assert all(loss == losses[step] for _, step, loss in found)
    assert steps == list(range(2, 21, 2))
