"""A model without the net behind its operator says what it said with it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import load
from linnet.interop.exporters import export
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

LEARNED = {"kind": "plga", "heads": 2, "metric_hidden": 6, "residual_units": 1}
FIXED = {"kind": "plga", "heads": 4, "operator": "fixed"}


def folder(path: Path, *mixers: dict, positions: str = "none") -> Path:
    tokenizer = Tokenizer.train("bytes", [])
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 64, "head": {"tied": False}}
    plain["embedding"] = {"positions": positions}
    torch.manual_seed(0)
    decoder = Decoder(ModelSpec.parse({**plain, "blocks": [{"mixer": mixer} for mixer in mixers]}, "test"))
    decoder.double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    write_model(path, decoder, tokenizer, {})
    return path


@torch.no_grad()
@pytest.mark.parametrize("mixers", [[LEARNED], [FIXED, LEARNED, {"kind": "ted"}, LEARNED]], ids=["one", "among others"])
@pytest.mark.parametrize("prompt", ["", "Once upon a time"])
def test_the_frozen_models_outputs_are_those_of_the_g_cache(tmp_path: Path, mixers, prompt: str):
    source = folder(tmp_path / "model", *mixers)
    export(source, tmp_path / "frozen", freeze=True, prompt=prompt)
    model, frozen = load(source), load(tmp_path / "frozen")
    prompt_ids = torch.tensor([model.prompt_tokens(prompt)])
    state = model.decoder.initial_state(1, 80)
    first = model.decoder(prompt_ids, state)
    more = torch.randint(256, (1, 40))
    expected = torch.cat([first, model.decoder(more, state)], dim=1)
    torch.testing.assert_close(frozen.decoder(torch.cat([prompt_ids, more], dim=1)), expected)
    assert frozen.decoder.causal
    assert not [name for name in load_file(tmp_path / "frozen" / "model.safetensors") if ".metric" in name]


@pytest.mark.parametrize("mixer", [FIXED, {"kind": "attention", "heads": 2}], ids=["fixed", "attention"])
def test_where_nothing_is_inferred_nothing_is_frozen(tmp_path: Path, mixer):
    with pytest.raises(UserError, match="freeze: the model has no plga layer that calibrates on a text"):
        export(folder(tmp_path / "model", mixer), tmp_path / "frozen", freeze=True)
    assert not (tmp_path / "frozen").exists()


def test_a_prompt_beyond_the_learned_positions_is_refused(tmp_path: Path):
    source = folder(tmp_path / "model", LEARNED, positions="learned")
    with pytest.raises(UserError, match="prompt: 101 tokens: the model's learned positions end at 64"):
        export(source, tmp_path / "frozen", freeze=True, prompt="x" * 100)


def test_an_existing_folder_is_not_changed(tmp_path: Path):
    source = folder(tmp_path / "model", LEARNED)
    with pytest.raises(UserError, match=f"out: {source}: exists already"):
        export(source, source, freeze=True)
