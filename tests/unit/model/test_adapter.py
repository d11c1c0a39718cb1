"""Model folders with low-rank parts: what is added to which weights, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.core.files import sha256_of, write_json
from linnet.data.tokenizer import Tokenizer
from linnet.model.adapter import AdapterInfo, base_folder
from linnet.model.decoder import Decoder
from linnet.model.folder import ADAPTER, ADAPTER_WEIGHTS, CONFIG, WEIGHTS, weights_file
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, write_model, write_other_files
from linnet.nn.low_rank import round_to_few_bits
from linnet.ops.low_rank import dense

MAP = "blocks.0.layers.0.feed_forward.down"
DESCRIPTION = {
    "vocab_size": 257,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 12}}],
}


def write_adapter(folder: Path, base: Path, named_as: Path, scale: float, **about) -> None:
    """An adapter of rank 2 for one map, with alpha `2 scale`."""
    shape = read_tensors(weights_file(base)).get(f"{MAP}.weight", torch.empty(8, 12)).shape
    generator = torch.Generator().manual_seed(1)
    up_OR, down_RI = (torch.randn(size, generator=generator) for size in ((shape[0], 2), (2, shape[1])))
    folder.mkdir(parents=True)
    shutil.copyfile(base / CONFIG, folder / CONFIG)
    write_tensors(folder / ADAPTER_WEIGHTS, {f"{MAP}.up": up_OR, f"{MAP}.down": down_RI})
    info = {"base": str(named_as), "sha256": sha256_of(weights_file(base)), "rank": 2, "alpha": 2 * scale}
    write_json(folder / ADAPTER, {**info, "parts": "all", **about})
    tokenizer = Tokenizer.load(base / "tokenizer.json")
    write_other_files(folder, (CONFIG, ADAPTER, ADAPTER_WEIGHTS), tokenizer, {}, {}, {})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse(DESCRIPTION, "test"))
    write_model(tmp_path / "here" / "base", decoder, Tokenizer.train("bytes", []), {})
    return tmp_path / "here" / "base"


@pytest.fixture
def adapter(base: Path) -> Path:
    """Beside the base, which it names as it was seen from the folder above both."""
    write_adapter(base.parent / "run" / "adapter", base, Path("here/base"), scale=1.5)
    return base.parent / "run" / "adapter"


def test_the_parts_are_added_to_the_weights_of_the_base(base: Path, adapter: Path):
    before, after = load_decoder(base).state_dict(), load_decoder(adapter).state_dict()
    parts = read_tensors(adapter / ADAPTER_WEIGHTS)
    added = 1.5 * parts[f"{MAP}.up"] @ parts[f"{MAP}.down"]
    torch.testing.assert_close(after.pop(f"{MAP}.weight"), before.pop(f"{MAP}.weight") + added)
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in after)


def test_an_adapter_can_be_the_base_of_another(base: Path, adapter: Path):
    write_adapter(base.parent / "second", adapter, adapter, scale=1.5)
    before, once, twice = (load_decoder(path).state_dict() for path in (base, adapter, base.parent / "second"))
    name = f"{MAP}.weight"
    torch.testing.assert_close(twice[name] - before[name], 2 * (once[name] - before[name]))


def test_the_precision_is_that_of_the_parts(base: Path, adapter: Path):
    whole = {"embedding.tokens.weight": torch.ones(257, 8)}
    about = json.loads((adapter / ADAPTER).read_text())
    write_json(adapter / ADAPTER, {**about, "whole": list(whole)})
    write_tensors(adapter / ADAPTER_WEIGHTS, {**read_tensors(adapter / ADAPTER_WEIGHTS), **whole})
    (adapter / "manifest.json").unlink()
    halved = {name: tensor.bfloat16() for name, tensor in read_tensors(base / WEIGHTS).items()}
    write_tensors(base / WEIGHTS, halved)
    (base / "manifest.json").unlink()
    write_json(adapter / ADAPTER, {**about, "whole": list(whole), "sha256": sha256_of(base / WEIGHTS)})
    decoder = load_decoder(adapter)
    assert decoder.dtype == torch.float32
    assert torch.equal(decoder.embedding.tokens.weight, whole["embedding.tokens.weight"])


def test_weights_are_rounded_before_the_parts_are_added(base: Path, adapter: Path):
    write_adapter(base.parent / "rounded", base, base, scale=1.5, precision="int4", rounded=[MAP])
    plain, rounded = (load_decoder(path).state_dict() for path in (adapter, base.parent / "rounded"))
    weight_OI = load_decoder(base).state_dict()[f"{MAP}.weight"]
    lost = plain[f"{MAP}.weight"] - rounded[f"{MAP}.weight"]
    torch.testing.assert_close(lost, weight_OI - dense(round_to_few_bits(weight_OI, "int4")))
    assert float(lost.abs().max()) > 1e-4
    write_adapter(base.parent / "wrong", base, base, scale=1.5, precision="int4", rounded=["blocks.9"])
    assert refusal(base.parent / "wrong").endswith(f"rounded: blocks.9: {base} has no such map of int4")


def test_base_and_adapter_can_move_together(base: Path, adapter: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    shutil.move(base.parent, tmp_path / "elsewhere" / "here")
    moved = tmp_path / "elsewhere" / "here" / "run" / "adapter"
    assert base_folder(moved, AdapterInfo.read(moved)) == tmp_path / "elsewhere" / "here" / "base"


def test_a_base_that_is_missing_or_another_one_is_named(base: Path, adapter: Path):
    decoder = load_decoder(base)
    with torch.no_grad():
        decoder.embedding.tokens.weight[0, 0] += 1
    write_model(base, decoder, Tokenizer.load(base / "tokenizer.json"), {})
    other, known = sha256_of(base / WEIGHTS)[:12], json.loads((adapter / ADAPTER).read_text())["sha256"][:12]
    problem = f"other weights (SHA-256 {other}) than those that {adapter} was trained on; expected {known}"
    assert str(refusal(adapter)) == f"{base / WEIGHTS}: {problem}, as adapter.json there says"
    shutil.rmtree(base)
    missing = "base: here/base: not a model folder; expected the model that the parts belong to"
    assert refusal(adapter) == f"{adapter / ADAPTER}: {missing}"


def test_what_was_changed_or_fits_no_weight_is_named(base: Path, adapter: Path):
    parts = read_tensors(adapter / ADAPTER_WEIGHTS)
    wrong = {f"{MAP}.up": parts[f"{MAP}.up"][:, :1].contiguous(), f"{MAP}.down": parts[f"{MAP}.down"]}
    write_tensors(adapter / ADAPTER_WEIGHTS, wrong)
    assert refusal(adapter).startswith(f"{adapter / ADAPTER_WEIGHTS}: ")
    assert "manifest.json" in refusal(adapter)
    (adapter / "manifest.json").unlink()
    assert refusal(adapter).endswith(f"tensor {MAP}.up, of shape [8, 1]: fits no weight of here/base")
    (adapter / ADAPTER_WEIGHTS).unlink()
    assert refusal(adapter) == f"{adapter}: is not a model folder, it has no {ADAPTER_WEIGHTS}"


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        load_decoder(folder)
    return str(refused.value)
