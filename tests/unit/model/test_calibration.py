from pathlib import Path

import pytest
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.spec import override
from linnet.layers.mixers.plga.files import save_operators
from linnet.model.calibration import read_calibrations, with_stored_calibration
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.folder import read_description
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder

PLGA = {"kind": "plga", "heads": 2, "metric_hidden": 5, "residual_units": 1}
ATTENTION = {"kind": "attention", "heads": 2}
TOKENS = torch.arange(9)[None]


def description(*blocks: dict, **changes) -> dict:
    return {"vocab_size": 11, "d_model": 8, "context_length": 32, "blocks": list(blocks), **changes}


def decoder(*blocks: dict, **changes) -> Decoder:
    torch.manual_seed(0)
    built = Decoder(ModelSpec.parse(description(*blocks, **changes), "test")).double().eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return built


def own_calibration(model: Decoder) -> list[dict[str, Tensor]]:
    return [{"G": layer["G"][0]} for layer in model.auxiliary_outputs(TOKENS) if "G" in layer]


BLOCKS = {
    "one layer": [{"mixer": PLGA}],
    "among others": [{"mixer": ATTENTION}, {"mixer": PLGA, "repeat": 2}, {"mixer": {"kind": "ted"}, "width": 6}],
    "shared weights": [{"mixer": PLGA, "repeat": 3, "share_weights": True}, {"mixer": PLGA}],
    "shared attention beside": [{"mixer": ATTENTION, "repeat": 2, "share_weights": True}, {"mixer": PLGA}],
}


@torch.no_grad()
@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_a_model_with_its_own_stored_calibration_gives_the_same(blocks, tmp_path: Path):
    model = decoder(*blocks)
    fixed = with_stored_calibration(model, own_calibration(model))
    torch.testing.assert_close(fixed(TOKENS), model(TOKENS), rtol=0, atol=0)
    assert not [name for name in fixed.state_dict() if "metric" in name or "curvature" in name or "power" in name]
    assert model_cost(fixed.spec).parameters == sum(p.numel() for p in fixed.parameters())
    save_decoder(fixed, tmp_path)
    torch.testing.assert_close(load_decoder(tmp_path)(TOKENS), model(TOKENS), rtol=0, atol=0)


@torch.no_grad()
def test_another_calibration_changes_the_outputs_but_not_the_original_model():
    model = decoder({"mixer": PLGA, "repeat": 2})
    before = model(TOKENS)
    for source in ("identity", "random"):
        fixed = with_stored_calibration(model, read_calibrations(model, source, "--calibration"))
        assert (fixed(TOKENS) - before).abs().max() > 1e-3
    assert torch.equal(model(TOKENS), before)


def test_the_identity_gives_plain_attention():
    model = decoder({"mixer": PLGA, "norm": {"kind": "rms"}})
    fixed = with_stored_calibration(model, read_calibrations(model, "identity", "--calibration"))
    rotary = {"pairing": "adjacent"}
    plain = Decoder(
        ModelSpec.parse(
            description({"mixer": {**ATTENTION, "bias": True, "rotary": rotary}, "norm": {"kind": "rms"}}), ""
        )
    ).double()
    plain.load_state_dict({name: t for name, t in fixed.state_dict().items() if not name.endswith("operator.g")})
    torch.testing.assert_close(fixed(TOKENS), plain(TOKENS))


def test_a_calibration_file_gives_the_initial_values(tmp_path: Path):
    operators = own_calibration(decoder({"mixer": PLGA, "repeat": 2}))
    path = tmp_path / "G.safetensors"
    save_operators(operators, path)
    plain = override(description({"mixer": PLGA, "repeat": 2}), [f"calibration={path}"])
    built = Decoder(ModelSpec.parse(plain, "test")).double()
    for index, operator in enumerate(one["G"] for one in operators):
        torch.testing.assert_close(
            built.state_dict()[f"blocks.0.layers.{index}.mixer.operator.g"], operator.float().double()
        )
    path.unlink()
    save_decoder(built, tmp_path / "model")
    assert load_decoder(tmp_path / "model").spec == built.spec, "a model on disk no longer needs the file"


def test_random_calibrations_are_standard_normal_and_follow_the_seed():
    def random(seed: int) -> Tensor:
        torch.manual_seed(seed)
        spec = ModelSpec.parse(override(read_description("tiny-pldr"), ["calibration=random"]), "test")
        return Decoder(spec).state_dict()["blocks.0.layers.1.mixer.operator.g"]

    assert torch.equal(random(1), random(1))
    assert not torch.equal(random(1), random(2))
    assert random(1).mean().abs() < 0.1
    assert (random(1).std() - 1).abs() < 0.1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "zero",
            "initialization.calibration: zero: expected identity, random, or a file of operators (.safetensors, .npz)",
        ),
        ("none.npz", "initialization.calibration: none.npz: no such file; expected operators as .safetensors or .npz"),
    ],
)
def test_an_unknown_source_is_refused(source: str, message: str):
    with pytest.raises(UserError) as refused:
        Decoder(ModelSpec.parse(override(description({"mixer": PLGA}), [f"calibration={source}"]), "test"))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("shape", "layers", "message"),
    [
        ((2, 4, 4), 1, "operators of 1 layers: the model has 2 plga"),
        ((2, 3, 3), 2, "layer0.G: shape [2, 3, 3]: the model"),
    ],
)
def test_calibrations_of_other_shapes_are_refused(tmp_path: Path, shape, layers: int, message: str):
    path = tmp_path / "G.safetensors"
    save_operators([{"G": torch.zeros(shape)}] * layers, path)
    model = decoder({"mixer": PLGA, "repeat": 2})
    with pytest.raises(UserError, match="--calibration: ") as refused:
        read_calibrations(model, str(path), "--calibration")
    assert message in str(refused.value)


def test_a_model_without_plga_has_no_calibration():
    with pytest.raises(UserError, match="--calibration: identity: the model has no plga layer"):
        read_calibrations(decoder({"mixer": ATTENTION}), "identity", "--calibration")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["calibration=5"], "calibration: 5: must be text, a name that the kind of layer knows, or a file"),
        (["blocks.0.mixer.operator=fixed"], "blocks[0].mixer.metric_hidden: 43: needs operator: learned"),
        (
            ["initialization.calibration=random"],
            "initialization.calibration: random: expected a plga block that stores a calibration",
        ),
        (
            ["blocks.0.mixer={kind: ted}", "calibration=identity"],
            "calibration: identity: requires plga layers; the model",
        ),
    ],
)
def test_contradictory_descriptions_are_refused(changes: list[str], message: str):
    with pytest.raises(UserError) as refused:
        ModelSpec.parse(override(read_description("tiny-pldr"), changes), "tiny")
    assert message in str(refused.value)


def test_calibration_on_a_text_restores_the_description():
    spec = ModelSpec.load("pldr-v51-110m-1")
    fixed = ModelSpec.parse(spec.model_dump() | {"calibration": "random"}, "fixed")
    assert fixed.blocks[0].mixer.operator == "fixed"
    assert ModelSpec.parse(fixed.model_dump() | {"calibration": "text"}, "text") == spec
