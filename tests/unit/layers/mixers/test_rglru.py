import pytest
import torch
from one_layer import states_in_bfloat16
from torch import Tensor, nn

from linnet.core.errors import UserError
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.rglru import Rglru, RglruSpec
from linnet.model.spec import ModelSpec
from linnet.ops.linear_scan import rglru

WIDTH, HEADS, LENGTH = 16, 4, 9


def built(**changes: object) -> Rglru:
    torch.manual_seed(0)
    return RglruSpec(**{"heads": HEADS, **changes}).build(Place(WIDTH, 128))


@torch.no_grad()
def test_matches_the_block_of_the_paper():
    """Equations 1 to 4, token by token; the first token is not scaled."""
    mixer = built(channels=24).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    gates, x_TD = mixer.rg_lru, torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    within_TE = x_TD @ mixer.linear_x.weight.t() + mixer.linear_x.bias
    input_EE, gate_EE = (torch.block_diag(*w_NKK) for w_NKK in (gates.input_gate_weight, gates.recurrent_gate_weight))
    h_E, outs = torch.zeros(24, dtype=torch.float64), []
    for place in range(LENGTH):
        seen_E = mixer.conv_1d.bias.clone()
        for age in range(min(4, place + 1)):
            seen_E += mixer.conv_1d.weight[:, 0, 3 - age] * within_TE[place - age]
        i_E = (seen_E @ input_EE + gates.input_gate_bias.flatten()).sigmoid()
        r_E = (seen_E @ gate_EE + gates.recurrent_gate_bias.flatten()).sigmoid()
        a_E = (-gates.recurrent_param).sigmoid() ** (8 * r_E)
        h_E = a_E * h_E + (1 - a_E**2 if place else torch.ones_like(a_E)).sqrt() * i_E * seen_E
        other_E = nn.functional.gelu(x_TD[place] @ mixer.linear_y.weight.t() + mixer.linear_y.bias, approximate="tanh")
        outs.append(mixer.linear_out(other_E * h_E))
    torch.testing.assert_close(mixer(x_TD[None])[0], torch.stack(outs))


@torch.no_grad()
@pytest.mark.parametrize("starts", [(0, 5), (5, 0), 0, 5])
def test_only_the_first_token_of_a_stream_is_not_scaled(starts: int | tuple[int, int]):
    """Rows of a batch can be at different positions."""
    mixer, x_BTD, told = built(), torch.randn(2, 3, WIDTH), []

    def scan(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        told.append(inputs[4].expand(2, 1)[:, 0].tolist())
        return rglru(*inputs)

    mixer.scan = scan
    out_BTD, of_rows = mixer(x_BTD, None, BatchLayout(starts)), BatchLayout(starts).starts_of(2)
    assert told == [[start == 0 for start in of_rows]]
    alone = [mixer(x_BTD[row : row + 1], None, BatchLayout(start)) for row, start in enumerate(of_rows)]
    torch.testing.assert_close(out_BTD, torch.cat(alone))


@torch.no_grad()
def test_state_is_one_float32_number_for_each_channel_in_any_precision():
    for state in states_in_bfloat16(RglruSpec(heads=4, channels=24), WIDTH):
        assert (state.hidden.shape, state.hidden.dtype) == ((3, 24), torch.float32)
        assert (state.inputs.shape, state.inputs.dtype) == ((3, 24, 3), torch.bfloat16)


def test_heads_that_do_not_divide_the_channels_are_refused():
    block = {"mixer": {"kind": "rglru", "heads": 5}}
    with pytest.raises(UserError, match=r"heads: 5: must divide the 16 channels"):
        ModelSpec.parse({"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": [block]}, "test")


def test_initial_maps_keep_the_variance_of_their_inputs():
    mixer = RglruSpec(heads=2, channels=512).build(Place(256, 128))
    gates = mixer.rg_lru
    for weight, inputs in [
        (mixer.linear_x.weight, 256), (mixer.linear_y.weight, 256), (mixer.linear_out.weight, 512),
        (gates.input_gate_weight, 256), (gates.recurrent_gate_weight, 256), (mixer.conv_1d.weight, 400),
    ]:  # fmt: skip
        assert weight.std().item() == pytest.approx(inputs**-0.5, rel=0.1)
    assert not any(parameter.any() for name, parameter in mixer.named_parameters() if name.endswith("bias"))
