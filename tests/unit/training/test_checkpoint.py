import errno
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linnet.core.checksum import MANIFEST, LaterVersionError, write_file_checksums
from linnet.core.files import sha256_of
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import CONFIG, TOKENIZER, WEIGHTS, load_decoder
from linnet.training.checkpoint import (
    MOMENTS,
    SUMMARY,
    checkpoint_path,
    checkpoint_steps,
    discard_after,
    load_newest,
    prune,
    save_checkpoint,
)
from linnet.training.train_state import TrainState


@pytest.fixture
def save(tmp_path, tiny_model):
    """`save(step)` writes a checkpoint whose weights are all `step`."""
    decoder = Decoder(tiny_model("plga"))
    tokenizer = Tokenizer.train("bytes", [])

    def write(step):
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.fill_(step)
        moments = {"a.b/exp_avg": torch.full((3,), float(step)), "a.b/step": torch.tensor(float(step))}
        return save_checkpoint(
            tmp_path, step, decoder, tokenizer, moments, TrainState("data", step, seconds=0.1 + step)
        )

    return write


def _notes():
    notes = []
    return notes, notes.append


def test_what_was_saved_is_read_back(tmp_path, save):
    path = save(7)
    notes, note = _notes()
    found = load_newest(tmp_path, note)
    assert found.path == path == tmp_path / "step-00000007" and notes == []
    assert found.standing == TrainState("data", step=7, seconds=7.1)
    assert found.moments["a.b/exp_avg"].tolist() == [7.0] * 3 and found.moments["a.b/step"].item() == 7.0
    assert all((tensor == 7).all() for tensor in found.weights.values())


def test_a_checkpoint_is_a_model_folder(save):
    path = save(3)
    assert all((p == 3).all() for p in load_decoder(path).parameters())
    assert Tokenizer.load(path).vocab_size == 257


def test_none_yet(tmp_path):
    assert load_newest(tmp_path / "missing", pytest.fail) is None


def _cut(path):
    (path / MOMENTS).write_bytes((path / MOMENTS).read_bytes()[:-4])


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
    _change(path, standing={**summary["standing"], "step": 1})


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
    """Somebody else's standing, under a manifest that fits."""
    _change(path, standing={"step": 2, "meter": {}})
    write_file_checksums(path, (CONFIG, WEIGHTS, TOKENIZER, MOMENTS, SUMMARY))


DAMAGES = [_cut, _flip, _lose, _garble, _renumber, _step_back, _unseal, _rename, _retell]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_passed_over(tmp_path, save, damage):
    save(1)
    damage(save(2))
    notes, note = _notes()
    assert load_newest(tmp_path, note).standing.step == 1
    assert len(notes) == 1 and f"{tmp_path}/step-0000000" in notes[0]


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_changed_byte_of_any_file_is_believed(tmp_path_factory, tmp_path, save, data):
    folder = tmp_path_factory.mktemp("changed")
    path = shutil.copytree(save(7), folder / "step-00000007")
    file = data.draw(st.sampled_from(sorted(path.iterdir())), label="file")
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    content[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[place]))
    file.write_bytes(content)
    notes, note = _notes()
    found = load_newest(folder, note)
    if found is None:
        assert len(notes) == 1
    else:  # the name of the manifest's checksum was changed, and nothing else
        assert file.name == MANIFEST and found.standing == TrainState("data", step=7, seconds=7.1)
        assert all((tensor == 7).all() for tensor in found.weights.values())


def _of_version_1(path):
    """What earlier ones wrote: the hashes of the tensors in the summary, and no manifest."""
    (path / MANIFEST).unlink()
    _change(path, version=1, sha256={name: sha256_of(path / name) for name in (WEIGHTS, MOMENTS)})


def test_one_of_version_1_is_read_with_a_note(tmp_path, save, told):
    path = save(7)
    _of_version_1(path)
    found = load_newest(tmp_path, pytest.fail)
    assert found.standing == TrainState("data", step=7, seconds=7.1)
    assert all((tensor == 7).all() for tensor in found.weights.values())
    assert told() == [f"{path}: has no manifest.json: its files are taken as they are"]


@pytest.mark.parametrize("damage", [_cut, _flip, _lose, _garble, _renumber, _step_back])
def test_a_damaged_one_of_version_1_is_passed_over(tmp_path, save, damage):
    path = save(7)
    _of_version_1(path)
    damage(path)
    notes, note = _notes()
    assert load_newest(tmp_path, note) is None
    assert len(notes) == 1 and str(path) in notes[0]


def test_a_half_written_one_is_not_there(tmp_path, save, monkeypatch):
    save(1)
    monkeypatch.setattr("linnet.training.checkpoint.write_json", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        save(2)
    assert checkpoint_steps(tmp_path) == [1] and [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(1, None, [5]), (2, None, [4, 5]), (1, 2, [2, 5]), (2, 5, [4, 5]), (9, 1, [1, 2, 3, 4, 5])],
)
def test_the_newest_and_the_best_are_kept(tmp_path, save, keep, best, left):
    for step in range(1, 6):
        save(step)
    prune(tmp_path, keep, best)
    assert checkpoint_steps(tmp_path) == left


def test_later_ones_are_discarded(tmp_path, save):
    for step in (1, 2, 3):
        save(step)
    discard_after(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("name", ["step-²", "step-5", "step-000000003", f"step-{200 * '9'}"])
def test_a_folder_of_another_name_is_no_checkpoint(tmp_path, save, name):
    save(2)
    (tmp_path / name).mkdir()
    assert checkpoint_steps(tmp_path) == [2]


def test_names_sort_by_step(tmp_path):
    assert checkpoint_path(tmp_path, 999).name < checkpoint_path(tmp_path, 1000).name


def test_a_half_removed_one_does_not_keep_its_name(tmp_path, save, monkeypatch):
    for step in (1, 2):
        save(step)

    def break_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", break_off)
    with pytest.raises(KeyboardInterrupt):
        discard_after(tmp_path, 1)
    assert checkpoint_steps(tmp_path) == [1]


def test_without_room_for_all_of_it_nothing_is_begun(tmp_path, save, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=1000))
    with pytest.raises(OSError, match=r"No space left on device: [\d,]+ bytes needed, 1,000 bytes free in ") as full:
        save(1)
    assert full.value.filename == str(checkpoint_path(tmp_path, 1))
    assert list(tmp_path.iterdir()) == []


def _restate(path, **changes):
    """Change `checkpoint.json`, and checksum it again."""
    summary = json.loads((path / SUMMARY).read_text())
    (path / SUMMARY).write_text(json.dumps(summary | changes))
    write_file_checksums(path, (CONFIG, WEIGHTS, TOKENIZER, MOMENTS, SUMMARY))


def test_what_a_later_linnet_wrote_is_not_passed_over(tmp_path, save):
    save(1)
    _restate(save(2), version=4)
    with pytest.raises(LaterVersionError, match="version 4: of a later linnet"):
        load_newest(tmp_path, pytest.fail)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_what_cannot_be_read_now_is_not_passed_over(number, tmp_path, save, monkeypatch):
    save(1)

    def fail(path, *_):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        load_newest(tmp_path, pytest.fail)
