import pytest
import torch
from one_layer import bytes_kept, drawn, states_in_bfloat16

from linnet.layers.contract import Place
from linnet.layers.mixers.minlstm import MinLstmSpec

WIDTH = 16
SPECS = MinLstmSpec.examples()


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_matches_the_equations_of_the_documentation(spec: MinLstmSpec):
    mixer = drawn(spec, WIDTH)
    x_TD, h_E, outs = torch.randn(9, WIDTH, dtype=torch.float64), torch.zeros(mixer.channels), []
    for x_D in x_TD:
        joint = mixer.forget_input_candidate.weight @ x_D + mixer.forget_input_candidate.bias
        f_E, i_E, c_E = joint.chunk(3)
        f_E, i_E = f_E.sigmoid(), i_E.sigmoid()
        if spec.candidate == "positive":
            c_E = torch.where(c_E >= 0, c_E + 0.5, c_E.sigmoid())
        h_E = (f_E * h_E + i_E * c_E) / (f_E + i_E)
        outs.append(mixer.out.weight @ h_E)
    torch.testing.assert_close(mixer(x_TD[None])[0], torch.stack(outs))


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_state_is_one_float32_number_for_each_channel_in_any_precision(spec: MinLstmSpec):
    for state in states_in_bfloat16(spec, WIDTH):
        assert (state.hidden.shape, state.hidden.dtype) == ((3, spec.channels or WIDTH), torch.float32)


@pytest.mark.parametrize("spec", SPECS)
def test_activation_memory_is_predicted_exactly(spec: MinLstmSpec):
    found = bytes_kept(spec.build(Place(WIDTH, 128)), WIDTH, 50)
    assert found == 4 * spec.cost(Place(WIDTH, 128)).activation_elements(3, 50)
