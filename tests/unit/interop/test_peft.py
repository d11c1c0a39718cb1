"""Low-rank parts in the format of PEFT: names, sums that equal the merged model's weights, and the way back."""

import json
from pathlib import Path

import pytest
import torch

import linnet
from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.core.files import write_json
from linnet.data.prepare import prepare_texts
from linnet.data.tokenizer import Tokenizer
from linnet.interop.families.matching import match_family
from linnet.interop.peft import PEFT_CONFIG, PEFT_WEIGHTS, export_peft
from linnet.interop.transformers_convert import import_transformers
from linnet.interop.transformers_folder import write_folder
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, write_model

TRAINING = {"steps": 3, "batch_size": 2, "context_length": 16, "precision": "float32", "optimizer": {"lr": 0.02}}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that adapts a tiny Llama with grouped queries, which is in the folder `base` beside it."""
    folder = tmp_path_factory.mktemp("adapted")
    tokenizer = Tokenizer.train("bytes", [])
    spec = ModelSpec.load("tiny-llama").replace(vocab_size=tokenizer.vocab_size, d_model=32)
    torch.manual_seed(0)
    write_model(folder / "base", Decoder(spec), tokenizer, {})
    texts = [f"the bird {n} sang to the tree. " for n in range(20)]
    prepare_texts(texts, texts, folder / "data", tokenizer=str(folder / "base" / "tokenizer.json"))
    training = {**TRAINING, "lora": {"rank": 2, "alpha": 6.0}}
    linnet.train(folder / "run", start_from=folder / "base", data=folder / "data", training=training)
    return folder


def test_each_published_map_has_its_rows_and_all_inputs(adapted: Path, tmp_path: Path):
    config = export_peft(adapted / "run", tmp_path / "peft")
    assert config == json.loads((tmp_path / "peft" / PEFT_CONFIG).read_text())
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (2, 6.0, "LORA")
    named = read_tensors(tmp_path / "peft" / PEFT_WEIGHTS)
    base, merged = (load_decoder(adapted / name) for name in ("base", "run/model"))
    table = match_family(base.spec).tensors
    before, after = (table.to_published(decoder.state_dict(), base.spec) for decoder in (base, merged))
    expected = {name for name in before if name.endswith("_proj.weight")}
    owners = {name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] + ".weight" for name in named}
    assert owners == expected and len(named) == 2 * len(expected)
    for name in expected:
        key = f"base_model.model.{name.removesuffix('.weight')}"
        added = 3.0 * named[f"{key}.lora_B.weight"] @ named[f"{key}.lora_A.weight"]
        torch.testing.assert_close(before[name] + added, after[name], rtol=1e-5, atol=1e-6)
        assert added.abs().max() > 1e-4


@pytest.fixture
def published(adapted: Path, tmp_path: Path) -> Path:
    """The folder of parts for PEFT, whose base is a folder of Transformers beside it."""
    base = load_decoder(adapted / "base")
    family, tokenizer = match_family(base.spec), Tokenizer.load(adapted / "base" / "tokenizer.json")
    (tmp_path / "hf").mkdir()
    write_json(tmp_path / "hf" / "config.json", family.config())
    write_folder(tmp_path / "hf", family, base, tokenizer, None, False)
    export_peft(adapted / "run", tmp_path / "peft")
    change_config(tmp_path / "peft", base_model_name_or_path="hf")
    return tmp_path / "peft"


def change_config(folder: Path, **fields: object) -> None:
    plain = json.loads((folder / PEFT_CONFIG).read_text())
    (folder / PEFT_CONFIG).write_text(json.dumps({**plain, **fields}))


def test_parts_of_peft_are_added_to_the_base_that_they_name(adapted: Path, published: Path, tmp_path: Path):
    decoder, _ = import_transformers(published, tmp_path / "imported")
    assert decoder.spec.name == "peft"
    before, found, merged = (
        load_decoder(path).state_dict() for path in (adapted / "base", tmp_path / "imported", adapted / "run/model")
    )
    torch.testing.assert_close(found, merged, rtol=1e-5, atol=1e-6)
    assert max(float((found[name] - before[name]).abs().max()) for name in found) > 1e-4
    change_config(published, use_rslora=True)  # alpha / sqrt(2) instead of alpha / 2
    rescaled, _ = import_transformers(published, tmp_path / "rescaled")
    (name, *_) = (name for name in found if name.endswith("mixer.out.weight"))
    added = rescaled.state_dict()[name] - before[name]
    torch.testing.assert_close(added, 2**0.5 * (found[name] - before[name]), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_imported_is_named(adapted: Path, published: Path, tmp_path: Path):
    for fields, expected in (
        ({"use_dora": True}, "use_dora: True: cannot be read; expected False"),
        ({"alpha_pattern": {"q_proj": 2}}, r"alpha_pattern: .*: cannot be read; expected \{\}"),
        ({"r": None}, "r: None, lora_alpha: 6.0: expected two numbers"),
        ({"base_model_name_or_path": "org/model"}, "base_model_name_or_path: org/model: no folder of a model"),
    ):
        before = (published / PEFT_CONFIG).read_text()
        change_config(published, **fields)
        with pytest.raises(UserError, match=f"{PEFT_CONFIG}: {expected}"):
            import_transformers(published, tmp_path / "imported")
        (published / PEFT_CONFIG).write_text(before)
    told = "base: a model folder of linnet; expected one of Transformers, as `linnet export .*base --to transformers"
    export_peft(adapted / "run", tmp_path / "as-exported")
    with pytest.raises(UserError, match=told):
        import_transformers(tmp_path / "as-exported", tmp_path / "imported")
    with pytest.raises(UserError, match="check: True"):
        import_transformers(published, tmp_path / "imported", check=True)
    parts = read_tensors(published / PEFT_WEIGHTS)
    name = next(name for name in parts if name.endswith("lora_A.weight"))
    for changed, expected in (
        ({name: parts[name][:, :-1].contiguous()}, f"parts of .*{name.split('.')[-3]}.weight: fit no weight of"),
        ({"base_model.model.lm_head.weight": torch.ones(2)}, "tensor base_model.model.lm_head.weight: expected pairs"),
    ):
        write_tensors(published / PEFT_WEIGHTS, {**parts, **changed})
        with pytest.raises(UserError, match=expected):
            import_transformers(published, tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_what_cannot_be_exported_is_named(adapted: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"model: .*base: expected the folder of a run with training\.lora"):
        export_peft(adapted / "base", tmp_path / "peft")
    about = json.loads((adapted / "run" / "adapter" / "adapter.json").read_text())
    for changed, expected in (
        ({"sha256": "0" * 64}, r"other weights \(SHA-256 .* than those that .* was trained on; expected 000000000000"),
        ({"base": "nowhere"}, "base: nowhere: not a model folder; expected the model that the parts belong to"),
        ({"whole": ["embedding.tokens.weight"]}, r"embedding\.tokens\.weight: trained as well"),
    ):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "adapter.json").write_text(json.dumps({**about, **changed}))
        with pytest.raises(UserError, match=expected):
            export_peft(tmp_path / "run", tmp_path / "peft")
        assert not (tmp_path / "peft").exists()
