"""A checkpoint in the published layout becomes a model folder that says what the published code says."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from linnet.core.errors import UserError
from linnet.inference.language_model import load
from linnet.interop.pldr import import_pldr
from linnet.interop.tensor_names import PLDR
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder

BIAS = "decoder.dec_layers.1.mha1.plgatt_layer.balst"


def saved(tmp_path: Path, content: Any, name: str = "published.pth") -> Path:
    torch.save(content, tmp_path / name)
    return tmp_path / name


@torch.no_grad()
def test_the_imported_model_gives_the_published_logits(golden, weights, spec: Path, pieces: Path, tmp_path: Path):
    checkpoint = saved(tmp_path, {"model_state_dict": weights, "epoch": 3})
    import_pldr(checkpoint, spec, pieces, tmp_path / "model", "the command")
    decoder = load_decoder(tmp_path / "model")
    torch.testing.assert_close(decoder(golden["tokens"][:, :-1]), golden["logits"], rtol=1e-5, atol=1e-5)
    made = json.loads((tmp_path / "model" / "run.json").read_text())
    assert (made["imported_from"], made["command"], len(made["sha256"])) == (str(checkpoint), "the command", 64)
    assert isinstance(load(tmp_path / "model").generate("a bird", max_tokens=3, seed=0), str)


def test_a_folder_needs_no_other_word(weights, spec: Path, pieces: Path, tmp_path: Path):
    folder = tmp_path / "published"
    folder.mkdir()
    saved(folder, {"model_state_dict": weights})
    with pytest.raises(UserError, match=f"{folder}: expected one .model file, a SentencePiece model, found none"):
        import_pldr(folder, spec, None, tmp_path / "model")
    (folder / "pieces.model").write_bytes(pieces.read_bytes())
    import_pldr(folder, spec, None, tmp_path / "model")
    saved(folder, {}, "second.pth")
    with pytest.raises(
        UserError, match=r"expected one .pth file, a checkpoint, found 2 of them \(published.pth, second"
    ):
        import_pldr(folder, spec, None, tmp_path / "another")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(BIAS), f"tensor {BIAS} is missing; {{spec}} has it, of shape [3, 8, 8]"),
        (lambda w: w.update(extra=torch.zeros(2)), "tensor extra, of shape [2]: {spec} has none of that name"),
        (lambda w: w.update({BIAS: torch.zeros(3, 8)}), f"tensor {BIAS} has shape [3, 8], {{spec}} has [3, 8, 8]"),
        (lambda w: w.update({BIAS: torch.zeros(3, 8, 8).int()}), f"tensor {BIAS} is of int32, expected floating point"),
        (lambda w: w.update({BIAS: torch.zeros(3, 8, 8)}), "tensors of float32 and float64: expected one precision"),
        (lambda w: w.update({BIAS: "text"}), f"model_state_dict: '{BIAS}' is of str, expected a tensor"),
    ],
)
def test_a_tensor_that_is_wrong_is_named(weights, spec: Path, pieces: Path, tmp_path: Path, change, message: str):
    changed = dict(weights)
    change(changed)
    checkpoint = saved(tmp_path, {"model_state_dict": changed})
    with pytest.raises(UserError) as refused:
        import_pldr(checkpoint, spec, pieces, tmp_path / "model")
    assert str(refused.value) == f"{checkpoint}: " + message.format(spec=spec)
    assert not (tmp_path / "model").exists()


class Bomb:
    """Pickled code that would run where a file is unpickled without care."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of the checkpoint was run')",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_state_dict": Bomb()}, "not a file of tensors alone"),
        ({"state_dict": {}}, "expected a dictionary with model_state_dict, found the keys state_dict"),
        ([1], "expected a dictionary with model_state_dict, found list"),
        ({}, "expected a dictionary with model_state_dict, found the keys (none)"),
    ],
)
def test_another_content_is_refused_and_never_run(spec: Path, pieces: Path, tmp_path: Path, content, message: str):
    checkpoint = saved(tmp_path, content)
    with pytest.raises(UserError) as refused:
        import_pldr(checkpoint, spec, pieces, tmp_path / "model")
    assert str(refused.value).startswith(f"{checkpoint}: {message}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps(Bomb()), b"PK\x03\x04 cut"])
def test_a_file_of_something_else_is_refused(spec: Path, pieces: Path, tmp_path: Path, content: bytes):
    path = tmp_path / "published.pth"
    with pytest.raises(UserError, match="no such file"):
        import_pldr(path, spec, pieces, tmp_path / "model")
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file of tensors alone") as refused:
        import_pldr(path, spec, pieces, tmp_path / "model")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["tiny-ted", "llama-110m", "tiny-attention"])
def test_a_description_of_another_architecture_is_refused(weights, pieces: Path, tmp_path: Path, name: str):
    checkpoint = saved(tmp_path, {"model_state_dict": weights})
    with pytest.raises(UserError, match=f"spec: {name}: not the architecture of a published PLDR-LLM"):
        import_pldr(checkpoint, name, pieces, tmp_path / "model")


def test_existing_folders_are_not_overwritten(weights, spec: Path, pieces: Path, tmp_path: Path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("x")
    with pytest.raises(UserError, match="exists already; expected a new folder"):
        import_pldr(saved(tmp_path, {"model_state_dict": weights}), spec, pieces, tmp_path / "model")
    assert (tmp_path / "model" / "mine").read_text() == "x"


def test_a_vocabulary_that_is_too_large_is_refused(weights, spec: Path, pieces: Path, tmp_path: Path):
    plain = yaml.safe_load(spec.read_text()) | {"vocab_size": 10}
    spec.write_text(yaml.safe_dump(plain))
    with pytest.raises(UserError, match=f"{pieces}: 20 tokens: expected at most the vocab_size of {spec}, 10"):
        import_pldr(saved(tmp_path, {"model_state_dict": weights}), spec, pieces, tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("pldr-v51-104m", 104_237_120),
        ("pldr-v51-110m-5", 110_092_882),
        ("pldr-v51-dag-110m", 109_689_362),
        ("pldr-v51-soc-110m-1", 109_689_362),
        ("pldr-v51-soc-110m-5", 109_689_362),
    ],
)
def test_a_presets_published_shapes_add_up_to_its_parameters(name: str, parameters: int):
    shapes = PLDR.shapes(ModelSpec.load(name))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == parameters
