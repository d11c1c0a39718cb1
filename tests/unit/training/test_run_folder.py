import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linnet.core import files
from linnet.core.atomic import PARTIAL
from linnet.core.errors import UserError
from linnet.layers.mixers.plga.files import save_operators
from linnet.training import run_folder
from linnet.training.initialization import uninitialized_decoder
from linnet.training.metrics import Metrics
from linnet.training.run import train_run
from linnet.training.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("warm_python")


@contextmanager
def limited_to(size_bytes):
    """Files grow no larger in this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _started(path, run):
    folder = RunFolder(path)
    with folder.locked():
        folder.start(run.resolved())
    return folder


def test_a_run_may_resume_with_moved_data(tmp_path, tiny_run):
    run = tiny_run()
    folder = _started(tmp_path / "run", run)
    folder.check(run.resolved())
    folder.check(run.model_copy(update={"data": tmp_path / "elsewhere"}).resolved())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 11}, "training.steps: 12, not 11"),
        ({"optimizer": {"betas": [0.5, 0.95]}}, "training.optimizer.betas.0: 0.9, not 0.5"),
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
    plain = run.to_dict()
    return run.parse({**plain, "model": {**plain["model"], "calibration": str(source)}}, "test")


def test_a_calibration_file_is_identified_by_content(tmp_path, tiny_run, monkeypatch):
    run = tiny_run("plga")
    folder = _started(tmp_path / "run", _given(run, tmp_path / "G.safetensors"))
    monkeypatch.chdir(tmp_path)
    folder.check(_reading(run, "G.safetensors").resolved())
    folder.check(_given(run, tmp_path / "copy" / "H.safetensors").resolved())
    for source in ("identity", "gone.safetensors"):
        with pytest.raises(UserError, match=rf"model\.initialization\.calibration: '.*', not '{source}'"):
            folder.check(_reading(run, source).resolved())


def test_other_operators_under_the_same_name_are_another_run(tmp_path, tiny_run):
    run = _given(tiny_run("plga"), tmp_path / "G.safetensors")
    folder = _started(tmp_path / "run", run)
    _given(tiny_run("plga"), tmp_path / "G.safetensors", value=2.0)
    message = r"G\.safetensors \(SHA-256 [0-9a-f]{12}\)', not '.*G\.safetensors \(SHA-256 [0-9a-f]{12}\)'"
    with pytest.raises(UserError, match=message) as refused:
        folder.check(run.resolved())
    assert "\n" not in str(refused.value)


def test_a_run_with_a_checkpoint_does_not_need_its_initial_file(tmp_path, tiny_run):
    run = _given(tiny_run("plga"), tmp_path / "G.safetensors")
    train_run(run, tmp_path / "run")
    (tmp_path / "G.safetensors").unlink()
    assert train_run(run, tmp_path / "run").finished


def test_a_file_that_appears_after_the_first_steps_is_not_hashed(tmp_path, tiny_run):
    """A run without a record of its file: it began before there was one."""
    run = _given(tiny_run("plga"), tmp_path / "G.safetensors")
    train_run(run, tmp_path / "run")
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
        "import sys; from linnet.training.run_folder import RunFolder\n"
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


def test_a_folder_made_for_the_lock_is_removed_if_empty(tmp_path):
    run = tmp_path / "runs" / "run"
    with pytest.raises(UserError), RunFolder(run).locked():
        raise UserError("refused")
    assert list(tmp_path.iterdir()) == []
    with RunFolder(run).locked():
        (run / "config.yaml").touch()
    assert [path.name for path in run.iterdir()] == ["config.yaml"]
    own = tmp_path / "own"
    own.mkdir()
    with RunFolder(own).locked():
        assert (own / ".lock").exists()
    assert list(own.iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed_and_noted(tmp_path, tiny_run, told):
    folder = _started(tmp_path / "run", tiny_run())
    left = folder.checkpoints / f".step-00000001.abcdefgh{PARTIAL}"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_text("half")
    half = folder.path / f".metrics.jsonl.abcdefgh{PARTIAL}"
    half.write_text("half")
    (folder.path / "mine.partial").write_text("not linnet's")
    folder.start(tiny_run().resolved())
    assert {path.name for path in folder.path.rglob("*")} == {"config.yaml", "checkpoints", "mine.partial"}
    assert told() == [f"{path}: left by a process that was broken off, removed" for path in (half, left)]


def test_metrics_are_cut_after_a_step_and_a_half_written_line_is_dropped(tmp_path, told):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    for step in (2, 4, 6):
        metrics.append({"step": step, "loss": 1 / step})
    with metrics.path.open("a") as handle:
        handle.write('{"step": 8, "lo')
    assert [line["step"] for line in metrics.read()] == [2, 4, 6]
    metrics.cut(4)
    assert metrics.read() == [{"step": 2, "loss": 0.5}, {"step": 4, "loss": 0.25}]
    assert metrics.path.read_text().endswith("}\n")
    assert told() == []


def test_damaged_metrics_are_named_and_set_aside(tmp_path, told):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(1, 8):
        metrics.append({"step": step, "loss": 1 / step})
    lines = metrics.path.read_bytes().splitlines()
    lines[0] = lines[0].replace(b"1.0", b"2.0")
    lines[1], lines[2], lines[3] = b"null", b'{"step": "\xff"}', b'{"loss": 1.0}'
    lines[4] = b"[" * 100_000
    metrics.path.write_bytes(b"\n".join(lines) + b"\n")
    assert [line["step"] for line in metrics.read()] == [6, 7]
    assert told() == [f"{metrics.path}, line {number}: damaged, left out" for number in range(1, 6)]
    metrics.cut(6)
    assert metrics.read() == [{"step": 6, "loss": 1 / 6}]
    assert (tmp_path / "metrics.damaged.jsonl").read_bytes().splitlines() == lines[:5]
    assert told()[5:] == [f"{metrics.path}, line 1, 2, 3, 4, 5: damaged, kept in metrics.damaged.jsonl"]


def test_lines_that_are_due_and_lost_are_named(tmp_path, told):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3, 4):
        metrics.append({"step": step})
    assert len(metrics.read({2, 3, 4})) == 4 and told() == []
    lines = metrics.path.read_text().splitlines(keepends=True)
    metrics.path.write_text(lines[0] + lines[2] + lines[3][:10])
    assert len(metrics.read()) == 2 and told() == []
    assert len(metrics.read({2, 3, 4})) == 2
    assert told() == [f"{metrics.path}: no line of step 2, 4: lost, and missing in its curves"]
    metrics.cut(3, range(1, 900))
    assert told()[1:] == [f"{metrics.path}: no line of step 2, 4, 5 and 894 more: lost, and missing in its curves"]


def test_a_repeated_line_is_damaged(tmp_path, told):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in (1, 2, 1, 2, 3):
        metrics.append({"step": step})
    assert [line["step"] for line in metrics.read({1, 2, 3})] == [1, 2, 3]
    assert told() == [f"{metrics.path}, line {number}: damaged, left out" for number in (3, 4)]


def test_steps_have_a_line_by_log_and_evaluation(tmp_path, tiny_run):
    folder = _started(tmp_path / "run", tiny_run(log={"every": 5}, evaluate={"every": 4}).resolved())
    assert folder.expected_steps(11) == {4, 5, 8, 10}


def test_a_folder_in_place_of_metrics_is_named(tmp_path, told):
    (tmp_path / "metrics.jsonl").mkdir()
    assert Metrics(tmp_path / "metrics.jsonl").read() == []
    assert told() == [f"{tmp_path / 'metrics.jsonl'}: not a file, left out"]


def test_lines_without_a_checksum_are_read(tmp_path, told):
    """Those of an earlier linnet."""
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.path.write_text('{"step": 1, "loss": 0.5}\n')
    assert metrics.read() == [{"step": 1, "loss": 0.5}] and told() == []


@pytest.mark.parametrize("field", ['"lr": null', '"tokens": "8"', '"validation": null', '"validation": {"bytes": 0}'])
def test_a_line_without_a_checksum_must_have_the_right_types(tmp_path, told, field):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.path.write_text(f'{{"step": 1, {field}}}\n')
    assert metrics.read() == []
    assert told() == [f"{metrics.path}, line 1: damaged, left out"]


@given(data=st.data())
def test_any_changed_character_of_a_line_is_noticed(tmp_path_factory, data):
    metrics = Metrics(tmp_path_factory.mktemp("run") / "metrics.jsonl")
    metrics.append({"step": 12, "loss": 0.125})
    text = metrics.path.read_text()
    place = data.draw(st.integers(0, len(text) - 2))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda c: c != text[place]))
    metrics.path.write_text(text[:place] + other + text[place + 1 :])
    for line in metrics.read():  # the name of the checksum was changed, and nothing else
        assert line.items() > {"step": 12, "loss": 0.125}.items()


def test_a_changed_configuration_is_refused(tmp_path, tiny_run):
    folder = _started(tmp_path / "run", tiny_run())
    config = folder.path / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("steps: 12", "steps: 13"))
    with pytest.raises(UserError, match=r"config\.yaml: is not what linnet wrote"):
        folder.check(tiny_run(steps=13).resolved())
    config.write_text(text.partition("# checksum")[0].replace("steps: 12", "steps: 13"))
    folder.check(tiny_run(steps=13).resolved())


@pytest.mark.parametrize("content", ["null", "[1]", '{"start_from": 1}'])
def test_a_files_json_without_hashes_is_refused(tmp_path, content):
    (tmp_path / "files.json").write_text(content)
    with pytest.raises(UserError, match=r"files\.json: expected a hash for each file"):
        RunFolder(tmp_path).hashes()


@pytest.mark.parametrize(
    "name", ["config.yaml", "files.json", "diverged.json", "metrics.jsonl", "curves.png", "checkpoints", "model"]
)
def test_nothing_is_written_through_a_link(tmp_path, tiny_run, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name}: is a link; nothing is written through one"):
        train_run(tiny_run(), tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()


def test_lines_are_not_written_through_a_link(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        Metrics(tmp_path / "metrics.jsonl").append({"step": 1})
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_of_a_process_killed_at_the_start_is_reused(tmp_path, tiny_run):
    """Killed before `config.yaml` stood: what is there, the run made."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("1")
    (tmp_path / "run" / f".config.yaml.abcdefgh{PARTIAL}").write_text("half")
    assert train_run(tiny_run(steps=1), tmp_path / "run").finished


def test_leftovers_in_a_finished_run_are_removed(tmp_path, tiny_run):
    train_run(tiny_run(), tmp_path / "run")
    before = sorted((tmp_path / "run").rglob("*"))
    (tmp_path / "run" / ".lock").write_text("4711")
    (tmp_path / "run" / "checkpoints" / f".step.abcdefgh{PARTIAL}").mkdir()
    train_run(tiny_run(), tmp_path / "run")
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_a_full_disk_is_reported_with_the_name_of_the_metrics_file(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match=r"bytes free in") as full, limited_to(20):
        metrics.append({"step": 1})
    assert full.value.filename == str(metrics.path)


def test_metrics_of_a_long_run_are_read_completely(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 10)
    monkeypatch.setattr(files.read_bytes, "__defaults__", (10,))
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(50):
        metrics.append({"step": step})
    assert [line["step"] for line in metrics.read()] == list(range(50))


def test_a_resumed_run_keeps_its_description(tiny_run):
    run = _reading(tiny_run("plga"), "random").resolved()
    assert uninitialized_decoder(run).spec == run.model
    assert run.model.initialization.calibration == "random"


def test_curves_that_cannot_be_drawn_are_only_noted(tmp_path, tiny_run, monkeypatch, caplog):
    def fail(*_):
        raise ValueError("no such backend")

    monkeypatch.setattr("linnet.training.metrics.draw_curves", fail)
    summary = train_run(tiny_run(), tmp_path / "run").summary
    assert summary["finished"] and (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert f"{tmp_path / 'run' / 'curves.png'}: not drawn: ValueError: no such backend" in caplog.text


def test_a_run_parses_its_configuration_once(tmp_path, tiny_run, monkeypatch):
    parsed, plain = [], run_folder.plain_configuration
    run_folder._parse_configuration.cache_clear()
    monkeypatch.setattr(run_folder, "plain_configuration", lambda *source: parsed.append(source) or plain(*source))
    assert train_run(tiny_run(steps=1), tmp_path / "run").finished
    assert len(parsed) == 1
