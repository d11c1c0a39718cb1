"""Low-rank parts in the format of PEFT: names, and sums that equal the merged model's published weights."""

import json
from pathlib import Path

import pytest
import torch

import linnet
from linnet.core.arrays import read_tensors
from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.data.tokenizer import Tokenizer
from linnet.interop.families.matching import match_family
from linnet.interop.peft import PEFT_CONFIG, PEFT_WEIGHTS, export_peft
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


def test_what_cannot_be_exported_is_named(adapted: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"model: .*base: expected the folder of a run with training\.lora"):
        export_peft(adapted / "base", tmp_path / "peft")
    about = json.loads((adapted / "run" / "adapter" / "adapter.json").read_text())
    for changed, expected in (
        ({"sha256": "0" * 64}, "other weights than those that the parts were trained on"),
        ({"base": "nowhere"}, "not a model folder; expected where it is now"),
        ({"whole": ["embedding.tokens.weight"]}, r"embedding\.tokens\.weight: trained as well"),
    ):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "adapter.json").write_text(json.dumps({**about, **changed}))
        with pytest.raises(UserError, match=expected):
            export_peft(tmp_path / "run", tmp_path / "peft")
        assert not (tmp_path / "peft").exists()
