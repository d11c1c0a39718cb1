import pytest
import torch
from torch import nn

from linnet.layers.contract import Place
from linnet.layers.mixers.minlstm import MinLstmSpec
from linnet.layers.view import View

WIDTH = 16
SPECS = MinLstmSpec.examples()


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_it_is_what_the_page_says(spec: MinLstmSpec):
    torch.manual_seed(0)
    mixer = spec.build(Place(WIDTH, 128)).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
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
def test_a_state_holds_one_number_for_each_channel_whatever_the_precision(spec: MinLstmSpec):
    mixer = spec.build(Place(WIDTH, 128)).bfloat16()
    state = mixer.initial_state(3, 1000, torch.device("cpu"), torch.bfloat16)
    for start in (0, 4):
        mixer(torch.randn(3, 4, WIDTH).bfloat16(), state, View(start))
        assert (state.hidden.shape, state.hidden.dtype) == ((3, spec.channels or WIDTH), torch.float32)


@pytest.mark.parametrize("spec", SPECS)
def test_predicted_memory_is_what_is_kept(spec: MinLstmSpec):
    mixer, kept = spec.build(Place(WIDTH, 128)), []
    x_BTD = torch.randn(3, 50, WIDTH, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        mixer(x_BTD).sum()
    own = {parameter.data_ptr() for parameter in mixer.parameters()}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    found = sum(nbytes for pointer, nbytes in storages.items() if pointer not in own)
    assert found == 4 * spec.cost(Place(WIDTH, 128)).kept(3, 50)
