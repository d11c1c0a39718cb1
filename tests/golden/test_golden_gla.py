"""Flash-linear-attention's layer around its `naive_recurrent_gla`, reproduced: outputs, state and all gradients.

The file was written by that definition in float64: `state_dict.*`, `x [B, T, D]` and `y` of it, `state [B, N, K, V]`
behind the last token, `upstream [B, T, D]` and the gradients `grad.*` that it gives. Decays lie between 0.39 and 1.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from linnet.layers.contract import Place
from linnet.layers.mixers.gla import Gla, GlaSpec

GOLDEN = Path(__file__).parent / "gla_small.safetensors"
JOINT = ("q_proj", "k_proj", "v_proj", "g_proj")
NAMES = {
    "decay_in.weight": "gk_proj.0.weight",
    "decay_out.weight": "gk_proj.1.weight",
    "decay_out.bias": "gk_proj.1.bias",
    "norm.weight": "g_norm_swish_gate.weight",
    "out.weight": "o_proj.weight",
}


def renamed(published: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """By our names: the maps of the input that are four there are one here."""
    own = {ours: published[f"{prefix}{theirs}"] for ours, theirs in NAMES.items()}
    joint = torch.cat([published[f"{prefix}{name}.weight"] for name in JOINT])
    return {"query_key_value_gate.weight": joint, **own}


@pytest.fixture(scope="module")
def golden() -> tuple[dict[str, Tensor], Gla]:
    """The tensors of the file, and our layer with its weights."""
    with safe_open(GOLDEN, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config = json.loads(file.metadata()["config"])
    spec = GlaSpec(
        heads=config["num_heads"],
        gate_rank=config["gate_low_rank_dim"],
        gate_logit_normalizer=config["gate_logit_normalizer"],
        eps=config["norm_eps"],
    )
    mixer = spec.build(Place(config["hidden_size"], 128)).double()
    mixer.load_state_dict(renamed(tensors, "state_dict."))
    return tensors, mixer


def test_outputs_and_all_gradients_are_those_of_the_definition(golden: tuple[dict[str, Tensor], Gla]):
    tensors, mixer = golden
    x_BTD = tensors["x"].clone().requires_grad_()
    y_BTD = mixer(x_BTD)
    torch.testing.assert_close(y_BTD, tensors["y"])
    parameters = dict(mixer.named_parameters())
    found = torch.autograd.grad(y_BTD, (x_BTD, *parameters.values()), tensors["upstream"])
    expected = {"x": tensors["grad.x"], **renamed(tensors, "grad.")}
    for name, gradient in zip(("x", *parameters), found, strict=True):
        torch.testing.assert_close(gradient, expected[name], msg=lambda text, name=name: f"{name}: {text}")


@torch.no_grad()
@pytest.mark.parametrize("cut", [1, 69])
def test_a_stream_gives_the_same_and_ends_in_the_same_state(golden: tuple[dict[str, Tensor], Gla], cut: int):
    """A chunk, then token after token, or one token, then a chunk."""
    tensors, mixer = golden
    state = mixer.initial_state(1, 128, torch.device("cpu"), torch.float64)
    chunks = [tensors["x"][:, :cut], *tensors["x"][:, cut:].split(1 if cut > 1 else 69, dim=1)]
    y_BTD = torch.cat([mixer(chunk, state) for chunk in chunks], dim=1)
    torch.testing.assert_close(y_BTD, tensors["y"])
    torch.testing.assert_close(state.matrices, tensors["state"])
