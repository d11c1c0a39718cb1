"""The authors' layer of RetNet in the package `torchscale`, reproduced: outputs, sums and all gradients, in float64.

Its file is made by `writers/write_retention.py`, with and without rotations. Theirs are exact; ours come from a table
in float32, so what is turned is right to 1e-6 of what it adds up. Their angles reach down to 1/10,000 at the last pair,
ours would be there one pair later: that is another base. Ours has the group norm's gains and shifts, at 1 and 0 here.
"""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from golden_file import Named, below, gradients, leaves, read
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.retention import MultiScaleRetention, RetentionSpec
from linnet.layers.rotary import RotarySpec

WIDTH = 12
JOINT = ("q_proj", "k_proj", "v_proj", "g_proj")
ERRORS = {"plain": 1e-11, "turned": 2e-6}
"""Norm of the difference over that of what is expected, and 1: one token alone has no gradient of queries and keys."""

Golden = tuple[Named, MultiScaleRetention]


@pytest.fixture(scope="module", params=list(ERRORS))
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def golden(variant: str) -> Golden:
    tensors, config = read("retention_small.safetensors")
    pairs = WIDTH // config["heads"] // 2
    rotary = RotarySpec(base=10000 ** (pairs / (pairs - 1)), pairing="adjacent") if variant == "turned" else None
    spec = RetentionSpec(heads=config["heads"], expand=config["expand"], rotary=rotary, eps=config["eps"])
    mixer = spec.build(Place(WIDTH, 128)).double()
    mixer.load_state_dict(ours_of(below(tensors, "state_dict")), strict=False)
    return {**tensors, **below(tensors, variant)}, mixer


def ours_of(theirs: Named) -> Named:
    """By our names: the maps of the input that are four there are one here."""
    joint = torch.cat([theirs[f"{name}.weight"] for name in JOINT])
    return {"query_key_value_gate.weight": joint, "out.weight": theirs["out_proj.weight"]}


def assert_near(found: Tensor, expected: Tensor, error: float) -> None:
    assert (found - expected).norm() <= error * (1 + expected.norm())


@pytest.mark.parametrize("length", [1, 63, 65])
def test_outputs_and_all_gradients(golden: Golden, variant: str, length: int):
    tensors, mixer = golden
    expected, error = below(tensors, str(length)), ERRORS[variant]
    theirs = leaves({"x": tensors["x"][:, :length], **below(tensors, "state_dict")})
    y_BTD = functional_call(mixer, ours_of(theirs), (theirs["x"],), strict=False)
    assert_near(y_BTD, expected["y"], error)
    found = gradients(y_BTD, theirs, tensors["upstream"][:, :length])
    assert found.keys() == below(expected, "grad").keys()
    for name, gradient in below(expected, "grad").items():
        assert_near(found[name], gradient, error)


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 65, [64, 1], [1, 64]], ids=["tokens", "chunk-token", "token-chunk"])
def test_a_stream_and_the_sums_behind_it(golden: Golden, variant: str, chunks: list[int]):
    tensors, mixer = golden
    state = mixer.initial_state(2, 128, torch.device("cpu"), torch.float64)
    outs: list[Tensor] = []
    position = 0
    for chunk in tensors["x"].split(chunks, dim=1):
        outs.append(mixer(chunk, state, BatchLayout(position)))
        position += chunk.shape[1]
    assert_near(torch.cat(outs, dim=1), tensors["stream.y"], ERRORS[variant])
    assert_near(state.sums, tensors["stream.sums"].mT, ERRORS[variant])
