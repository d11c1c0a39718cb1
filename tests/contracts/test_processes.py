"""What several processes make of a model, whatever its layers: what one makes of it."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from examples import name_of
from shared_training import READING, SHARED, losses
from torch import Tensor

from linnet.layers.contract import SublayerSpec
from several import finish, start

pytestmark = pytest.mark.cpu_only("processes share no GPU")

RUNS = [
    (1, "float64", "adamw", 1e-6),
    (2, "float64", "adamw", 1e-6),
    (2, "float64", "muon", 1e-6),
    (1, "float32", "adamw", 1e-5),
    (2, "float32", "adamw", 1e-5),
    (2, "bfloat16", "adamw", 2e-2),
]
"""How many share a copy of the weights, in which precision, with which optimiser, and what is allowed.

In float64 nothing blows up a rounding error, and the gradient norms (clipped at float32's precision) and the terms of
the objective are compared as well. In bfloat16 the gradient of a half of the batch is rounded, and then the sum.
"""


@cache
def of_one(name: str, precision: str, kind: str) -> Tensor:
    spec = next(spec for spec in SHARED if name_of(spec) == name)
    return torch.tensor(losses(spec, precision=precision, kind=kind))


@pytest.fixture(scope="module")
def of_two() -> dict[str, list]:
    """The losses in two processes of every layer, by name, shard and precision."""
    runs = [f"{shard}:{precision}:{kind}" for shard, precision, kind, _ in RUNS]
    ended = finish(start([Path(__file__).parent / "shared_training.py", *runs], 2))
    assert [code for code, _, _ in ended] == [0, 0], ended
    first, second = (json.loads(out) for _, out, _ in ended)
    assert first == second
    return first


@pytest.mark.parametrize(("shard", "precision", "kind", "tolerance"), RUNS)
def test_two_processes_give_the_losses_of_one(
    spec: SublayerSpec, shard: int, precision: str, kind: str, tolerance: float, of_two: dict[str, list]
):
    """With weights of which each has a copy, and with one copy for both."""
    found = torch.tensor(of_two[f"{name_of(spec)} {shard} {precision} {kind}"])
    expected = of_one(name_of(spec), precision, kind)
    if precision != "float64":
        found, expected = found[:, 0], expected[:, 0]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("shard", "precision", "kind", "tolerance"), RUNS)
def test_two_processes_give_the_losses_of_an_encoder_decoder_in_one(
    shard: int, precision: str, kind: str, tolerance: float, of_two: dict[str, list]
):
    test_two_processes_give_the_losses_of_one(READING, shard, precision, kind, tolerance, of_two)


def test_every_layer_is_there(of_two: dict[str, list]):
    assert {key.split()[0] for key in of_two} == set(map(name_of, SHARED))
