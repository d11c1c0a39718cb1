import pytest
import torch
from one_layer import bytes_kept, drawn, states_in_bfloat16
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.contract import Place
from linnet.layers.mixers.gated_delta import GatedDelta, GatedDeltaSpec
from linnet.model.spec import ModelSpec

WIDTH, LENGTH = 16, 7
SPECS = [
    GatedDeltaSpec(heads=4, key_heads=2, head_dim=5, value_dim=3, conv=3),
    GatedDeltaSpec(heads=2, decay="channel", gate="sigmoid", gate_rank=3),
]


def of_one_stream(mixer: GatedDelta, spec: GatedDeltaSpec, x_TD: Tensor) -> Tensor:
    """The equations of the documentation, token by token and head by head."""
    (key, value), groups = spec.widths(WIDTH), spec.heads // (spec.key_heads or spec.heads)
    parts = x_TD @ mixer.query_key_value_gate.weight.t()
    mixed_TF, gate = parts[:, : sum(mixer.parts)], parts[:, sum(mixer.parts) :]
    before_TF = torch.cat([torch.zeros(spec.conv - 1, mixed_TF.shape[1], dtype=x_TD.dtype), mixed_TF])
    windows = [before_TF[token : token + spec.conv] for token in range(len(x_TD))]
    mixed_TF = nn.functional.silu(torch.stack([(part * mixer.conv1d.weight[:, 0].t()).sum(0) for part in windows]))
    q_TE, k_TE, v_TF = mixed_TF.split(mixer.parts, dim=1)
    rest = x_TD @ mixer.share_decay.weight.t()
    beta_TN, decay = rest[:, : spec.heads].sigmoid(), rest[:, spec.heads :]
    decay = decay if mixer.channel_decay is None else decay @ mixer.channel_decay.weight.t()
    steps = nn.functional.softplus(decay + mixer.dt_bias).unflatten(1, (spec.heads, -1))
    heads = []
    for head in range(spec.heads):
        state, reads = torch.zeros(key, value, dtype=x_TD.dtype), []
        for token in range(len(x_TD)):
            place = slice(head // groups * key, (head // groups + 1) * key)
            q, k = (x[token, place] / (x[token, place].square().sum() + 1e-6).sqrt() for x in (q_TE, k_TE))
            v, beta = v_TF[token, head * value : (head + 1) * value], beta_TN[token, head]
            state = (-mixer.A_log[head].exp() * steps[token, head]).exp()[:, None] * state
            state = state + beta * torch.outer(k, v - state.t() @ k)
            reads.append(state.t() @ q / key**0.5)
        o_TV = torch.stack(reads)
        heads.append(o_TV / (o_TV.square().mean(1, keepdim=True) + spec.eps).sqrt() * mixer.norm.weight)
    gate = gate if mixer.gate_out is None else gate @ mixer.gate_out.weight.t()
    gate = gate.sigmoid() if spec.gate == "sigmoid" else nn.functional.silu(gate)
    return (torch.cat(heads, dim=1) * gate) @ mixer.out.weight.t()


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_matches_the_equations_of_the_documentation(spec: GatedDeltaSpec):
    mixer = drawn(spec, WIDTH)
    x_TD = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(mixer(x_TD[None])[0], of_one_stream(mixer, spec, x_TD))


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_state_is_a_float32_matrix_for_each_head_in_any_precision(spec: GatedDeltaSpec):
    for state in states_in_bfloat16(spec, WIDTH):
        assert (state.matrices.shape, state.matrices.dtype) == ((3, spec.heads, *spec.widths(WIDTH)), torch.float32)
        assert (state.inputs.shape[2], state.inputs.dtype) == (spec.conv - 1, torch.bfloat16)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_rates_and_steps_start_as_published(decay: str):
    """Rates uniform from 1 to 16, steps log-uniform from a thousandth to a tenth, over their whole ranges."""
    torch.manual_seed(0)
    mixer = GatedDeltaSpec(heads=2048, head_dim=1, decay=decay).build(Place(8, 32))
    rates, steps = mixer.A_log.exp(), nn.functional.softplus(mixer.dt_bias).log10()
    for values, lowest, highest in ((rates, 1, 16), (steps, -3, -1)):
        evenly = torch.linspace(lowest, highest, 2048)
        torch.testing.assert_close(values.sort().values, evenly, rtol=0, atol=0.04 * (highest - lowest))
        assert lowest - 1e-3 < values.min() < values.max() < highest + 1e-3
        ends = values.min() - lowest, highest - values.max()
        assert max(ends) < 0.006 * (highest - lowest)
    assert (mixer.norm.weight == 1).all() and mixer.norm.eps == 1e-6


@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
@pytest.mark.parametrize("rank", [None, 5])
def test_activation_memory_is_predicted_exactly_for_every_gate(gate: str, rank: int | None):
    spec = GatedDeltaSpec(heads=2, gate=gate, gate_rank=rank)
    found = bytes_kept(spec.build(Place(WIDTH, 32)), WIDTH, 24)
    assert found == pytest.approx(4 * spec.cost(Place(WIDTH, 32)).activation_elements(3, 24), rel=0.01)


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ({"heads": 4, "key_heads": 3}, "key_heads: 3: must divide heads, 4"),
        ({"heads": 3}, "heads: 3: must divide the width 16, or head_dim must be given"),
    ],
)
def test_invalid_head_counts_are_refused(mixer: dict, said: str):
    blocks = [{"mixer": {"kind": "gated_delta", **mixer}, "feed_forward": None}]
    model = {"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": blocks}
    with pytest.raises(UserError, match=said):
        ModelSpec.parse(model, "test")


@pytest.mark.parametrize("spec", GatedDeltaSpec.examples(), ids=repr)
def test_muon_takes_the_maps_between_hidden_vectors_alone(spec: GatedDeltaSpec):
    mixer = GatedDelta(spec, 16)
    found = [matrix.parameter for matrix in mixer.muon_parameters()]
    assert [id(one) for one in found] == [id(mixer.query_key_value_gate.weight), id(mixer.out.weight)]
