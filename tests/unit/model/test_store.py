import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from linnet.core.errors import UserError
from linnet.model import store
from linnet.model.decoder import Decoder, meta_decoder
from linnet.model.folder import CONFIG, WEIGHTS
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder

DESCRIPTION = {
    "vocab_size": 9,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "attention", "heads": 2}}, {"mixer": {"kind": "ted"}, "width": 6}],
}
MODEL = f"the model in {CONFIG}"


@pytest.fixture
def decoder() -> Decoder:
    return Decoder(ModelSpec.parse(DESCRIPTION, "test"))


@pytest.fixture
def folder(decoder: Decoder, tmp_path: Path) -> Path:
    save_decoder(decoder, tmp_path / "model")
    return tmp_path / "model"


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_decoder(folder)
    return str(refused.value)


def change_weights(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(name, None)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, folder / WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_the_same_model(decoder: Decoder, tmp_path: Path, dtype: torch.dtype):
    save_decoder(decoder.to(dtype), tmp_path)
    loaded = load_decoder(tmp_path)
    tokens_BT = torch.tensor([[1, 2, 3]])
    assert loaded.dtype == dtype
    assert loaded.spec == decoder.spec
    assert torch.equal(loaded(tokens_BT), decoder(tokens_BT))


def test_a_folder_without_weights_or_description_is_refused(folder: Path):
    (folder / WEIGHTS).rename(folder / "elsewhere")
    assert refusal(folder) == f"{folder}: is not a model folder, it has no {WEIGHTS}"
    (folder / CONFIG).unlink()
    assert refusal(folder) == f"{folder}: is not a model folder, it has no {CONFIG}"


def test_a_missing_tensor_is_named(folder: Path):
    name = "blocks.1.layers.0.mixer.out.weight"
    change_weights(folder, name, None)
    assert refusal(folder) == f"{folder / WEIGHTS}: tensor {name} is missing; {MODEL} has it, of shape [6, 6]"


def test_an_extra_tensor_is_named(folder: Path):
    change_weights(folder, "head.weight", torch.zeros(9, 8))
    assert refusal(folder) == f"{folder / WEIGHTS}: tensor head.weight, of shape [9, 8]: {MODEL} has none of that name"


def test_a_tensor_of_a_wrong_shape_is_named(folder: Path):
    change_weights(folder, "project.weight", torch.zeros(8, 5))
    assert refusal(folder) == f"{folder / WEIGHTS}: tensor project.weight has shape [8, 5], {MODEL} has [8, 6]"


def test_a_tensor_of_integers_is_named(folder: Path):
    change_weights(folder, "project.weight", torch.zeros(8, 6, dtype=torch.int64))
    assert refusal(folder) == f"{folder / WEIGHTS}: tensor project.weight is of int64, expected floating point"


def test_files_that_are_not_safetensors_are_refused(folder: Path):
    (folder / WEIGHTS).write_bytes(b"half a fil")
    assert refusal(folder).startswith(f"{folder / WEIGHTS}: not a safetensors file (")


def test_a_broken_description_is_refused_with_its_line(folder: Path):
    (folder / CONFIG).write_text('{"name": "model",\n"vocab_size": }')
    assert refusal(folder).startswith(f"{folder / CONFIG}, line 2: not valid JSON (")


def test_a_model_replaced_during_loading_is_not_mixed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """With equal shapes, so that only the values differ."""

    def after_another_was_written(model: ModelSpec):
        shutil.copytree(folder, folder.with_name("new"))
        folder.rename(folder.with_name("old"))
        folder.with_name("new").rename(folder)
        return meta_decoder(model)

    monkeypatch.setattr(store, "meta_decoder", after_another_was_written)
    with pytest.raises(UserError, match="was replaced while it was read"):
        load_decoder(folder)
