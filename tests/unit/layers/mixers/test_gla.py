import pytest
import torch
from one_layer import bytes_kept, states_in_bfloat16
from torch import nn

from linnet.core.errors import UserError
from linnet.layers.contract import Place
from linnet.layers.mixers.gla import Gla, GlaSpec
from linnet.model.spec import ModelSpec

WIDTH, LENGTH = 16, 200
SPECS = GlaSpec.examples()


def drawn(spec: GlaSpec) -> Gla:
    """A layer with decays from almost 0 to almost 1."""
    torch.manual_seed(0)
    mixer = spec.build(Place(WIDTH, 32))
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    nn.init.normal_(mixer.decay_out.bias, std=40.0)
    return mixer


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_is_stable_in_low_precision_at_any_decay(spec: GlaSpec, dtype: torch.dtype, error: float):
    """Compared with the definition in float64, with the same rounded weights and inputs."""
    mixer = drawn(spec).to(dtype)
    x_BTD = torch.randn(2, LENGTH, WIDTH).to(dtype)
    found = mixer(x_BTD)
    exact = drawn(spec).double()
    exact.load_state_dict(mixer.state_dict())
    exact.rule = Gla.references["rule"]
    expected = exact(x_BTD.double())
    assert (found - expected).norm() <= error * expected.norm()


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_state_is_a_float32_matrix_for_each_head_in_any_precision(spec: GlaSpec):
    for state in states_in_bfloat16(spec, WIDTH):
        assert (state.matrices.shape, state.matrices.dtype) == ((3, spec.heads, *spec.widths(WIDTH)), torch.float32)


@torch.no_grad()
def test_a_channel_starts_by_fading_as_the_temperature_says():
    """Its logits start near 0: half a sigmoid's root."""
    mixer = GlaSpec(heads=2, gate_logit_normalizer=16).build(Place(WIDTH, 32)).double()
    nn.init.zeros_(mixer.decay_in.weight)
    state = mixer.initial_state(1, 100, torch.device("cpu"), torch.float64)
    mixer(torch.randn(1, 1, WIDTH, dtype=torch.float64), state)
    before = state.matrices.clone()
    mixer(torch.zeros(1, 10, WIDTH, dtype=torch.float64), state)
    torch.testing.assert_close(state.matrices, before * 0.5 ** (10 / 16))


def test_muon_does_not_optimize_low_rank_maps():
    mixer = SPECS[0].build(Place(WIDTH, 32))
    assert {id(found.parameter) for found in mixer.muon_parameters()} == {
        id(mixer.query_key_value_gate.weight),
        id(mixer.out.weight),
    }


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("tokens", [24, 100])
def test_activation_memory_is_predicted_exactly(spec: GlaSpec, tokens: int):
    found = bytes_kept(spec.build(Place(WIDTH, 32)), WIDTH, tokens)
    assert found == 4 * spec.cost(Place(WIDTH, 32)).activation_elements(3, tokens)


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ({"heads": 16}, "heads: 16: must divide half the width, 8, or head_dim must be given"),
        ({"heads": 3, "head_dim": 5}, "heads: 3: must divide the width, 16, or value_dim must be given"),
    ],
)
def test_invalid_head_counts_are_refused(mixer: dict, said: str):
    blocks = [{"mixer": {"kind": "gla", **mixer}, "feed_forward": None}]
    model = {"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": blocks}
    with pytest.raises(UserError, match=said):
        ModelSpec.parse(model, "test")
