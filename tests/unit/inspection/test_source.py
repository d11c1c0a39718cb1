"""Operators of models and files."""

import numpy as np
import pytest
import torch
from small_models import small_spec, speaker

from linnet.core.errors import UserError
from linnet.inspection.source import load_operators
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.plga.files import save_operators
from linnet.layers.mixers.plga.operator import DeductiveOutputs
from linnet.model.calibration import with_stored_calibration
from linnet.model.decoder import Decoder
from linnet.model.store import save_decoder
from linnet.model.watched import shown

PLGA = PlgaSpec(heads=2, metric_hidden=12, residual_units=2)


def deductive_outputs(decoder: Decoder, tokens_BT: torch.Tensor) -> list[DeductiveOutputs]:
    return [DeductiveOutputs(*layer.values()) for layer in shown(decoder, tokens_BT) if len(layer) > 1]


def _saved(model, folder):
    save_decoder(model.decoder, folder)
    model.tokenizer.save(folder / "tokenizer.json")
    return folder


@pytest.fixture
def folder(tmp_path):
    return _saved(speaker(PLGA), tmp_path / "model")


@torch.no_grad()
@pytest.mark.parametrize("prompt", [None, "", "a bird"])
def test_a_model_deduces_its_operators_from_the_end_token_and_the_prompt(folder, prompt):
    model = speaker(PLGA)
    tokens = [model.tokenizer.end_id, *model.tokenizer.encode(prompt or "")]
    found = load_operators(folder, prompt)
    assert (found.prompt, found.prompt_tokens, found.in_file) == (prompt or "", len(tokens), False)
    assert found.shape == "2 layers, 2 heads of 8 x 8"
    for layer, outputs in zip(found.layers, deductive_outputs(model.decoder, torch.tensor([tokens])), strict=True):
        for name, expected in zip(("A", "A_LM", "A_P", "G"), outputs, strict=True):
            torch.testing.assert_close(layer[name], expected[0])


def test_a_file_gives_back_what_a_model_saved(folder, tmp_path):
    found = load_operators(folder)
    save_operators(found.layers, tmp_path / "operators.safetensors")
    again = load_operators(tmp_path / "operators.safetensors")
    assert again.in_file and again.prompt is None
    for layer, read in zip(found.layers, again.layers, strict=True):
        assert all(torch.equal(layer[name], read[name]) for name in ("A", "A_LM", "A_P", "G"))


def test_a_model_with_fixed_operators_has_them_alone(tmp_path):
    model = speaker(PLGA)
    fixed = [torch.randn(2, 8, 8, dtype=torch.float64) for _ in range(2)]
    model.decoder = with_stored_calibration(model.decoder, fixed)
    found = load_operators(_saved(model, tmp_path / "fixed"))
    assert [layer.keys() for layer in found.layers] == [{"G"}, {"G"}]
    assert all(torch.equal(layer["G"], g) for layer, g in zip(found.layers, fixed, strict=True))
    assert found.origin == "fixed in the model"
    with pytest.raises(UserError, match=r"prompt: 'a': the operators of .* are fixed"):
        load_operators(tmp_path / "fixed", "a")


def test_what_has_no_operators_is_refused(tmp_path):
    attention = _saved(speaker(AttentionSpec(heads=2)), tmp_path / "attention")
    with pytest.raises(UserError, match="its token mixer is attention; expected a model with plga"):
        load_operators(attention)
    with pytest.raises(UserError, match="no such folder"):
        load_operators(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"missing\.npz: no such file"):
        load_operators(tmp_path / "missing.npz")


def test_a_prompt_goes_with_a_model(tmp_path):
    np.savez(tmp_path / "g.npz", **{"0": np.zeros((1, 2, 3, 3))})
    assert load_operators(tmp_path / "g.npz").shape == "1 layer, 2 heads of 3 x 3"
    with pytest.raises(UserError, match=r"prompt: 'a': .*g\.npz is a file"):
        load_operators(tmp_path / "g.npz", "a")


def test_a_prompt_longer_than_learned_positions_is_refused(tmp_path):
    model = speaker(PLGA)
    torch.manual_seed(0)
    model.decoder = Decoder(small_spec(PLGA, vocab_size=257, positions="learned"))
    folder = _saved(model, tmp_path / "learned")
    assert load_operators(folder, "a" * 63).prompt_tokens == 64
    with pytest.raises(UserError, match="prompt: 65 tokens: the model's learned positions end at 64"):
        load_operators(folder, "a" * 64)
