"""A folder in TED's published layout becomes a model folder that says what the published code says."""

import base64
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.prepare import prepare
from linnet.evaluation.text import evaluate_folder
from linnet.inference.language_model import load
from linnet.interop.ted import END, import_ted, read_json_weights
from linnet.interop.tensor_names import TED
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder

GOLDEN = Path(__file__).parents[2] / "golden" / "ted_small.safetensors"
GATE = "layers.1.decay.gate_matrix.weight"
CHARACTERS = ["\n", " ", *"abcdefghijklmnopqrstuvwxyz", END]
FORMATS = pytest.mark.parametrize("weights", ["weights.json", "weights.pth"])


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    with safe_open(GOLDEN, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def state(golden: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = "state_dict."
    return {name.removeprefix(prefix): tensor for name, tensor in golden.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def published_folder(state: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model as the published code would have saved it."""
    folder = tmp_path_factory.mktemp("published") / "golden"
    folder.mkdir()
    with safe_open(GOLDEN, "pt") as file:
        config = json.loads(file.metadata()["config"])
    names = ("num_layers", "dim", "hidden_dim", "norm_eps", "vocab_size")
    (folder / "model.json").write_text(json.dumps({name: config[name] for name in names}, indent=4))
    vocabulary = {"int_to_char": CHARACTERS, "char_to_int": {c: n for n, c in enumerate(CHARACTERS)}}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "weights.json").write_text(json.dumps({name: as_json(tensor) for name, tensor in state.items()}))
    torch.save(state, folder / "weights.pth")
    return folder


@pytest.fixture
def published(published_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published_folder, tmp_path / "golden"))


def as_json(tensor: Tensor) -> dict[str, Any]:
    return {"size": list(tensor.shape), "data": base64.b64encode(tensor.numpy().tobytes()).decode()}


def keep_only(folder: Path, weights: str) -> None:
    """Of the two files of weights."""
    (folder / ({"weights.json", "weights.pth"} - {weights}).pop()).unlink()


def change_json(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refusal(folder: Path, out: Path, **options: Any) -> str:
    with pytest.raises(UserError) as refused:
        import_ted(folder, out, **options)
    assert "\n" not in str(refused.value)
    assert not out.exists()
    return str(refused.value)


@FORMATS
@torch.no_grad()
def test_the_imported_model_gives_the_published_logits(golden, published: Path, tmp_path: Path, weights: str):
    keep_only(published, weights)
    import_ted(published, tmp_path / "model", command="the command")
    decoder = load_decoder(tmp_path / "model")
    torch.testing.assert_close(decoder(golden["tokens"][:, :-1]), golden["logits"], rtol=1e-4, atol=1e-4)
    assert (decoder.spec.name, decoder.spec.context_length) == ("golden", 2048)
    made = json.loads((tmp_path / "model" / "run.json").read_text())
    assert (made["imported_from"], made["command"]) == (str(published / weights), "the command")
    assert (made["end_character"], len(made["sha256"])) == (END, 64)


@FORMATS
def test_it_speaks_and_can_be_evaluated(published: Path, tmp_path: Path, weights: str):
    keep_only(published, weights)
    import_ted(published, tmp_path / "model", context_length=32)
    model = load(tmp_path / "model")
    assert model.tokenizer.end_id == 28
    assert set(model.generate("once upon", max_tokens=40, seed=0)) <= set(CHARACTERS)
    text = tmp_path / "stories.txt"
    text.write_text(END.join(f"\nthe bird {'very ' * n}sang\n" for n in range(20)))
    tokenizer = str(tmp_path / "model" / "tokenizer.json")
    prepare([str(text)], tmp_path / "data", tokenizer=tokenizer, separator=END)
    found = evaluate_folder(tmp_path / "model", tmp_path / "data")
    assert 1 < found.causal.bits_per_byte < 20


def test_with_both_files_of_weights_the_json_is_read(published: Path, tmp_path: Path):
    (published / "weights.pth").write_bytes(pickle.dumps(Bomb()))
    import_ted(published, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "run.json").read_text())["imported_from"].endswith("weights.json")


def test_half_precision_is_kept(published: Path, state: dict[str, Tensor], tmp_path: Path):
    keep_only(published, "weights.pth")
    torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, published / "weights.pth")
    import_ted(published, tmp_path / "model")
    assert load_decoder(tmp_path / "model").dtype == torch.bfloat16


def test_mixed_precisions_are_refused(published: Path, state: dict[str, Tensor], tmp_path: Path):
    keep_only(published, "weights.pth")
    torch.save({**state, GATE: state[GATE].half()}, published / "weights.pth")
    expected = f"{published / 'weights.pth'}: tensors of float16 and float32: expected one precision"
    assert refusal(published, tmp_path / "model") == expected


@pytest.mark.parametrize("name", ["model.json", "vocab.json"])
def test_a_file_that_is_missing_is_named(published: Path, tmp_path: Path, name: str):
    wanted = "expected model.json, vocab.json, and weights.json or weights.pth"
    (published / name).unlink()
    assert refusal(published, tmp_path / "model") == f"{published}: has no {name}; {wanted}"
    assert refusal(tmp_path / "none", tmp_path / "model") == f"{tmp_path / 'none'}: no such folder; {wanted}"


def test_weights_that_are_missing_are_named(published: Path, tmp_path: Path):
    for name in ("weights.json", "weights.pth"):
        (published / name).unlink()
    expected = "expected model.json, vocab.json, and weights.json or weights.pth"
    assert refusal(published, tmp_path / "model") == f"{published}: has no weights.json and no weights.pth; {expected}"


@FORMATS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(GATE), f"tensor {GATE} is missing; the model in model.json has it, of shape [32, 32]"),
        (
            lambda w: w.update(extra=torch.zeros(2)),
            "tensor extra, of shape [2]: the model in model.json has none of that name",
        ),
        (
            lambda w: w.update({GATE: torch.zeros(32, 31)}),
            f"tensor {GATE} has shape [32, 31], the model in model.json has [32, 32]",
        ),
    ],
)
def test_a_tensor_that_is_wrong_is_named(published: Path, state, tmp_path: Path, weights: str, change, message: str):
    keep_only(published, weights)
    changed = dict(state)
    change(changed)
    if weights == "weights.pth":
        torch.save(changed, published / weights)
    else:
        (published / weights).write_text(json.dumps({name: as_json(tensor) for name, tensor in changed.items()}))
    assert refusal(published, tmp_path / "model") == f"{published / weights}: {message}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"size": [2, 2]}, "data: missing, a value is required"),
        ({"size": [2, -2], "data": ""}, "size[1]: -2: must be greater than or equal to 0"),
        ({"size": "2", "data": ""}, "size: '2': must be a list"),
        ({"size": [1], "data": 3}, "data: 3: must be a valid string"),
        ({"size": [1], "data": "AAAA*AAA"}, "data: not base64 (Only base64 data is allowed); expected that of float32"),
        ({"size": [1], "data": "AAAAA"}, "data: not base64 ("),
        ({"size": [1], "data": "ä"}, "data: not base64 ("),
        ({"size": [3, 1], "data": "AAAAAAAAAAA="}, "data: 8 bytes: expected 12, float32 numbers of size [3, 1]"),
        ({"size": [1], "data": "AAAAAAAAAAA="}, "data: 8 bytes: expected 4, float32 numbers of size [1]"),
        ([1.0], "must be a mapping"),
    ],
)
def test_numbers_that_cannot_be_read_are_named(published: Path, tmp_path: Path, value: Any, message: str):
    change_json(published / "weights.json", lambda content: content.update({GATE: value}))
    found = refusal(published, tmp_path / "model")
    assert found.startswith(f"{published / 'weights.json'}: tensor {GATE}: {message}")


def test_numbers_are_read_row_by_row(tmp_path: Path):
    path = tmp_path / "weights.json"
    numbers = torch.tensor([[1.5, -2.0], [3e-9, 4.0], [5.0, -0.0]])
    path.write_text(json.dumps({"a": as_json(numbers), "b": as_json(torch.tensor(7.0)), "c": as_json(torch.zeros(0))}))
    read = read_json_weights(path)
    assert torch.equal(read["a"], numbers)
    assert (read["b"].shape, read["b"].item(), read["c"].shape) == ((), 7.0, (0,))
    path.write_text("[]")
    with pytest.raises(UserError, match="expected a mapping of tensors, found list"):
        read_json_weights(path)
    path.write_text('{"a": ')
    with pytest.raises(UserError, match=r"weights.json, line 1: not valid JSON"):
        read_json_weights(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sizes: sizes.pop("dim"), "dim: missing, a value is required"),
        (lambda sizes: sizes.update(dim=0), "dim: 0: must be greater than 0"),
        (lambda sizes: sizes.update(norm_eps="x"), "norm_eps: 'x': must be a valid number"),
        (lambda sizes: sizes.update(heads=2), "heads: unknown key (value 2); accepted: num_layers, dim, hidden_dim"),
    ],
)
def test_sizes_that_are_wrong_are_named(published: Path, tmp_path: Path, change, message: str):
    change_json(published / "model.json", change)
    assert refusal(published, tmp_path / "model").startswith(f"{published / 'model.json'}: {message}")


def test_a_vocabulary_of_another_size_is_refused(published: Path, tmp_path: Path):
    change_json(published / "model.json", lambda sizes: sizes.update(vocab_size=30))
    expected = f"{published / 'vocab.json'}: 29 characters: expected 30, the vocab_size of {published / 'model.json'}"
    assert refusal(published, tmp_path / "model") == expected


def test_the_epsilon_is_that_of_every_norm(published: Path, tmp_path: Path):
    change_json(published / "model.json", lambda sizes: sizes.update(norm_eps=0.25))
    spec = import_ted(published, tmp_path / "model").spec
    assert (spec.blocks[0].norm.eps, spec.head.norm.eps) == (0.25, 0.25)


def test_options_that_are_wrong_are_named(published: Path, tmp_path: Path):
    out = tmp_path / "model"
    assert refusal(published, out, context_length=0) == "context_length: 0: expected at least 1"
    assert refusal(published, out, end="Z").startswith(
        f"end: 'Z': expected one of the characters in {published / 'vocab.json'}, no space"
    )
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(UserError, match="exists already; expected a new folder"):
        import_ted(published, out)


class Bomb:
    """Pickled code that would run where a file is unpickled without care."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code of the weights was run')",)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda path: torch.save({GATE: Bomb()}, path), "not a file of tensors alone ("),
        (lambda path: path.write_bytes(pickle.dumps(Bomb())), "not a file of tensors alone ("),
        (lambda path: path.write_bytes(b"PK\x03\x04 cut"), "not a file of tensors alone ("),
        (lambda path: torch.save([1], path), "expected a dictionary of tensors, found list"),
        (lambda path: torch.save({"state": {}}, path), "'state' is of dict, expected a tensor"),
    ],
)
def test_other_pickles_are_refused_and_never_run(published: Path, tmp_path: Path, save: Any, message: str):
    keep_only(published, "weights.pth")
    save(published / "weights.pth")
    assert refusal(published, tmp_path / "model").startswith(f"{published / 'weights.pth'}: {message}")


def test_the_presets_published_shapes_add_up_to_its_parameters():
    shapes = TED.shapes(ModelSpec.load("ted-tinystories"))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 4_748_032
