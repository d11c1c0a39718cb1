"""NX-AI's sLSTM layer of the package `xlstm`, reproduced: outputs, state and all gradients, in float64.

Its file is made by `writers/write_slstm.py`. Theirs has a block of a map for each head where ours has a full map, zero
outside of the blocks; its gates' maps are named the wrong way round (`fgate` gives the logits of the input gate), its
norm's gain is counted from 1, and a map stands behind it that is ours alone.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from golden_file import Named, assert_same, below, gradients, leaves, read
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.slstm import Slstm, SlstmSpec, SlstmState

WIDTH, GATES = 12, 4
Golden = tuple[Named, dict[str, Any]]


@pytest.fixture(scope="module")
def golden() -> Golden:
    return read("slstm_small.safetensors")


def ours_of(theirs: Named) -> Named:
    """By our names, in our shapes."""
    maps = {gate: torch.block_diag(*theirs[f"layer.{gate}.weight"]) for gate in ("fgate", "igate", "zgate", "ogate")}
    i, f, z, o = theirs["layer.slstm_cell._bias_"].unflatten(0, (GATES, -1))
    conv = below(theirs, "layer.conv1d.conv")
    return {
        **{f"conv1d.{name}": tensor for name, tensor in conv.items()},
        "input_forget.weight": torch.cat([maps["fgate"], maps["igate"]]),
        "cell_output.weight": torch.cat([maps["zgate"], maps["ogate"]]),
        "input_forget.bias": torch.cat([i, f]),
        "cell_output.bias": torch.cat([z, o]),
        "recurrent": theirs["layer.slstm_cell._recurrent_kernel_"].mT,
        "norm.weight": 1 + theirs["layer.group_norm.weight"],
        "out.weight": theirs["out.weight"],
    }


def built(golden: Golden, variant: str) -> Slstm:
    tensors, config = golden
    spec = SlstmSpec(heads=config["heads"], conv=config["conv"] if variant == "conv" else None, eps=config["eps"])
    mixer = spec.build(Place(WIDTH, 128)).double()
    mixer.load_state_dict(ours_of(below(tensors, f"{variant}.state_dict")))
    return mixer


def state_of(mixer: Slstm, start: Named) -> SlstmState:
    """As theirs is given: h, c, n and m of all heads, and the convolution's last inputs."""
    state = mixer.initial_state(2, 128, torch.device("cpu"), torch.float64)
    if start:
        parts = start["slstm_state"].unflatten(2, (mixer.heads, -1))
        state.hidden, state.cell, state.normalizer, state.peak = parts.clone()
    if "conv_state" in start:
        state.inputs = start["conv_state"].mT.clone()
    return state


def memory_of(state: SlstmState) -> list[Tensor]:
    return [state.hidden, state.cell, state.normalizer, state.peak]


@pytest.mark.parametrize("case", ["1", "63", "65", "started"])
@pytest.mark.parametrize("variant", ["conv", "plain"])
def test_outputs_states_and_all_gradients(golden: Golden, variant: str, case: str):
    tensors, _ = golden
    mixer, expected = built(golden, variant), below(tensors, f"{variant}.{case}")
    length, state = expected["y"].shape[1], state_of(mixer, below(expected, "start"))
    theirs = leaves({"x": tensors["x"][:, :length], **below(tensors, f"{variant}.state_dict")})
    y_BTD = functional_call(mixer, ours_of(theirs), (theirs["x"], state))
    torch.testing.assert_close(y_BTD, expected["y"])
    torch.testing.assert_close(torch.stack(memory_of(state)).flatten(2), expected["slstm_state"])
    assert_same(gradients(y_BTD, theirs, tensors["upstream"][:, :length]), below(expected, "grad"))


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 64])
@pytest.mark.parametrize("variant", ["conv", "plain"])
def test_a_stream_from_a_state(golden: Golden, variant: str, cut: int):
    """A chunk and a token, or a token and a chunk."""
    tensors, _ = golden
    mixer, expected = built(golden, variant), below(tensors, f"{variant}.started")
    state, x_BTD = state_of(mixer, below(expected, "start")), tensors["x"]
    parts: list[Tensor] = [mixer(x_BTD[:, :cut], state), mixer(x_BTD[:, cut:], state, BatchLayout(cut))]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected["y"])
    torch.testing.assert_close(torch.stack(memory_of(state)).flatten(2), expected["slstm_state"])
