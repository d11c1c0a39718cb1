import math

import pytest
import torch
import torch.nn.functional as F
from one_layer import bytes_kept, states_in_bfloat16
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.rwkv7 import FIRST_VALUES, Rwkv7, Rwkv7Spec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

WIDTH, LENGTH = 16, 67
SPECS = [Rwkv7Spec(heads=4), Rwkv7Spec(heads=2, head_dim=5, decay_rank=3, rate_rank=4, value_rank=2, gate_rank=6)]


def built(spec: Rwkv7Spec) -> Rwkv7:
    """With random weights, in float64."""
    torch.manual_seed(0)
    mixer = spec.build(Place(WIDTH, 32)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def published(mixer: Rwkv7, p: dict[str, Tensor], x_BTD: Tensor, first_BTE: Tensor | None) -> tuple[Tensor, Tensor]:
    """The layer as its authors and flash-linear-attention publish it, step by step; and the values of the first layer.

    first_BTE: None in the first layer itself, which does not mix its values.
    """
    batch, length, _ = x_BTD.shape
    heads, width = mixer.heads, mixer.head_width

    def low_rank(name: str, x: Tensor, function=lambda x: x) -> Tensor:  # type: ignore[no-untyped-def]
        return function(x @ p[f"{name}.down"].t()) @ p[f"{name}.up"].t() + p.get(f"{name}.bias", 0.0)

    delta = torch.cat([torch.zeros_like(x_BTD[:, :1]), x_BTD[:, :-1]], dim=1) - x_BTD
    xr, xw, xk, xv, xa, xg = (x_BTD + delta * share_D for share_D in p["shares"])
    r, k, v = xr @ p["receptance.weight"].t(), xk @ p["key.weight"].t(), xv @ p["value.weight"].t()
    w = torch.exp(-torch.exp(-F.softplus(-low_rank("decay", xw, torch.tanh)) - 0.5))
    if first_BTE is None:
        first_BTE = v
    else:
        v = v + (first_BTE - v) * torch.sigmoid(low_rank("first_share", xv))
    a = torch.sigmoid(low_rank("rate", xa))
    g = low_rank("gate", xg, torch.sigmoid)
    kk = F.normalize((k * p["erased"]).view(batch, length, heads, width), dim=-1, p=2.0).flatten(2)
    k = k * (1 + (a - 1) * p["mixed"])
    r_, w_, k_, v_, a_, kk_ = (x.view(batch, length, heads, width) for x in (r, w, k, v, a, kk))
    state, outs = torch.zeros(batch, heads, width, width, dtype=x_BTD.dtype), []
    for t in range(length):
        taken = state @ -kk_[:, t, :, :, None] @ (kk_ * a_)[:, t, :, None]
        state = state * w_[:, t, :, None] + taken + v_[:, t, :, :, None] @ k_[:, t, :, None]
        outs.append((state @ r_[:, t, :, :, None])[..., 0].flatten(1))
    o = torch.stack(outs, dim=1).flatten(0, 1)
    o = F.group_norm(o, heads, p["norm.weight"], p["norm.bias"], mixer.norm.eps).view(batch, length, -1)
    own = (r_ * k_ * p["bonus"].view(heads, width)).sum(-1, keepdim=True) * v_
    return ((o + own.flatten(2)) * g) @ p["out.weight"].t(), first_BTE


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("length", [1, 31, LENGTH])
def test_two_layers_match_the_published_code_with_all_gradients(spec: Rwkv7Spec, length: int):
    """The second layer reads values that the first saved; gradients flow through them."""
    mixers = [built(spec), built(spec)]
    x_BTD, results = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True), []
    parameters = [parameter for mixer in mixers for parameter in mixer.parameters()]
    for form in ("own", "published"):
        layout, left, out_BTD = BatchLayout(record=AuxiliaryOutputs()), None, x_BTD
        for mixer in mixers:
            if form == "own":
                out_BTD = out_BTD + mixer(out_BTD, None, layout)
            else:
                added_BTD, left = published(mixer, dict(mixer.named_parameters()), out_BTD, left)
                out_BTD = out_BTD + added_BTD
        gradients = torch.autograd.grad(
            out_BTD.square().sum(), [x_BTD, *parameters], allow_unused=True, materialize_grads=True
        )
        results.append((out_BTD, *gradients))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_decoding_matches_the_published_layer():
    mixer = built(SPECS[1])
    x_BTD = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    expected, _ = published(mixer, dict(mixer.named_parameters()), x_BTD, None)
    state = mixer.initial_state(2, 9, torch.device("cpu"), torch.float64)
    found = [mixer(x_BTD[:, a:b], state, BatchLayout(a)) for a, b in ((0, 5), (5, 6), (6, 7), (7, 9))]
    torch.testing.assert_close(torch.cat(found, dim=1), expected)


def test_without_first_values_a_layer_reads_its_own_values_and_saves_none():
    spec = Rwkv7Spec(heads=4, first_values=False)
    mixer, layout = built(spec), BatchLayout(record=AuxiliaryOutputs(values={FIRST_VALUES: torch.zeros(1, 4, 4, 4)}))
    assert mixer.first_share is None and not spec.cross_layer_values(WIDTH) and not spec.needs_cross_layer_gradients
    x_BTD = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    expected, _ = published(mixer, dict(mixer.named_parameters()), x_BTD, None)
    torch.testing.assert_close(mixer(x_BTD, None, layout), expected)


@pytest.mark.parametrize(("index", "layers"), [(0, 6), (1, 6), (5, 6), (1, 2)])
def test_initialization_matches_the_published_code(index: int, layers: int):
    """The formulas of flash-linear-attention for every element; low-rank maps are initially their bias."""
    width, head = 64, 16
    mixer = Rwkv7Spec(heads=4).build(Place(width, 32, index, layers))
    later, earlier = index / (layers - 1), 1 - index / layers
    for n in (0, 1, 17, 63):
        linear, place = n / (width - 1) - 0.5, (n % head - (head - 1) / 2) / ((head - 1) / 2)
        zigzag = place * abs(place)
        shares = [1 - (n / width) ** (power * earlier) for power in (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)]
        assert mixer.shares[:, n].tolist() == pytest.approx(shares, abs=1e-6)
        decay = -6 + 6 * (n / (width - 1)) ** (1 + later**0.3) + 0.5 + 2.5 * zigzag
        found = [part[n].item() for part in (mixer.decay.bias, mixer.rate.bias, mixer.first_share.bias, mixer.erased)]
        expected = [decay, -0.19 + 0.3 * zigzag + 0.4 * linear, 0.73 - 0.4 * linear, 0.71 - 0.1 * linear]
        assert found == pytest.approx(expected, abs=1e-5)
    assert (mixer.mixed == 1.02).all() and (mixer.bonus == -0.04).all()
    torch.testing.assert_close(mixer.norm.weight.detach(), torch.full((width,), ((index + 1) / layers) ** 0.7))
    for part in (mixer.decay, mixer.rate, mixer.first_share, mixer.gate):
        assert not part.down.any()
        torch.testing.assert_close(part.up.t() @ part.up, 0.01 * torch.eye(part.up.shape[1]))
    for linear, scale in ((mixer.receptance, 0.5), (mixer.key, 0.05), (mixer.value, 0.5)):
        assert 0.9 * scale < linear.weight.abs().max() * math.sqrt(width) <= scale


@pytest.mark.parametrize(
    ("width", "ranks"),
    [(128, (32, 32, 32, 64)), (256, (32, 32, 32, 64)), (768, (64, 64, 32, 128)), (4096, (160, 160, 96, 320))],
)
def test_ranks_match_the_published_training_code(width: int, ranks: tuple[int, ...]):
    assert tuple(Rwkv7Spec(heads=4).ranks(width)[name] for name in ("decay", "rate", "value", "gate")) == ranks


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_state_is_a_float32_matrix_for_each_head_in_any_precision(spec: Rwkv7Spec):
    head = spec.widths(WIDTH)[0]
    for state in states_in_bfloat16(spec, WIDTH):
        assert (state.matrices.shape, state.matrices.dtype) == ((3, spec.heads, head, head), torch.float32)
        assert (state.last.shape, state.last.dtype) == ((3, WIDTH), torch.bfloat16)


@pytest.mark.parametrize("spec", [*SPECS, Rwkv7Spec(heads=4, first_values=False)])
@pytest.mark.parametrize("length", [24, 40])
def test_activation_memory_is_predicted_exactly(spec: Rwkv7Spec, length: int):
    found = bytes_kept(spec.build(Place(WIDTH, 32)), WIDTH, length)
    assert found == pytest.approx(4 * spec.cost(Place(WIDTH, 32)).activation_elements(3, length), rel=0.01)


def test_muon_optimizes_the_four_maps_and_nothing_else_has_weight_decay():
    mixer = SPECS[1].build(Place(WIDTH, 32))
    maps = [mixer.receptance.weight, mixer.key.weight, mixer.value.weight, mixer.out.weight]
    assert [matrix.parameter for matrix in mixer.muon_parameters()] == maps
    free = {id(parameter) for parameter in mixer.no_weight_decay()}
    assert free == {id(parameter) for parameter in mixer.parameters()} - {id(weight) for weight in maps}


@torch.no_grad()
def test_its_first_values_and_those_of_attention_are_separate():
    """Each kind has its own first values, with its own shape."""
    attention = {"kind": "attention", "heads": 2, "value_residual": {}}
    blocks = [{"mixer": mixer, "feed_forward": None} for mixer in (attention, {"kind": "rwkv7", "heads": 4}) * 2]
    model = {"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": blocks}
    record, tokens_BT = AuxiliaryOutputs(), torch.randint(9, (2, 5))
    Decoder(ModelSpec.parse(model, "test"))(tokens_BT, record=record)
    shapes = {name: tuple(value.shape) for name, value in record.values.items()}
    assert shapes == {"value_residual": (2, 5, 2, 8), "first_values": (2, 5, 4, 4)}


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ({"heads": 3}, "heads: 3: must divide the width 16, or head_dim must be given"),
        ({"heads": 4, "first_values": False, "value_rank": 3}, "value_rank: 3: must be null with first_values: false"),
    ],
)
def test_operators_of_other_shapes_are_refused(mixer: dict, said: str):
    blocks = [{"mixer": {"kind": "rwkv7", **mixer}, "feed_forward": None}]
    model = {"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": blocks}
    with pytest.raises(UserError, match=said):
        ModelSpec.parse(model, "test")


def test_initialization_with_extreme_heads_and_ranks_matches_the_published_code():
    """A map wider within than without is larger by the root of their ratio; one channel has no place in its head."""
    mixer = Rwkv7Spec(heads=4, head_dim=1, gate_rank=9).build(Place(WIDTH, 32))
    up_ER, slope_E = mixer.gate.up.detach(), torch.linspace(0, 1, 4)
    torch.testing.assert_close(up_ER @ up_ER.t(), 0.01 * 9 / 4 * torch.eye(4))
    torch.testing.assert_close(mixer.decay.bias.detach(), 6 * slope_E - 5.5)
    torch.testing.assert_close(mixer.rate.bias.detach(), 0.4 * slope_E - 0.39)


def test_a_state_holds_no_graph_and_first_values_are_needed_by_their_share():
    mixer = built(SPECS[0])
    state = mixer.initial_state(1, 9, torch.device("cpu"), torch.float64)
    mixer(torch.randn(1, 5, WIDTH, dtype=torch.float64), state)
    assert not any(tensor.requires_grad for tensor in state.tensors().values())
    assert SPECS[0].needs_cross_layer_gradients
