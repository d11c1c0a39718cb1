"""Runs, as a table knows them."""

import json
import os
import shutil
import signal
import sys
import time

import pytest

from linnet.core.checksum import write_checked_json
from linnet.core.errors import UserError
from linnet.training.metrics import DIVERGED, Metrics, finished_summary
from linnet.training.reporter import Reporter
from linnet.training.run import train_run
from linnet.training.run_list import find_runs, read_run_info, runs
from linnet.training.runs import differences

pytestmark = pytest.mark.usefixtures("quick")


class Stops(Reporter):
    def __init__(self, at=None, look=None):
        self.at, self.look = at, look

    def step(self, progress):
        if progress.step == self.at:
            self.seen = self.look and read_run_info(self.look)
            os.kill(os.getpid(), signal.SIGINT)


def test_a_finished_run(tmp_path, tiny_run):
    result = train_run(tiny_run(), tmp_path)
    found = read_run_info(tmp_path)
    told = {"parameters", "step", "steps", "tokens", "seconds", "seed"}
    assert {name: found.to_dict()[name] for name in told} == {name: result.summary[name] for name in told}
    assert (found.state, found.model, found.problem) == ("finished", "tiny-attention", None)
    assert found.bits_per_byte == result.summary["validation"]["bits_per_byte"]


def test_a_run_is_running_then_stopped_then_extended(tmp_path, tiny_run):
    reporter = Stops(7, tmp_path)
    result = train_run(tiny_run(), tmp_path, reporter)
    assert (reporter.seen.state, reporter.seen.step) == ("running", 6)
    found = read_run_info(tmp_path)
    assert (found.state, found.step, found.steps, found.tokens) == ("stopped", 7, 12, 7 * 32)
    assert found.bits_per_byte == result.summary["validation"]["bits_per_byte"]
    assert found.parameters == result.summary["parameters"] and found.seconds > 0
    train_run(tiny_run(), tmp_path)
    train_run(tiny_run(steps=20), tmp_path, Stops(14))
    assert (read_run_info(tmp_path).state, read_run_info(tmp_path).step, read_run_info(tmp_path).steps) == (
        "stopped",
        14,
        20,
    )


def test_killed_and_diverged_runs_are_listed(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path, Stops(2))
    shutil.rmtree(tmp_path / "model")
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / ".lock").write_text("999999")
    found = read_run_info(tmp_path)
    assert (found.state, found.step, found.tokens, found.bits_per_byte) == ("stopped", 0, 0, None)
    write_checked_json(tmp_path / DIVERGED, {"step": 3, "reason": "loss nan"})
    assert (read_run_info(tmp_path).state, read_run_info(tmp_path).problem) == ("diverged", "step 3: loss nan")


def test_unreadable_runs_are_listed_as_damaged(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path)
    (tmp_path / "model" / "run.json").write_text("{}")
    found = read_run_info(tmp_path)
    assert found.state == "damaged" and "run.json" in found.problem
    (tmp_path / "model" / "run.json").unlink()
    assert "run.json: missing, manifest.json lists it" in read_run_info(tmp_path).problem
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "config.yaml").write_text("model: [")
    assert "config.yaml" in read_run_info(tmp_path).problem


def test_only_runs_are_found_below_a_folder(tmp_path, tiny_run):
    train_run(tiny_run(steps=1), tmp_path / "b" / "deep" / "run")
    shutil.copytree(tmp_path / "b" / "deep" / "run", tmp_path / "a")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("x: 1\n")
    (tmp_path / ".hidden").mkdir()
    shutil.copytree(tmp_path / "a", tmp_path / ".hidden" / "run")
    assert list(find_runs(tmp_path)) == [tmp_path / "a", tmp_path / "b" / "deep" / "run"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]
    with pytest.raises(UserError, match="no such folder"):
        list(find_runs(tmp_path / "nothing"))


def test_a_thousand_runs_are_listed_without_reading_weights(tmp_path, tiny_run, monkeypatch):
    train_run(tiny_run(steps=1), tmp_path / "run")
    opened = []
    plain = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **named: opened.append(str(path)) or plain(path, *rest, **named)
    )
    start_s = time.process_time()  # of this process alone, on a busy machine too
    for _ in range(100):
        read_run_info(tmp_path / "run")
    assert time.process_time() - start_s < 2
    assert opened and not [path for path in opened if path.endswith(".safetensors")]
    assert len([path for path in opened if path.endswith("manifest.json")]) == 100, "once a run"


def test_the_tail_of_the_metrics_has_whole_lines(tmp_path, monkeypatch):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert metrics.tail() == []
    for step in range(1, 40):
        metrics.append({"step": step})
    assert [line["step"] for line in metrics.tail()] == list(range(1, 40))
    size = (tmp_path / "metrics.jsonl").stat().st_size
    monkeypatch.setattr("linnet.training.metrics.TAIL_BYTES", size // 2)
    assert [line["step"] for line in metrics.tail()] == list(range(21, 40))


def test_two_runs_differ_in_fields(tmp_path, tiny_run):
    train_run(tiny_run(steps=1), tmp_path / "a")
    train_run(tiny_run("ted", steps=1, seed=4), tmp_path / "b")
    found = differences(tmp_path / "a", tmp_path / "b")
    assert found["training.seed"] == (0, 4) and found["model.blocks.0.mixer.kind"] == ("attention", "ted")
    assert "training.steps" not in found
    assert differences(tmp_path / "a", tmp_path / "a") == {}
    with pytest.raises(UserError, match="not the folder of a run"):
        differences(tmp_path / "a", tmp_path)
    assert json.loads(json.dumps(read_run_info(tmp_path / "a").to_dict())) == read_run_info(tmp_path / "a").to_dict()
    assert finished_summary(tmp_path / "a")


def test_runs_are_a_table_with_one_level_of_names(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path / "runs" / "a")
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "config.yaml").write_text("damaged")
    (tmp_path / "runs" / "b" / "metrics.jsonl").write_text("")
    found = runs(tmp_path)
    finished, damaged = found.rows()
    assert finished["state"] == "finished" and finished["validation.bits_per_byte"] == finished["bits_per_byte"]
    assert damaged["state"] == "damaged" and not any(isinstance(value, dict | list) for value in finished.values())
    frame = pytest.importorskip("pandas").DataFrame(found.rows())
    assert found.frame().equals(frame) and len(frame) == 2


def test_a_table_without_pandas_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="needs pandas: pip install pandas"):
        runs(tmp_path).frame()
