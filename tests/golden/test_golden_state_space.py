"""The authors' S4D and H3, reproduced: outputs and all gradients, in float64, and the state of H3's diagonal model.

Their files are made by `writers/write_s4d.py` and `writers/write_h3.py`. Input and output vectors of their models act
as products alone, which are what ours have: C of the diagonal model, and of the shift model the weights of a
convolution.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from golden_file import Named, assert_same, below, gradients, leaves, read
from linnet.layers.contract import Place
from linnet.layers.mixers.h3 import H3, H3Spec
from linnet.layers.mixers.s4d import S4dSpec

WIDTH = 12
LENGTHS = ["1", "63", "65"]
Golden = tuple[Named, dict[str, Any]]


def of_s4d(theirs: Named) -> Named:
    weight, bias = theirs["output_linear.0.weight"][..., 0], theirs["output_linear.0.bias"]
    maps = {"value_linear": slice(WIDTH), "gate_linear": slice(WIDTH, None)}
    halves = {f"{name}.weight": weight[rows] for name, rows in maps.items()}
    halves |= {f"{name}.bias": bias[rows] for name, rows in maps.items()}
    return {**{name: part for name, part in theirs.items() if name == "D" or name.startswith("kernel")}, **halves}


def of_h3(theirs: Named) -> Named:
    """A lag's weight is the product of input and output vector so far apart, the direct way with the token itself.

    What heads of several channels give goes into their last map channel by channel, into ours head by head.
    """
    b_DW, (c_DW,) = theirs["ssm_k_kernel.kernel.B"], theirs["ssm_k_kernel.kernel.C"]
    size = b_DW.shape[1]
    lags = [(b_DW[:, : size - lag] * c_DW[:, lag:]).sum(1) for lag in range(size)]
    lags[0] = lags[0] + theirs["ssm_k_D"]
    joint = {part: torch.cat([theirs[f"{name}_proj.{part}"] for name in "qkv"]) for part in ("weight", "bias")}
    kernel = below(theirs, "kernel.kernel")
    columns = theirs["output_linear.weight"].unflatten(1, (-1, len(theirs["D"]))).transpose(1, 2).flatten(1)
    product_HN = torch.view_as_complex(kernel["B"]) * torch.view_as_complex(kernel["C"][0])
    return {
        "query_key_value.weight": joint["weight"],
        "query_key_value.bias": joint["bias"],
        "shift.weight": torch.stack(lags[::-1], dim=1)[:, None],
        "kernel.log_dt": kernel["log_dt"],
        "kernel.log_A_real": kernel["inv_A_real"],
        "kernel.A_imag": kernel["A_imag"],
        "kernel.C": torch.view_as_real(product_HN),
        "D": theirs["D"],
        "output_linear.weight": columns,
        "output_linear.bias": theirs["output_linear.bias"],
    }


@pytest.fixture(scope="module")
def s4d() -> Golden:
    return read("s4d_small.safetensors")


@pytest.fixture(scope="module")
def h3() -> Golden:
    return read("h3_small.safetensors")


@pytest.mark.parametrize("length", LENGTHS)
def test_s4d_outputs_and_all_gradients(s4d: Golden, length: str):
    tensors, config = s4d
    mixer = S4dSpec(state=config["state"]).build(Place(WIDTH, 128)).double()
    expected = below(tensors, length)
    theirs = leaves({"x": tensors["x"][:, : int(length)], **below(tensors, "state_dict")})
    y_BTD = functional_call(mixer, of_s4d(theirs), (theirs["x"],))
    torch.testing.assert_close(y_BTD, expected["y"])
    assert_same(gradients(y_BTD, theirs, tensors["upstream"][:, : int(length)]), below(expected, "grad"))


def h3_mixer(config: dict[str, Any], rule: str) -> H3:
    size, state = config["head_dims"][rule], config["state"]
    return H3Spec(state=state, shift=state, head_dim=size, discretization=rule).build(Place(WIDTH, 128)).double()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("rule", ["bilinear", "zoh"])
def test_h3_outputs_and_all_gradients(h3: Golden, rule: str, length: str):
    """Heads of one channel, and of three."""
    tensors, config = h3
    mixer, expected = h3_mixer(config, rule), below(tensors, f"{rule}.{length}")
    theirs = leaves({"x": tensors["x"][:, : int(length)], **below(tensors, f"{rule}.state_dict")})
    y_BTD = functional_call(mixer, of_h3(theirs), (theirs["x"],))
    torch.testing.assert_close(y_BTD, expected["y"])
    assert_same(gradients(y_BTD, theirs, tensors["upstream"][:, : int(length)]), below(expected, "grad"))


def taken_in(mixer: H3, theirs: Named) -> Tensor:
    """What their state takes in of an input, `[H, N]`: ours multiplies by it only where it is read."""
    _, c_HN = mixer.kernel(torch.float64)
    return c_HN / (2 * torch.view_as_complex(theirs["kernel.kernel.C"][0]))


@torch.no_grad()
@pytest.mark.parametrize("length", LENGTHS)
def test_h3_state(h3: Golden, length: str):
    tensors, config = h3
    mixer, theirs = h3_mixer(config, "bilinear"), below(tensors, "bilinear.state_dict")
    mixer.load_state_dict(of_h3(theirs))
    state = mixer.initial_state(2, 128, torch.device("cpu"), torch.float64)
    for x_BTD in tensors["x"][:, : int(length)].split(31, dim=1):
        mixer(x_BTD, state)
    found_BHN = torch.view_as_complex(state.hidden)[:, 0, 0] * taken_in(mixer, theirs)
    torch.testing.assert_close(torch.view_as_real(found_BHN), tensors[f"bilinear.{length}.state"])
