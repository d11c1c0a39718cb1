"""Training in several processes equals training in one, for all kinds of layers."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from examples import name_of
from shared_training import SHARED, STEPS, losses
from torch import Tensor

from linnet.layers.contract import SublayerSpec
from several import finish, start

pytestmark = pytest.mark.cpu_only("processes share no GPU")

RUNS = {
    "first": [(1, "float64", "adamw", 1e-6), (2, "float64", "muon", 1e-6)],
    "every": [
        (1, "float64", "adamw", 1e-6),
        (2, "float64", "adamw", 1e-6),
        (2, "float64", "muon", 1e-6),
        (1, "float32", "adamw", 1e-5),
        (2, "float32", "adamw", 1e-5),
        (2, "bfloat16", "adamw", 2e-2),
    ],
}
"""The number of processes that share a copy of the weights, the precision, the optimizer, and the tolerance.

For the first example of each kind, and (slow) for every one. In float64 rounding errors stay small, and the gradient
norms (clipped in float32) and the terms of the objective are compared as well. In bfloat16 the gradient of each half of
the batch is rounded, and then their sum.
"""

CASES = [
    pytest.param(which, example, *run, id=f"{which}-{name_of(example)}-{'-'.join(map(str, run[:3]))}", marks=marks)
    for which, marks in (("first", ()), ("every", pytest.mark.slow))
    for run in RUNS[which]
    for example in SHARED[which]
]


@cache
def of_one(name: str, precision: str, kind: str, steps: int) -> Tensor:
    spec = next(spec for spec in SHARED["every"] if name_of(spec) == name)
    return torch.tensor(losses(spec, precision=precision, kind=kind, steps=steps))


@cache
def of_two(which: str) -> dict[str, list]:
    """The losses in two processes, by layer, sharding, precision and optimizer."""
    runs = [f"{shard}:{precision}:{kind}" for shard, precision, kind, _ in RUNS[which]]
    ended = finish(start([Path(__file__).parent / "shared_training.py", which, *runs], 2), timeout_s=600)
    assert [code for code, _, _ in ended] == [0, 0], ended
    first, second = (json.loads(out) for _, out, _ in ended)
    assert first == second
    return first


@pytest.mark.parametrize(("which", "example", "shard", "precision", "kind", "tolerance"), CASES)
def test_two_processes_give_the_losses_of_one(
    which: str, example: SublayerSpec, shard: int, precision: str, kind: str, tolerance: float
):
    """With replicated and with sharded weights; for layers and for an encoder-decoder."""
    found = torch.tensor(of_two(which)[f"{name_of(example)} {shard} {precision} {kind}"])
    expected = of_one(name_of(example), precision, kind, STEPS[which])
    if precision != "float64":
        found, expected = found[:, 0], expected[:, 0]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
