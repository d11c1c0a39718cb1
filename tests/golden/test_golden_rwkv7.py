"""Flash-linear-attention's layers of RWKV-7, reproduced: outputs, states and all gradients, in float64.

Their file is made by `writers/write_rwkv7.py`: two layers of time mixing on residual branches, of which the second
mixes its values with the first one's, and one of channel mixing. A first layer has no map to shares of first values
there; ours has, as the authors' code, and it has no part.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from golden_file import Named, assert_same, below, gradients, leaves, read
from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Place
from linnet.layers.feed_forwards.rwkv7_channel import Rwkv7ChannelSpec
from linnet.layers.mixers.rwkv7 import Rwkv7, Rwkv7Spec, Rwkv7State

WIDTH, LAYERS = 12, 2
MIXES = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")
LOW_RANK = {"decay": "w_lora", "rate": "a_lora", "gate": "g_lora", "first_share": "v_lora"}
PARTS = {"down": "lora.0.weight", "up": "lora.2.weight", "bias": "lora.2.bias"}
NAMES = {
    "receptance.weight": "r_proj.weight",
    "key.weight": "k_proj.weight",
    "value.weight": "v_proj.weight",
    "erased": "k_k",
    "mixed": "k_a",
    "norm.weight": "g_norm.weight",
    "norm.bias": "g_norm.bias",
    "out.weight": "o_proj.weight",
}
Golden = tuple[Named, dict[str, Any]]


@pytest.fixture(scope="module")
def golden() -> Golden:
    return read("rwkv7_small.safetensors")


def ours_of(theirs: Named) -> Named:
    """By our names, in our shapes; what theirs has."""
    pairs = {f"{name}.{part}": f"{lora}.{their}" for name, lora in LOW_RANK.items() for part, their in PARTS.items()}
    named = {ours: theirs[their] for ours, their in {**NAMES, **pairs}.items() if their in theirs}
    return {"shares": torch.cat([theirs[name][0] for name in MIXES]), "bonus": theirs["r_k"].flatten(), **named}


def built(golden: Golden) -> list[Rwkv7]:
    tensors, config = golden
    ranks = dict(zip(("decay_rank", "rate_rank", "value_rank", "gate_rank"), config["ranks"], strict=True))
    spec = Rwkv7Spec(heads=config["heads"], eps=config["eps"], **ranks)
    mixers = [spec.build(Place(WIDTH, 128, index, LAYERS)).double() for index in range(LAYERS)]
    for index, mixer in enumerate(mixers):
        missing, unknown = mixer.load_state_dict(ours_of(below(tensors, f"times.{index}")), strict=False)
        assert not unknown and all(index == 0 and name.startswith("first_share") for name in missing)
    return mixers


def states_of(mixers: list[Rwkv7], start: Named) -> list[Rwkv7State]:
    states = [mixer.initial_state(2, 128, torch.device("cpu"), torch.float64) for mixer in mixers]
    for index, state in enumerate(states if start else []):
        state.last = start[f"{index}.conv_state"].clone()
        state.matrices = start[f"{index}.recurrent_state"].clone()
    return states


def through(mixers: list[Rwkv7], theirs: Named, x_BTD: Tensor, states: list[Rwkv7State], start: int = 0) -> Tensor:
    """Both layers, with their weights of `theirs`."""
    layout = BatchLayout(start, record=AuxiliaryOutputs())
    for index, (mixer, state) in enumerate(zip(mixers, states, strict=True)):
        x_BTD = x_BTD + functional_call(mixer, ours_of(below(theirs, str(index))), (x_BTD, state, layout))
    return x_BTD


def assert_same_matrices(states: list[Rwkv7State], expected: Named) -> None:
    for index, state in enumerate(states):
        torch.testing.assert_close(state.matrices, expected[f"recurrent_state.{index}"])


def weights(tensors: Named, prefix: str, expected: Named) -> Named:
    """Those that a file has gradients of."""
    return {name: tensors[f"{prefix}.{name}"] for name in below(expected, "grad") if name != "x"}


@pytest.mark.parametrize("case", ["1", "63", "65", "started"])
def test_outputs_states_and_all_gradients_of_time_mixing(golden: Golden, case: str):
    tensors, _ = golden
    mixers, expected = built(golden), below(tensors, f"times.{case}")
    length, states = expected["y"].shape[1], states_of(mixers, below(expected, "start"))
    theirs = leaves({"x": tensors["x"][:, :length], **weights(tensors, "times", expected)})
    y_BTD = through(mixers, theirs, theirs["x"], states)
    torch.testing.assert_close(y_BTD, expected["y"])
    assert_same_matrices(states, expected)
    assert_same(gradients(y_BTD, theirs, tensors["upstream"][:, :length]), below(expected, "grad"))


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 64])
def test_a_stream_from_a_state(golden: Golden, cut: int):
    """A chunk and a token, or a token and a chunk."""
    tensors, _ = golden
    mixers, expected, x_BTD = built(golden), below(tensors, "times.started"), tensors["x"]
    theirs, states = weights(tensors, "times", expected), states_of(mixers, below(expected, "start"))
    first_BTD = through(mixers, theirs, x_BTD[:, :cut], states)
    second_BTD = through(mixers, theirs, x_BTD[:, cut:], states, cut)
    torch.testing.assert_close(torch.cat([first_BTD, second_BTD], dim=1), expected["y"])
    assert_same_matrices(states, expected)


@pytest.mark.parametrize("case", ["1", "63", "65"])
def test_outputs_and_all_gradients_of_channel_mixing(golden: Golden, case: str):
    tensors, config = golden
    layer = Rwkv7ChannelSpec(hidden=config["hidden"]).build(Place(WIDTH, 128)).double()
    expected = below(tensors, f"channels.{case}")
    length = expected["y"].shape[1]
    theirs = leaves({"x": tensors["x"][:, :length], **weights(tensors, "channels", expected)})
    ours = {**theirs, "x_k": theirs["x_k"][None, None]}
    y_BTD = functional_call(layer, {name: ours[name] for name in layer.state_dict()}, (theirs["x"],))
    torch.testing.assert_close(y_BTD, expected["y"])
    assert_same(gradients(y_BTD, theirs, tensors["upstream"][:, :length]), below(expected, "grad"))
