from pathlib import Path

import pytest
import torch
from torch import nn

from linnet.model.decoder import Decoder, Embedding, decoder_with_weights, meta_decoder
from linnet.model.initialize import initialize
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder
from linnet.nn.linear import Linear

LAYERS = 2


def decoder(**initialization: object) -> Decoder:
    torch.manual_seed(0)
    description = {
        "vocab_size": 500,
        "d_model": 64,
        "context_length": 8,
        "embedding": {"positions": "learned"},
        "blocks": [
            {
                "repeat": LAYERS,
                "mixer": {"kind": "attention", "heads": 4, "kv_heads": 1, "bias": True},
                "feed_forward": {"kind": "glu", "hidden": 100, "bias": True},
            }
        ],
        "head": {"tied": False},
        "initialization": initialization,
    }
    return Decoder(ModelSpec.parse(description, "test"))


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_normal_weights_have_the_specified_deviation():
    model = decoder(std=0.05, embedding_std=0.3)
    for module in linears(model).values():
        assert module.weight.std().item() == pytest.approx(0.05, rel=0.1)
        assert module.weight.mean().abs().item() < 0.005
    assert model.embedding.tokens.weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert model.embedding.positions is not None
    assert model.embedding.positions.weight.std().item() == pytest.approx(0.3, rel=0.1)


def test_scaled_residuals_change_only_the_last_map_of_each_branch():
    for name, module in linears(decoder(std=0.05, scale_residual=True)).items():
        last = name.endswith(("mixer.out", "feed_forward.down"))
        expected = 0.05 / (2 * LAYERS) ** 0.5 if last else 0.05
        assert module.weight.std().item() == pytest.approx(expected, rel=0.1), name


def test_scaled_residuals_scale_a_bias_that_does_not_start_at_zero():
    model = decoder(scale_residual=True)
    own = nn.Linear(64, 64)
    bias = own.bias.clone()
    model.layers[0].mixer.out = own
    initialize(model, model.spec)
    torch.testing.assert_close(own.bias, bias / (2 * LAYERS) ** 0.5)


def test_zero_outputs_change_only_the_last_map_of_each_branch():
    """All other weights are unchanged, and a second field for the same maps has no effect."""
    plain, zero = decoder(), decoder(zero_outputs=True)
    both = decoder(zero_outputs=True, scale_residual=True).state_dict()
    for (name, before), after in zip(plain.state_dict().items(), zero.state_dict().values(), strict=True):
        last = "mixer.out" in name or "feed_forward.down" in name
        assert not after.any() if last else torch.equal(after, before), name
        assert torch.equal(both[name], after), name


def test_zero_outputs_include_biases():
    model = decoder(zero_outputs=True)
    own = [nn.Linear(64, 64), Linear(64, 64)]
    for layer, module in zip(model.layers, own, strict=True):
        nn.init.constant_(module.bias, 3.0)
        layer.mixer.out = module
    initialize(model, model.spec)
    assert not any(parameter.any() for module in own for parameter in module.parameters())


def test_each_map_of_a_fused_layer_is_initialized_by_its_own_shape():
    (layer, *_) = decoder(linear="xavier_uniform").layers
    query, key, value = layer.mixer.query_key_value.part_weights()
    assert query.shape == (64, 64)
    assert key.shape == value.shape == (16, 64)
    for part in (query, key, value):
        bound = (6 / sum(part.shape)) ** 0.5
        assert part.abs().max().item() <= bound
        assert part.abs().max().item() > 0.95 * bound


def test_biases_start_at_zero_and_norms_at_one():
    model = decoder()
    assert all(not module.bias.any() for module in linears(model).values() if module.bias is not None)
    assert all(bool((layer.mixer_norm.weight == 1).all()) for layer in model.layers)


def test_the_seed_determines_the_weights():
    first, second = decoder().state_dict(), decoder().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_projections_between_widths_preserve_the_scale_of_the_stream():
    torch.manual_seed(0)
    block = {"mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 100}}
    description = {
        "vocab_size": 500,
        "d_model": 64,
        "context_length": 8,
        "embedding": {"width": 48},
        "blocks": [{**block, "width": 96}, {**block, "width": 80}],
        "head": {"tied": True},
    }
    projections = {
        name: m for name, m in linears(Decoder(ModelSpec.parse(description, "test"))).items() if "project" in name
    }
    assert set(projections) == {"embedding.project", "blocks.0.project", "blocks.1.project", "project", "head_project"}
    for module in projections.values():
        outputs, inputs = module.weight.shape
        assert module.weight.var().item() == pytest.approx(2 / (inputs + outputs), rel=0.05)


DESCRIPTION = {
    "vocab_size": 9,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": kind, "heads": 2}} for kind in ("attention", "plga", "ted")],
}
TOKENS_BT = torch.tensor([[1, 2, 3]])


@pytest.fixture
def spec() -> ModelSpec:
    return ModelSpec.parse(DESCRIPTION, "test")


@pytest.fixture
def with_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding with a table that is not stored."""
    built, forward = Embedding.__init__, Embedding.forward

    def build(self, *arguments):
        built(self, *arguments)
        self.register_buffer("table", torch.linspace(0, 1, 8), persistent=False)

    monkeypatch.setattr(Embedding, "__init__", build)
    monkeypatch.setattr(Embedding, "forward", lambda self, *given: forward(self, *given) + self.table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("with_table")
def test_a_loaded_model_computes_tensors_that_are_not_stored(spec: ModelSpec, tmp_path: Path, dtype: torch.dtype):
    decoder = Decoder(spec).to(dtype)
    save_decoder(decoder, tmp_path)
    loaded = load_decoder(tmp_path)
    assert loaded.embedding.table.dtype == dtype
    assert torch.equal(loaded.embedding.table, decoder.embedding.table)
    assert torch.equal(loaded(TOKENS_BT), decoder(TOKENS_BT))


def test_a_decoder_keeps_given_tensors_and_the_random_state(spec: ModelSpec):
    tensors = {name: tensor.detach() for name, tensor in Decoder(spec).state_dict().items()}
    before = torch.get_rng_state()
    found = decoder_with_weights(spec, tensors).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert found.keys() == tensors.keys()
    assert all(found[name].data_ptr() == tensor.data_ptr() for name, tensor in tensors.items())


def test_shapes_take_no_memory(spec: ModelSpec):
    assert all(tensor.is_meta for tensor in meta_decoder(spec).state_dict().values())
