"""A run that begins with the weights of another model."""

import json
import shutil

import pytest
import torch
import yaml

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.data.tokenizer import Tokenizer
from linnet.model.store import load_decoder, write_model
from linnet.training.reporter import Reporter
from linnet.training.run import train_run
from linnet.training.spec import read_run

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def first(tmp_path, tiny_run):
    """A run folder; the model of another seed than that of `tiny_run()`."""
    train_run(tiny_run(seed=5), tmp_path / "first")
    return tmp_path / "first"


def _from(run, source, **model):
    return run.parse({**run.to_dict(), "model": {**run.to_dict()["model"], **model}, "start_from": str(source)}, "test")


class _StopAt(Reporter):
    def __init__(self, step):
        self.at = step

    def step(self, progress):
        if progress.step == self.at:
            raise KeyboardInterrupt


def _weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def test_it_begins_with_the_weights_of_the_model(tmp_path, tiny_run, first):
    still = {"optimizer": {"lr": 1e-30, "weight_decay": 0}, "schedule": {"warmup_steps": 0}}
    for source in (first, first / "model"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        result = train_run(_from(tiny_run(**still), source), tmp_path / "run")
        found, given = (load_decoder(path).state_dict() for path in (result.model, first / "model"))
        assert all(torch.equal(found[name], given[name]) for name in given)


def test_it_resumes_bit_for_bit_without_the_initial_model(tmp_path, tiny_run, first):
    run = _from(tiny_run(), first)
    train_run(run, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        train_run(run, tmp_path / "run", _StopAt(5))
    shutil.rmtree(first)
    train_run(run, tmp_path / "run")
    assert _weights(tmp_path / "run") == _weights(tmp_path / "straight")


def test_the_files_that_a_model_was_published_with_go_on(tmp_path, tiny_run, first):
    decoder, tokenizer = load_decoder(first / "model"), Tokenizer.load(first / "model")
    (tmp_path / "LICENSE").write_text("for all")
    write_model(tmp_path / "imported", decoder, tokenizer, {}, {"LICENSE": tmp_path / "LICENSE"})
    run = train_run(_from(tiny_run(), tmp_path / "imported"), tmp_path / "run")
    assert (run.model / "published" / "LICENSE").read_text() == "for all"
    assert "published/LICENSE" in (run.model / "manifest.json").read_text()


def test_config_and_run_json_name_the_initial_model(tmp_path, tiny_run, first):
    summary = train_run(_from(tiny_run(), first), tmp_path / "run").summary
    known = json.loads((tmp_path / "run" / "files.json").read_text())["start_from"]
    assert summary["started_from"] == {"model": str(first), "sha256": known} and len(known) == 64
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["start_from"] == str(first)
    assert train_run(tiny_run(), tmp_path / "fresh").summary["started_from"] is None


def test_another_model_under_the_same_name_is_another_run(tmp_path, tiny_run, first):
    with pytest.raises(KeyboardInterrupt):
        train_run(_from(tiny_run(), first), tmp_path / "run", _StopAt(5))
    moved = tmp_path / "moved"
    shutil.copytree(first, moved)
    shutil.rmtree(first)
    train_run(tiny_run(seed=6), first)
    with pytest.raises(UserError, match=r"start_from: '.*first \(SHA-256 \w{12}\)', not '.*first \(SHA-256 \w{12}\)'"):
        train_run(_from(tiny_run(), first), tmp_path / "run")
    train_run(_from(tiny_run(), moved), tmp_path / "run")


def test_a_model_of_other_shapes_is_refused_by_the_field_that_differs_and_its_first_tensor(tmp_path, tiny_run, first):
    with pytest.raises(UserError) as refused:
        train_run(_from(tiny_run(), first, d_model=32), tmp_path / "run")
    path = first / "model" / "model.safetensors"
    expected = "tensor blocks.0.layers.0.feed_forward.down.weight has shape [16, 24], the run's model has [32, 24]"
    assert str(refused.value) == f"model.d_model: 32, not the 16 of {first / 'model'}; {path}: {expected}"
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_model_with_another_tokenizer_is_refused(tmp_path, tiny_run, first):
    texts = ["the bird sang to the tree. " * 9] * 20
    prepare_texts(texts, texts, tmp_path / "char", tokenizer="char")
    run = _from(tiny_run(), first).model_copy(update={"data": tmp_path / "char"})
    with pytest.raises(UserError, match="another tokenizer"):
        train_run(run, tmp_path / "run")


def test_the_description_is_that_of_the_initial_model_by_default(tiny_data, tiny_run, first):
    assert read_run(data=tiny_data, start_from=first).model == tiny_run().model
    assert read_run(model="tiny-ted", data=tiny_data, start_from=first).model.name == "tiny-ted"


def test_a_preset_has_no_weights_to_begin_with(tmp_path, tiny_data):
    with pytest.raises(UserError, match="a preset, a description without weights"):
        read_run(data=tiny_data, start_from="tiny-ted")
    run = read_run(model="tiny-ted", data=tiny_data, start_from="tiny-ted", assignments=["training.steps=1"])
    with pytest.raises(UserError, match="a preset, a description without weights"):
        train_run(run, tmp_path / "run")
