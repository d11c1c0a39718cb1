"""Weights that are not trained: what is stored of them, and what a map multiplies by."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from linnet.nn.linear import Linear
from linnet.nn.low_rank import LowRankSum, frozen_parts, round_to_few_bits, store_in_few_bits
from linnet.ops.low_rank import dense


def adapted(linear: nn.Linear) -> LowRankSum:
    """Give a map a part of rank 2 that is not zero."""
    part = LowRankSum(linear.weight, 2, 4.0, torch.Generator().manual_seed(0))
    nn.init.normal_(part.up_OR)
    parametrize.register_parametrization(linear, "weight", part)
    return part


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_few_bits_are_buffers_and_the_weight_is_what_they_represent(bits: str):
    torch.manual_seed(0)
    linear = Linear(40, 24)
    before = linear.weight.detach()
    store_in_few_bits(linear, bits)
    assert [name for name, _ in linear.named_parameters()] == ["bias"]
    stored = linear.state_dict()
    assert sum(tensor.nbytes for name, tensor in stored.items() if name != "bias") < before.nbytes / 2
    assert torch.equal(linear.weight, dense(round_to_few_bits(before, bits)))
    assert 0 < float((linear.weight - before).abs().max()) < 0.05
    other = Linear(40, 24)
    store_in_few_bits(other, bits)
    other.load_state_dict(stored)
    assert torch.equal(other.weight, linear.weight)


@pytest.mark.parametrize("bits", [None, "int8", "int4"])
def test_a_part_can_be_switched_off(bits: str | None):
    torch.manual_seed(0)
    linear, x = Linear(40, 24), torch.randn(3, 40)
    assert frozen_parts(linear) is None and linear.factors() is linear.weight
    if bits is not None:
        store_in_few_bits(linear, bits)
    without = linear(x)
    part = adapted(linear)
    with_part, parts = linear(x), frozen_parts(linear)
    assert parts is not None and parts.up_Or is part.up_OR and parts.scale == 2.0
    torch.testing.assert_close(with_part - without, 2 * x @ part.down_RI.T @ part.up_OR.T, rtol=1e-4, atol=1e-4)
    part.is_on = False
    assert torch.equal(linear(x), without)
    assert (frozen_parts(linear) is None) == (bits is None)


def test_one_row_without_gradients_is_multiplied_by_the_parts_apart(monkeypatch: pytest.MonkeyPatch):
    linear = Linear(40, 24)
    adapted(linear)
    rows = [torch.randn(count, 40) for count in (1, 30)]
    expected = [linear(row).detach() for row in rows]
    sums = []
    monkeypatch.setattr("linnet.ops.low_rank.low_rank_sum", lambda parts: sums.append(parts) or linear.weight)
    with torch.no_grad():
        found = [linear(row) for row in rows]
    assert len(sums) == 1  # of the many rows
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
