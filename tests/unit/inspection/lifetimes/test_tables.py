"""Lifetimes as people read them."""

import math

import pytest
import torch

from linnet.inspection.lifetimes.folder import Lifetimes
from linnet.inspection.lifetimes.steps import json_steps, steps, whole_steps
from linnet.inspection.lifetimes.tables import lifetimes_tables
from linnet.inspection.lifetimes.text import LayerLifetimes, TextLifetimes
from linnet.inspection.lifetimes.vocabulary import Vocabulary, follow
from linnet.ops.decay.eviction import half_lives, lifetimes


def _vocabulary(rates: list[float]) -> Vocabulary:
    rates_V1 = torch.tensor(rates, dtype=torch.float64)[:, None]
    norms_V1 = torch.ones_like(rates_V1)
    ends, halves = lifetimes(norms_V1, rates_V1, 1e-8), half_lives(norms_V1, rates_V1)
    return Vocabulary(1e-8, [f"'{n}'" for n in range(len(rates))], norms_V1, rates_V1, ends, halves)


@pytest.mark.parametrize(
    ("value", "whole", "half", "json"),
    [
        (0.0, "0", "0", 0),
        (0.2310, "0", "0.231", 0),
        (12.0, "12", "12.0", 12),
        (1234.0, "1,234", "1,234", 1234),
        (3.21e12, "3.21e+12", "3.21e+12", 3_210_000_000_000),
        (4e46, "4e+46", "4e+46", 4e46),
        (math.inf, "endless", "endless", None),
    ],
)
def test_steps(value: float, whole: str, half: str, json: object):
    assert (whole_steps(value), steps(value), json_steps(value)) == (whole, half, json)
    assert isinstance(json_steps(value), type(json)), "not so many digits that nobody knows"


def test_the_whole_vocabulary_where_it_is_small():
    vocabulary = _vocabulary([1.0, 0.0, 0.001, 20.0])
    table, curves = lifetimes_tables(Lifetimes(1e-8, None, vocabulary, follow(vocabulary, [2, 3]), None), entries=2)
    assert table.rows == [
        ("'1'", "1", "endless", "endless", "1.00"),
        ("'2'", "2", "18,421", "693", "1.00"),
        ("'0'", "0", "19", "0.693", "1.00"),
        ("'3'", "3", "1", "0.0347", "1.00"),
    ]
    assert "below 1e-8" in table.meaning
    assert curves.columns == (
        "entry",
        "lifetime",
        "after 0",
        "after 1",
        "after 10",
        "after 100",
        "after 1 k",
        "after 10 k",
    )
    assert curves.rows[0] == ("'2'", "18,421", "1", "0.999", "0.99", "0.905", "0.368", "4.54e-05")
    assert curves.rows[1][:5] == ("'3'", "1", "1", "2.06e-09", "1.38e-87")


def test_the_longest_and_the_shortest_lives_of_a_large_vocabulary():
    vocabulary = _vocabulary([(n + 1) / 100 for n in range(100)])
    longest, shortest = lifetimes_tables(Lifetimes(1e-8, None, vocabulary, None, None), entries=3)
    assert [row[0] for row in longest.rows] == ["'0'", "'1'", "'2'"]
    assert [row[0] for row in shortest.rows] == ["'99'", "'98'", "'97'"], "the shortest first"
    assert "all 100 entries the median is 37, the 90th percentile 168" in longest.meaning


def test_layers():
    lives = torch.tensor([[0.0, 9.0, 2.0, math.inf]], dtype=torch.float64)
    text = TextLifetimes(1, 4, [LayerLifetimes(2, lives, lives / 7)])
    (table,) = lifetimes_tables(Lifetimes(1e-4, "the reason", None, None, text))
    assert table.rows == [("layer 2", "2", "endless", "0.286", "25.0%", "50.0%", "1.5")]
    assert "1 window of 4 tokens" in table.meaning and "below 1e-4" in table.meaning
    assert "; 2.5 if it drops nothing" in table.meaning
