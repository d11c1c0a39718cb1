import errno
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from linnet.core.checksum import MANIFEST, LaterVersionError, write_file_checksums
from linnet.core.files import sha256_of
from linnet.core.migration import OPTIMIZER as OPTIMIZER_0_1
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.folder import CONFIG, TOKENIZER, WEIGHTS
from linnet.model.store import load_decoder
from linnet.training.callbacks.evaluation import EvaluationState
from linnet.training.callbacks.guard import GuardState
from linnet.training.callbacks.log import LogState, Meter
from linnet.training.checkpoint import (
    OPTIMIZER,
    SUMMARY,
    CheckpointWriter,
    checkpoint_path,
    checkpoint_steps,
    discard_after,
    find_newest,
    load,
    prune,
)
from linnet.training.state import TrainState, parse_dataclass


@pytest.fixture
def decoder(tiny_model):
    return Decoder(tiny_model("plga"))


@pytest.fixture
def save(tmp_path, decoder):
    """`save(step)` writes a checkpoint whose weights are all `step`."""
    tokenizer = Tokenizer.train("bytes", [])
    first = next(name for name, _ in decoder.named_parameters())

    def write(step):
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.fill_(step)
        tensors = {f"{first}/odd": torch.full((3,), float(step)), f"{first}/step": torch.tensor(step)}
        state = TrainState("data", step=step, elapsed_s=0.1 + step)
        CheckpointWriter().save(tmp_path, decoder, tensors, tokenizer, state)
        return checkpoint_path(tmp_path, step)

    return write


@pytest.fixture
def newest(decoder):
    """`newest(folder, note)`: what a run finds there."""
    return lambda folder, note: find_newest(folder, decoder, note)


def _notes():
    notes = []
    return notes, notes.append


def _weights_are(path, value):
    return all((tensor == value).all() for tensor in load_file(path / WEIGHTS).values())


def test_a_checkpoint_is_read_back(tmp_path, save, newest, tiny_model):
    path = save(7)
    notes, note = _notes()
    found = newest(tmp_path, note)
    assert found.path == path == tmp_path / "step-00000007" and notes == []
    assert found.state == TrainState("data", step=7, elapsed_s=7.1)
    other = Decoder(tiny_model("plga"))
    odd, step = load(found, other).values()
    assert odd.tolist() == [7.0] * 3 and step.item() == 7 and step.dtype == torch.int64
    assert all((parameter == 7).all() for parameter in other.parameters()) and _weights_are(path, 7)


def test_the_tensor_files_are_those_that_safetensors_writes(tmp_path, decoder):
    """With tensors of several widths, of none and without elements."""
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(2, 3, dtype=torch.float64),
        "c": torch.tensor(7),
        "d": torch.ones(0, 4),
        "e": torch.randn(7).bfloat16(),
    }
    name = next(name for name, _ in decoder.named_parameters())
    tensors = {f"{name}/{key}": tensor for key, tensor in tensors.items()}
    CheckpointWriter().save(tmp_path, decoder, tensors, Tokenizer.train("bytes", []), TrainState("data", step=1))
    found = load_file(checkpoint_path(tmp_path, 1) / OPTIMIZER)
    assert found.keys() == tensors.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    save_file(tensors, tmp_path / "by-safetensors")
    assert (tmp_path / "by-safetensors").stat().st_size == (checkpoint_path(tmp_path, 1) / OPTIMIZER).stat().st_size


def test_a_checkpoint_is_a_model_folder(save):
    path = save(3)
    assert all((p == 3).all() for p in load_decoder(path).parameters())
    assert Tokenizer.load(path).vocab_size == 257


def test_a_folder_without_checkpoints(tmp_path, newest):
    assert newest(tmp_path / "missing", pytest.fail) is None


def _cut(path):
    (path / OPTIMIZER).write_bytes((path / OPTIMIZER).read_bytes()[:-4])


def _flip(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def _lose(path):
    (path / "model.safetensors").unlink()


def _garble(path):
    (path / SUMMARY).write_text('{"version": 1, "sha')


def _renumber(path):
    _change(path, version=99)


def _step_back(path):
    summary = json.loads((path / SUMMARY).read_text())
    _change(path, state={**summary["state"], "step": 1})


def _unseal(path):
    """As if it had come from elsewhere: what says how it was when it was written is gone."""
    (path / MANIFEST).unlink()


def _rename(path):
    """Whole, but of another step."""
    path.rename(path.with_name("step-00000009"))


def _change(path, **changes):
    summary = json.loads((path / SUMMARY).read_text())
    (path / SUMMARY).write_text(json.dumps({**summary, **changes}))


def _retell(path):
    """The state of something else, under a manifest that fits."""
    _change(path, state={"step": 2, "meter": {}})
    write_file_checksums(path, (CONFIG, WEIGHTS, TOKENIZER, OPTIMIZER, SUMMARY))


DAMAGES = [_cut, _flip, _lose, _garble, _renumber, _step_back, _unseal, _rename, _retell]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_skipped(tmp_path, save, newest, damage):
    save(1)
    damage(save(2))
    notes, note = _notes()
    assert newest(tmp_path, note).state.step == 1
    assert len(notes) == 1 and f"{tmp_path}/step-0000000" in notes[0]


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_of_any_file_is_noticed(tmp_path_factory, tmp_path, save, newest, data):
    folder = tmp_path_factory.mktemp("changed")
    path = shutil.copytree(save(7), folder / "step-00000007")
    file = data.draw(st.sampled_from(sorted(path.iterdir())), label="file")
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    content[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]))
    file.write_bytes(content)
    notes, note = _notes()
    found = newest(folder, note)
    if found is None:
        assert len(notes) == 1
    else:  # the name of the manifest's checksum was changed, and nothing else
        assert file.name == MANIFEST and found.state == TrainState("data", step=7, elapsed_s=7.1)
        assert _weights_are(found.path, 7)


METER = {"nats": 2.5, "tokens": 32, "bytes": 30, "seconds": 0.5, "waited_s": 0.1, "lr": 1e-3, "gradient_norm": 0.7,
         "terms": {}, "orthogonalising_s": 0.25}  # fmt: skip
GUARD = {"losses": [2.0], "gradient_norms": [1.0], "in_a_row": 1, "skipped": 2, "checkpoint": 6, "returned_to": 3,
         "returns": 1, "count": 2, "spikes": [{"step": 5, "reason": "loss nan", "action": "back"}]}  # fmt: skip
STANDING = {
    "data_hash": "data", "step": 7, "tokens": 700, "seconds": 7.1, "closed": False, "meter": METER,
    "evaluation_step": 4, "evaluation": None, "best_step": 4, "best_bits_per_byte": 1.5, "orthogonalising_s": 0.75,
    "guard": GUARD, "embedded": None,
}  # fmt: skip
"""What linnet 0.1 wrote."""


def _by_0_1(path, version, guard=GUARD):
    """A checkpoint as linnet 0.1 wrote it; version 1 has the hashes of the tensors in its summary, and no manifest."""
    (path / OPTIMIZER).rename(path / OPTIMIZER_0_1)
    summary = {"version": version, "standing": {**STANDING, "guard": guard}}
    (path / MANIFEST).unlink()
    if version == 1:
        summary["sha256"] = {name: sha256_of(path / name) for name in (WEIGHTS, OPTIMIZER_0_1)}
    (path / SUMMARY).write_text(json.dumps(summary))
    if version > 1:
        write_file_checksums(path, (CONFIG, WEIGHTS, TOKENIZER, OPTIMIZER_0_1, SUMMARY))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_checkpoint_of_linnet_0_1_is_read(tmp_path, save, newest, told, decoder, version):
    path = save(7)
    _by_0_1(path, version)
    found = newest(tmp_path, pytest.fail)
    state, callbacks = found.state, found.state.callbacks
    assert (state.step, state.data_position, state.tokens, state.elapsed_s) == (7, 9, 700, 7.1)
    assert (state.callbacks_done, state.lr, state.gradient_norm) == (False, 1e-3, 0.7)
    log = parse_dataclass(LogState, callbacks["log"], "log")
    assert log == LogState(Meter(2.5, 32, 30, 0.5, 0.1, {}, 0.25), 0.75)
    guard = parse_dataclass(GuardState, callbacks["guard"], "guard")
    spikes = [{"step": 5, "reason": "loss nan", "action": "rewind"}]
    assert guard == GuardState([2.0], [1.0], 1, 6, 3, 1, 2, spikes)
    evaluation = parse_dataclass(EvaluationState, callbacks["evaluation"], "evaluation")
    assert evaluation == EvaluationState(4, None, 4, 1.5)
    assert _weights_are(path, 7) and len(load(found, decoder)) == 2
    assert told() == ([f"{path}: has no manifest.json: its files are taken as they are"] if version == 1 else [])


def test_a_checkpoint_of_linnet_0_1_without_a_guard_is_read(tmp_path, save, newest):
    _by_0_1(save(7), 3, guard=None)
    state = newest(tmp_path, pytest.fail).state
    assert state.data_position == 7 and "guard" not in state.callbacks


def _cut_0_1(path):
    (path / OPTIMIZER_0_1).write_bytes((path / OPTIMIZER_0_1).read_bytes()[:-4])


def _step_back_0_1(path):
    summary = json.loads((path / SUMMARY).read_text())
    _change(path, standing={**summary["standing"], "step": 1})


def _no_standing(path):
    _change(path, standing={"step": 7})


OLD_DAMAGES = [_cut_0_1, _flip, _lose, _garble, _renumber, _step_back_0_1, _no_standing]


@pytest.mark.parametrize("damage", OLD_DAMAGES)
def test_a_damaged_checkpoint_of_version_1_is_skipped(tmp_path, save, newest, damage):
    path = save(7)
    _by_0_1(path, 1)
    damage(path)
    notes, note = _notes()
    assert newest(tmp_path, note) is None
    assert len(notes) == 1 and str(path) in notes[0]


def test_a_half_written_checkpoint_does_not_appear(tmp_path, save, newest, monkeypatch):
    save(1)
    monkeypatch.setattr("linnet.training.checkpoint.write_json", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        save(2)
    assert checkpoint_steps(tmp_path) == [1] and [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(1, None, [5]), (2, None, [4, 5]), (1, 2, [2, 5]), (2, 5, [4, 5]), (9, 1, [1, 2, 3, 4, 5])],
)
def test_prune_keeps_the_newest_and_the_best(tmp_path, save, keep, best, left):
    for step in range(1, 6):
        save(step)
    prune(tmp_path, keep, best)
    assert checkpoint_steps(tmp_path) == left


def test_later_checkpoints_are_discarded(tmp_path, save, newest):
    for step in (1, 2, 3):
        save(step)
    discard_after(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("name", ["step-²", "step-5", "step-000000003", f"step-{200 * '9'}"])
def test_a_folder_with_another_name_is_not_a_checkpoint(tmp_path, save, name):
    save(2)
    (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [2]


def test_names_sort_by_step(tmp_path):
    assert checkpoint_path(tmp_path, 999).name < checkpoint_path(tmp_path, 1000).name


def test_a_half_removed_checkpoint_does_not_keep_its_name(tmp_path, save, newest, monkeypatch):
    for step in (1, 2):
        save(step)

    def break_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", break_off)
    with pytest.raises(KeyboardInterrupt):
        discard_after(tmp_path, 1)
    assert checkpoint_steps(tmp_path) == [1]


def test_without_enough_disk_space_nothing_is_written(tmp_path, save, newest, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=1000))
    with pytest.raises(OSError, match=r"No space left on device: [\d,]+ bytes needed, 1,000 bytes free in ") as full:
        save(1)
    assert full.value.filename == str(checkpoint_path(tmp_path, 1))
    assert list(tmp_path.iterdir()) == []


def _restate(path, **changes):
    """Change `checkpoint.json`, and checksum it again."""
    summary = json.loads((path / SUMMARY).read_text())
    (path / SUMMARY).write_text(json.dumps(summary | changes))
    write_file_checksums(path, (CONFIG, WEIGHTS, TOKENIZER, OPTIMIZER, SUMMARY))


def test_a_checkpoint_of_a_later_version_is_not_skipped(tmp_path, save, newest):
    save(1)
    _restate(save(2), version=5)
    with pytest.raises(LaterVersionError, match="version 5: of a later linnet"):
        newest(tmp_path, pytest.fail)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_checkpoint_that_cannot_be_read_now_is_not_skipped(number, tmp_path, save, newest, monkeypatch):
    save(1)

    def fail(path, *_):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        newest(tmp_path, pytest.fail)
