"""Published PLDR-LLMs with fixed operators, as .pth files and as Transformers keeps them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import save_file
from torch import Tensor

from linnet.cli.main import main
from linnet.core.errors import UserError
from linnet.inference.language_model import load
from linnet.interop.pldr import OPERATORS, OPERATORS_SET, import_pldr
from linnet.interop.tensor_names import PLDR
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.plga.files import save_operators
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder
from linnet.ops.rotary import rotary_range, rotate_reference

EPS = 1e-6


@pytest.fixture
def kept(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The golden model's tensors without those of the nets behind its operators."""
    net = (".reslayerAs.", ".plgatt_layer.", ".mha1.layernorm1.")
    return {name: tensor for name, tensor in weights.items() if not any(part in name for part in net)}


@pytest.fixture
def operators(config: dict[str, Any]) -> list[Tensor]:
    width = config["d_model"] // config["num_heads"]
    shape = (config["num_layers"], config["num_heads"], width, width)
    return list(torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


@pytest.fixture
def stored_spec(spec: Path) -> Path:
    plain = yaml.safe_load(spec.read_text())
    plain["blocks"][0]["mixer"] = PlgaSpec(**plain["blocks"][0]["mixer"]).with_calibration("stored").model_dump()
    plain["initialization"]["calibration"] = "operator.safetensors"
    spec.write_text(yaml.safe_dump(plain))
    return spec


def attention(x_BTD: Tensor, linear, g_HKK: Tensor, pairing: str) -> Tensor:
    """`softmax(q G k^T / sqrt(K)) v`, head by head, as the paper has it."""
    heads, width = g_HKK.shape[:2]
    q, k, v = (linear(f"w{part}", x_BTD).unflatten(-1, (heads, width)) for part in "qkv")
    table = rotary_range(0, x_BTD.shape[1], width, 10_000.0, x_BTD.device)
    q, k = (rotate_reference(part, table, pairing) for part in (q, k))
    scores = torch.einsum("bihk,hkl,bjhl->bhij", q, g_HKK, k) / width**0.5
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    read = torch.einsum("bhij,bjhk->bihk", scores.masked_fill(later, -torch.inf).softmax(-1), v)
    return linear("dense", read.flatten(2))


def published_logits(named: dict[str, Tensor], tokens: Tensor, operators: list[Tensor], pairing: str) -> Tensor:
    """The paper's decoder with given operators, step by step, under the published names."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, named[f"{name}.weight"], named[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], named[f"{name}.weight"], named[f"{name}.bias"], EPS)

    x = F.embedding(tokens, named["decoder.embedding.weight"])
    x = norm("decoder.layernorm1", x * x.shape[-1] ** 0.5)
    for i, g_HKK in enumerate(operators):
        at = f"decoder.dec_layers.{i}"
        x = norm(f"{at}.layernorm1", x + attention(x, lambda n, x, at=at: linear(f"{at}.mha1.{n}", x), g_HKK, pairing))
        gated = F.silu(linear(f"{at}.ffn.gluw1", x)) * linear(f"{at}.ffn.gluw2", x)
        x = norm(f"{at}.layernorm2", x + linear(f"{at}.ffn.gluw3", gated))
    return linear("final_layer", x)


def transformers_folder(
    folder: Path, config: dict[str, Any], named: dict[str, Tensor], pieces: Path, **changes: Any
) -> Path:
    folder.mkdir()
    plain = {
        "architectures": ["PldrllmForCausalLM"], "model_type": "pldrllm", "vocab_size": config["vocab_size"],
        "hidden_size": config["d_model"], "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_heads"], "head_dim": config["d_model"] // config["num_heads"],
        "intermediate_size": config["ffn_hidden"], "max_position_embeddings": config["max_seq_len"],
        "A_dff": config["metric_hidden"], "num_reslayerA": config["residual_units"],
        "num_denseA": config["glu_per_unit"], "custom_G_type": None, "reference_rope": True, **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(plain))
    save_file({name: tensor.contiguous() for name, tensor in named.items()}, folder / "model.safetensors")
    (folder / "tokenizer.model").write_bytes(pieces.read_bytes())
    return folder


def with_operators(kept: dict[str, Tensor], operators: list[Tensor]) -> dict[str, Tensor]:
    g = torch.stack(operators)[:, None]
    values = torch.stack([torch.zeros_like(g), torch.zeros_like(g), g], dim=1)
    return {**kept, OPERATORS: values, OPERATORS_SET: torch.ones(len(operators), dtype=torch.bool)}


@torch.no_grad()
def test_a_pth_with_operators_from_a_file(
    golden, kept, operators, stored_spec: Path, pieces: Path, tmp_path: Path, capsys
):
    torch.save({"model_state_dict": kept}, tmp_path / "v51g.pth")
    save_operators([{"G": operator} for operator in operators], tmp_path / "g.safetensors")
    named = ["--spec", str(stored_spec), "--operator", str(tmp_path / "g.safetensors"), "--tokenizer", str(pieces)]
    assert main(["import", "pldr", str(tmp_path / "v51g.pth"), *named, "--out", str(tmp_path / "model")]) == 0
    tokens = golden["tokens"][:, :-1]
    expected = published_logits(kept, tokens, operators, "adjacent")
    decoder = load_decoder(tmp_path / "model")
    torch.testing.assert_close(decoder(tokens), expected, rtol=1e-9, atol=1e-9)
    assert decoder.spec.initialization.calibration == "identity"
    assert json.loads((tmp_path / "model" / "run.json").read_text())["operator"] == str(tmp_path / "g.safetensors")
    assert isinstance(load(tmp_path / "model").generate("a bird", max_tokens=3, seed=0), str)


@torch.no_grad()
def test_a_pth_with_the_identity(golden, kept, operators, stored_spec: Path, pieces: Path, tmp_path: Path):
    torch.save({"model_state_dict": kept}, tmp_path / "v51g.pth")
    import_pldr(tmp_path / "v51g.pth", stored_spec, pieces, tmp_path / "model", operator="identity")
    tokens = golden["tokens"][:, :-1]
    identity = [torch.eye(len(g[0]), dtype=g.dtype).expand_as(g) for g in operators]
    expected = published_logits(kept, tokens, identity, "adjacent")
    torch.testing.assert_close(load_decoder(tmp_path / "model")(tokens), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize("kind", ["external", "random", "identity"])
@torch.no_grad()
def test_a_transformers_folder_holds_its_operators(
    golden, config, kept, operators, pieces: Path, tmp_path: Path, kind: str, pairing: str
):
    changes = {"custom_G_type": kind, "reference_rope": pairing == "adjacent"}
    folder = transformers_folder(tmp_path / "PLDR-LLM-v51G", config, with_operators(kept, operators), pieces, **changes)
    assert main(["import", "pldr", str(folder), "--out", str(tmp_path / "model")]) == 0
    decoder, tokens = load_decoder(tmp_path / "model"), golden["tokens"][:, :-1]
    expected = published_logits(kept, tokens, operators, pairing)
    torch.testing.assert_close(decoder(tokens), expected, rtol=1e-9, atol=1e-9)
    assert decoder.spec.name == "PLDR-LLM-v51G"


@torch.no_grad()
def test_a_transformers_folder_with_learned_operators(golden, config, weights, pieces: Path, tmp_path: Path):
    folder = transformers_folder(tmp_path / "PLDR-LLM-v51", config, weights, pieces)
    import_pldr(folder, None, None, tmp_path / "model")
    logits = load_decoder(tmp_path / "model")(golden["tokens"][:, :-1])
    torch.testing.assert_close(logits, golden["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type: 'llama': must be 'pldrllm'"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu': must be 'silu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps: 1e-05: must be 1e-06"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: True: must be False"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.rope_type: 'yarn': must be 'default'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type: 'yarn': must be 'default'"),
        ({"custom_G_type": "learned"}, "custom_G_type: 'learned': must be 'identity', 'random' or 'external'"),
        ({"head_dim": 5}, "hidden_size: 24: expected num_attention_heads x head_dim, 15"),
    ],
)
def test_a_config_of_another_architecture_is_refused(
    config, weights, pieces: Path, tmp_path: Path, changes: dict[str, Any], message: str
):
    folder = transformers_folder(tmp_path / "published", config, weights, pieces, **changes)
    with pytest.raises(UserError) as refused:
        import_pldr(folder, None, None, tmp_path / "model")
    assert str(refused.value) == f"{folder / 'config.json'}: {message}"


def test_operators_that_are_missing_or_misshapen_are_named(config, kept, operators, pieces: Path, tmp_path: Path):
    folder = transformers_folder(tmp_path / "one", config, kept, pieces, custom_G_type="external")
    with pytest.raises(
        UserError, match=rf"model.safetensors: tensor {OPERATORS} is missing; config.json requires it, of sh"
    ):
        import_pldr(folder, None, None, tmp_path / "model")
    named = with_operators(kept, operators)
    named[OPERATORS] = named[OPERATORS][:, :2]
    folder = transformers_folder(tmp_path / "two", config, named, pieces, custom_G_type="external")
    with pytest.raises(UserError, match=rf"tensor {OPERATORS}: shape .* of float64: expected \[.* of floats"):
        import_pldr(folder, None, None, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("said", [{"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0}}])
def test_the_base_of_positions_is_read_in_either_form(config, weights, pieces: Path, tmp_path: Path, said: dict):
    folder = transformers_folder(
        tmp_path / "one", config, weights, pieces, rope_scaling={"rope_type": "default"}, **said
    )
    assert import_pldr(folder, None, None, tmp_path / "model").spec.blocks[0].mixer.rotary.base == 500.0


def test_operators_that_are_no_numbers_are_refused(config, kept, operators, pieces: Path, tmp_path: Path):
    operators[1][0, 0, 0] = torch.nan
    folder = transformers_folder(
        tmp_path / "one", config, with_operators(kept, operators), pieces, custom_G_type="external"
    )
    with pytest.raises(UserError, match=rf"tensor {OPERATORS}: contains NaN or infinity; expected finite numbers"):
        import_pldr(folder, None, None, tmp_path / "model")


def test_what_does_not_go_together_is_refused(
    config, weights, kept, operators, spec: Path, pieces: Path, tmp_path: Path
):
    learned, fixed = tmp_path / "v51.pth", tmp_path / "v51g.pth"
    torch.save({"model_state_dict": weights}, learned)
    torch.save({"model_state_dict": kept}, fixed)
    folder = transformers_folder(tmp_path / "folder", config, weights, pieces)

    def refused(source: Path, described: Path | str | None, operator: str | None) -> str:
        with pytest.raises(UserError) as error:
            import_pldr(source, described, pieces, tmp_path / "model", operator=operator)
        assert not (tmp_path / "model").exists()
        return str(error.value)

    assert refused(learned, None, None).startswith(f"spec: missing; expected what {learned} is a model of")
    assert refused(learned, spec, "identity").startswith("operator: identity: applies to fixed operators")
    assert refused(folder, spec, None).startswith(f"spec: {spec}: {folder} has a config.json, so its config.json det")
    assert refused(folder, None, "identity").startswith(f"operator: identity: {folder} has a config.json, so its mod")
    for preset in ("pldr-v51g-106m-1", "pldr-v51g-106m-3"):
        assert refused(fixed, preset, None).startswith(f"operator: missing; expected those that {preset} was trained")
        assert refused(fixed, preset, "random").startswith("operator: random: draws others; expected those that")
    assert "expected identity, random, or a file" in refused(fixed, "pldr-v51g-106m-1", "learned")


@pytest.mark.parametrize("name", ["pldr-v51g-106m-1", "pldr-v51g-106m-2"])
def test_the_published_shapes_of_fixed_ones_add_up(name: str):
    model = ModelSpec.load(name)
    shapes = PLDR.shapes(model)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == model_cost(model).parameters
