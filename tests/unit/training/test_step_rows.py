"""Loss and gradients of a set of conversations: one number, however they are batched, padded, packed and divided."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps_of_rows import (
    LENGTHS,
    MIXERS,
    WEIGHTS,
    Step,
    conversations,
    definition,
    packed_batches,
    step,
)

from linnet.data.loader import Batch, Batches, document_rows
from linnet.data.shards import TokenSequence
from several import finish, start

SETS = st.tuples(st.lists(st.integers(2, 12), min_size=1, max_size=6), st.integers(0, 9))
"""Targets of each conversation, and a seed."""


def assert_same(found: Step, expected: Step) -> None:
    assert found.tokens == expected.tokens
    assert (found.loss, found.nats) == pytest.approx((expected.loss, expected.nats), rel=1e-10)
    for mine, wanted in zip(found.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-7, atol=1e-9)


def weighted(sequence: TokenSequence, weights: str) -> TokenSequence:
    chosen = WEIGHTS[weights]
    return sequence if chosen is None else chosen.applied(sequence)


def padded_rows(sequence: TokenSequence, parts: list[list[int]], more: int, apart: bool) -> list[Batch]:
    """The rows of each part as a batch, `more` wider than the longest row. apart: what fills a row up is so."""
    read = []
    for part in parts:
        rows = document_rows(sequence)
        batches = Batches(sequence, len(part), 64, 0, rows, document_starts=apart)
        order = batches.epoch(0)[0].tolist()
        read.append(batches.examples([order.index(int(rows.starts_N[row])) for row in part]))
        batch, width = read[-1], int(rows.lengths_N.max()) + more
        missing = width - batch.tokens.shape[1]
        wider = [torch.nn.functional.pad(x, (0, missing)) for x in (batch.tokens, batch.targets)]
        weights = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.weights is None else batch.weights
        starts = batch.document_starts and tuple(
            (*begins, *([width - missing] if missing and len(begins) == 1 else [])) for begins in batch.document_starts
        )
        read[-1] = Batch(*wider, torch.nn.functional.pad(weights, (0, missing)), starts)
    return read


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("weights", WEIGHTS)
@settings(max_examples=4, deadline=None)
@given(SETS, st.data())
def test_accumulation_order_and_padding_change_nothing(weights, mixer, chosen, data):
    plain = conversations(*chosen)
    order = data.draw(st.permutations(range(len(chosen[0]))))
    ends = sorted(data.draw(st.sets(st.integers(1, len(order)))) | {len(order)})
    parts = [list(order[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    batches = padded_rows(weighted(plain, weights), parts, data.draw(st.integers(0, 3)), mixer == "plga")
    assert_same(step(mixer, batches), definition(mixer, plain, WEIGHTS[weights]))


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("weights", WEIGHTS)
@settings(max_examples=4, deadline=None)
@given(SETS, st.integers(12, 30), st.integers(1, 3), st.integers(0, 9))
def test_packing_changes_nothing(weights, mixer, chosen, context, batch_size, seed):
    plain = conversations(*chosen)
    batches = packed_batches(weighted(plain, weights), context, batch_size, seed)
    assert_same(step(mixer, batches), definition(mixer, plain, WEIGHTS[weights]))


def test_two_processes_change_nothing():
    ended = finish(start([Path(__file__).parent / "steps_of_rows.py"], 2))
    assert [code for code, _, _ in ended] == [0, 0], ended
    plain = conversations(LENGTHS)
    for found in (json.loads(out) for _, out, _ in ended):
        for name, weights in WEIGHTS.items():
            expected = definition("attention", plain, weights).summary()
            assert found[f"{name}, rows"] == pytest.approx(expected, rel=1e-9, abs=1e-11)
            assert found[f"{name}, packed"] == pytest.approx(expected, rel=1e-9, abs=1e-11)
