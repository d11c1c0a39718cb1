import json
import os
import subprocess
import sys

import pytest
import torch

from linnet.core.errors import UserError
from linnet.layers.mixers.plga.files import save_operators
from linnet.training.loop import train
from linnet.training.record import Metrics, RunFolder


def _started(path, run):
    folder = RunFolder(path)
    with folder.locked():
        folder.start(run.resolved())
    return folder


def test_the_same_run_may_go_on_and_its_data_may_have_moved(tmp_path, tiny_run):
    run = tiny_run()
    folder = _started(tmp_path / "run", run)
    folder.check(run.resolved())
    folder.check(run.model_copy(update={"data": tmp_path / "elsewhere"}).resolved())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 13}, "training.steps: 12, not 13"),
        ({"optimiser": {"betas": [0.5, 0.95]}}, "training.optimiser.betas.0: 0.9, not 0.5"),
        ({"tokens": 64, "steps": None}, "training.steps: 12, not 2"),
    ],
)
def test_another_configuration_is_refused_by_its_first_field(tmp_path, tiny_run, changes, message):
    folder = _started(tmp_path / "run", tiny_run())
    with pytest.raises(UserError, match=message) as error:
        folder.check(tiny_run(**changes).resolved())
    assert "choose another `out`" in str(error.value)


def test_another_model_is_refused(tmp_path, tiny_run):
    folder = _started(tmp_path / "run", tiny_run("attention"))
    with pytest.raises(UserError, match=r"model\.name: 'tiny-attention', not 'tiny-ted'"):
        folder.check(tiny_run("ted").resolved())


def _given(run, path, value=1.0):
    """The run with operators from a file."""
    save_operators([{"G": torch.full((2, 8, 8), value)}] * 2, path)
    return _reading(run, path)


def _reading(run, source):
    plain = run.plain()
    return run.parse({**plain, "model": {**plain["model"], "operator": str(source)}}, "test")


def test_a_file_of_operators_is_its_content_however_it_is_named(tmp_path, tiny_run, monkeypatch):
    run = tiny_run("plga")
    folder = _started(tmp_path / "run", _given(run, tmp_path / "G.safetensors"))
    monkeypatch.chdir(tmp_path)
    folder.check(_reading(run, "G.safetensors").resolved())
    folder.check(_given(run, tmp_path / "copy" / "H.safetensors").resolved())
    for source in ("identity", "gone.safetensors"):
        with pytest.raises(UserError, match=rf"model\.initialisation\.operator: '.*', not '{source}'"):
            folder.check(_reading(run, source).resolved())


def test_other_operators_under_the_same_name_are_another_run(tmp_path, tiny_run):
    run = _given(tiny_run("plga"), tmp_path / "G.safetensors")
    folder = _started(tmp_path / "run", run)
    _given(tiny_run("plga"), tmp_path / "G.safetensors", value=2.0)
    message = r"G\.safetensors \(SHA-256 [0-9a-f]{12}\)', not '.*G\.safetensors \(SHA-256 [0-9a-f]{12}\)'"
    with pytest.raises(UserError, match=message) as refused:
        folder.check(run.resolved())
    assert "\n" not in str(refused.value)


def test_a_run_that_has_begun_needs_its_file_no_more(tmp_path, tiny_run):
    run = _given(tiny_run("plga"), tmp_path / "G.safetensors")
    train(run, tmp_path / "run")
    (tmp_path / "G.safetensors").unlink()
    assert train(run, tmp_path / "run").finished


def test_a_file_that_came_after_the_first_steps_is_not_taken_for_theirs(tmp_path, tiny_run):
    """A run without a record of its file: it began before there was one."""
    run = _given(tiny_run("plga"), tmp_path / "G.safetensors")
    train(run, tmp_path / "run")
    (tmp_path / "run" / "files.json").unlink()
    RunFolder(tmp_path / "run").start(run.resolved())
    assert not (tmp_path / "run" / "files.json").exists()


def test_a_folder_with_other_things_in_it_is_refused(tmp_path, tiny_run):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is not the folder of a run"):
        RunFolder(tmp_path).check(tiny_run().resolved())
    with pytest.raises(UserError, match="is not the folder of a run"):
        RunFolder(tmp_path / "thesis.tex").check(tiny_run().resolved())


def test_only_one_process_trains_in_a_folder(tmp_path, tiny_run):
    script = (
        "import sys; from linnet.training.record import RunFolder\n"
        f"with RunFolder({str(tmp_path / 'run')!r}).locked():\n"
        "    print('locked', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match=rf"another process \(id {other.pid}\) trains here"):
            RunFolder(tmp_path / "run").locked().__enter__()
    finally:
        other.communicate()
    with RunFolder(tmp_path / "run").locked():
        assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())


def test_what_a_killed_process_left_is_cleared(tmp_path, tiny_run):
    folder = _started(tmp_path / "run", tiny_run())
    left = folder.checkpoints / ".step-00000001.x.partial"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_text("half")
    (folder.path / ".metrics.jsonl.x.partial").write_text("half")
    folder.start(tiny_run().resolved())
    assert not left.exists() and not list(folder.path.glob("*.partial"))


def test_metrics_are_cut_after_a_step_and_a_half_written_line_is_dropped(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    for step in (2, 4, 6):
        metrics.append({"step": step, "loss": 1 / step})
    with metrics.path.open("a") as handle:
        handle.write('{"step": 8, "lo')
    assert [line["step"] for line in metrics.read()] == [2, 4, 6]
    metrics.cut(4)
    assert [json.loads(text) for text in metrics.path.read_text().splitlines()] == [
        {"step": 2, "loss": 0.5},
        {"step": 4, "loss": 0.25},
    ]
