"""The minLSTM of the package `minGRU-pytorch`, reproduced: outputs, state and all gradients, in float64.

Its file is made by `writers/write_minlstm.py`. Theirs has what is taken in first, then the gates; the map behind it is
the same.
"""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from golden_file import Named, assert_same, below, gradients, leaves, read
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.minlstm import MinLstm, MinLstmSpec, MinLstmState

WIDTH = 12
Golden = tuple[Named, MinLstm]


@pytest.fixture(scope="module")
def golden() -> Golden:
    tensors, config = read("minlstm_small.safetensors")
    mixer = MinLstmSpec(channels=config["channels"]).build(Place(WIDTH, 128)).double()
    mixer.load_state_dict(ours_of(below(tensors, "state_dict")))
    return tensors, mixer


def ours_of(theirs: Named) -> Named:
    """By our names, in our order: forget, input, candidate."""
    own = {"out.weight": theirs["to_out.weight"]}
    for kind in ("weight", "bias"):
        candidate, forget, input_ = theirs[f"to_hidden_and_f_i_gate.{kind}"].chunk(3)
        own[f"forget_input_candidate.{kind}"] = torch.cat([forget, input_, candidate])
    return own


def state_of(mixer: MinLstm, expected: Named) -> MinLstmState:
    state = mixer.initial_state(2, 128, torch.device("cpu"), torch.float64)
    if "start" in expected:
        state.hidden = expected["start"].clone()
    return state


@pytest.mark.parametrize("case", ["1", "63", "65", "started"])
def test_outputs_states_and_all_gradients(golden: Golden, case: str):
    tensors, mixer = golden
    expected = below(tensors, case)
    length, state = expected["y"].shape[1], state_of(mixer, expected)
    theirs = leaves({"x": tensors["x"][:, :length], **below(tensors, "state_dict")})
    y_BTD = functional_call(mixer, ours_of(theirs), (theirs["x"], state))
    torch.testing.assert_close(y_BTD, expected["y"])
    torch.testing.assert_close(state.hidden, expected["hidden"])
    assert_same(gradients(y_BTD, theirs, tensors["upstream"][:, :length]), below(expected, "grad"))


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 64])
def test_a_stream_from_a_state(golden: Golden, cut: int):
    """A chunk and a token, or a token and a chunk."""
    tensors, mixer = golden
    expected = below(tensors, "started")
    state, x_BTD = state_of(mixer, expected), tensors["x"]
    parts: list[Tensor] = [mixer(x_BTD[:, :cut], state), mixer(x_BTD[:, cut:], state, BatchLayout(cut))]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected["y"])
    torch.testing.assert_close(state.hidden, expected["hidden"])
