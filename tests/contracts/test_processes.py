"""Training in several processes equals training in one, for all kinds of layers."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from shared_training import SHARED, STEPS, losses, names_of
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

For the first example of each kind, several in one model, and (slow) for every one. In float64 rounding errors stay
small, and the gradient norms (clipped in float32) and the terms of the objective are compared as well. In bfloat16 the
gradient of each half of the batch is rounded, and then their sum.
"""

CASES = [
    pytest.param(which, examples, *run, id=f"{which}-{names_of(examples)}-{'-'.join(map(str, run[:3]))}", marks=marks)
    for which, marks in (("first", ()), ("every", pytest.mark.slow))
    for run in RUNS[which]
    for examples in SHARED[which]
]


@cache
def of_one(examples: tuple[SublayerSpec, ...], precision: str, kind: str, steps: int) -> Tensor:
    return torch.tensor(losses(examples, precision=precision, kind=kind, steps=steps))


@cache
def of_two(which: str) -> dict[str, list]:
    """The losses in two processes, by layer, sharding, precision and optimizer."""
    runs = [f"{shard}:{precision}:{kind}" for shard, precision, kind, _ in RUNS[which]]
    ended = finish(start([Path(__file__).parent / "shared_training.py", which, *runs], 2), timeout_s=600)
    assert [code for code, _, _ in ended] == [0, 0], ended
    first, second = (json.loads(out) for _, out, _ in ended)
    assert first == second
    return first


@pytest.mark.parametrize(("which", "examples", "shard", "precision", "kind", "tolerance"), CASES)
def test_two_processes_give_the_losses_of_one(
    which: str, examples: tuple[SublayerSpec, ...], shard: int, precision: str, kind: str, tolerance: float
):
    """With replicated and with sharded weights; for layers and for an encoder-decoder."""
    found = torch.tensor(of_two(which)[f"{names_of(examples)} {shard} {precision} {kind}"])
    expected = of_one(examples, precision, kind, STEPS[which])
    if precision != "float64":
        found, expected = found[:, 0], expected[:, 0]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
