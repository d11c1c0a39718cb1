import json

import pytest
import torch

from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.store import load_decoder
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
        return save_checkpoint(tmp_path, step, decoder, tokenizer, moments, {"step": step, "loss": 0.1 + step})

    return write


def _notes():
    notes = []
    return notes, notes.append


def test_what_was_saved_is_read_back(tmp_path, save):
    path = save(7)
    notes, note = _notes()
    found = load_newest(tmp_path, note)
    assert found.path == path == tmp_path / "step-00000007" and notes == []
    assert found.standing == {"step": 7, "loss": 7.1}
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
    summary = json.loads((path / SUMMARY).read_text())
    (path / SUMMARY).write_text(json.dumps({**summary, "version": 99}))


@pytest.mark.parametrize("damage", [_cut, _flip, _lose, _garble, _renumber])
def test_a_damaged_one_is_named_and_passed_over(tmp_path, save, damage):
    save(1)
    damage(save(2))
    notes, note = _notes()
    assert load_newest(tmp_path, note).standing["step"] == 1
    assert len(notes) == 1 and "step-00000002" in notes[0]


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


def test_names_sort_by_step(tmp_path):
    assert checkpoint_path(tmp_path, 999).name < checkpoint_path(tmp_path, 1000).name
