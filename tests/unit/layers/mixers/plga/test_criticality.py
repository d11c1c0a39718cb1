"""The figures of criticality against cases that can be computed by hand, and of a small model."""

import json
import math

import pytest
import torch
from small_models import inspected, small_decoder

from linnet.layers.mixers.plga import DensitySpec, PlgaSpec
from linnet.layers.mixers.plga.criticality import (
    TextDependence,
    criticality,
    not_commuting,
    numerical_ranks,
    order_parameter,
    rotary_commutant,
)
from linnet.layers.mixers.plga.operator import OUTPUTS
from linnet.layers.rotary import RotarySpec
from linnet.ops.rotary import rotary_range, rotate

PLGA = PlgaSpec(heads=2, metric_hidden=12, residual_units=2)
ADJACENT, HALVES, QUARTER = RotarySpec(pairing="adjacent"), RotarySpec(), RotarySpec(fraction=0.5)


def _documents(count: int = 3, tokens: int = 8) -> torch.Tensor:
    documents = torch.randint(1, 23, (count, tokens), generator=torch.Generator().manual_seed(3))
    documents[:, 0] = 0
    return documents


def test_the_order_parameter_matches_cases_by_hand():
    found = order_parameter(torch.tensor([3.0, 3.0]), torch.tensor([1.0, 1.0]))
    assert (found.rms, found.signed) == (pytest.approx(2 / 2), pytest.approx(2 / 3))
    cancelled = order_parameter(torch.tensor([1.0, -1.0]), torch.tensor([1.0, -1.0]))
    assert cancelled.rms == 0 and math.isnan(cancelled.signed)
    opposite = order_parameter(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, 1.0]))
    assert opposite.rms == 2 and opposite.signed == math.inf
    assert TextDependence(opposite, {}).figures() == {"rms": 2.0, "signed": None, "per_layer": []}


def test_ranks_match_cases_by_hand():
    outer = torch.outer(torch.arange(1.0, 5.0), torch.arange(1.0, 5.0)).double()
    near = torch.diag(torch.tensor([1.0, 1.0, 3 * 1.2e-7, 5 * 1.2e-7], dtype=torch.float64))
    assert numerical_ranks(torch.stack([outer, torch.eye(4).double(), near])) == [1, 4, 3]
    assert numerical_ranks(torch.full((1, 4, 4), math.nan)) == [None]


@pytest.mark.parametrize("rotary", [ADJACENT, HALVES, QUARTER])
def test_the_commutant_commutes_with_the_rotation_of_every_position(rotary: RotarySpec):
    g_HKK = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept_HKK = rotary_commutant(g_HKK, rotary)
    table = rotary_range(0, 50, rotary.width(8), rotary.base, torch.device("cpu"), None)
    rows_1TNK = torch.eye(8, dtype=torch.float64)[None, None].expand(1, 50, 8, 8)
    turns_TKK = rotate(rows_1TNK, table, rotary.pairing)[0]
    for turn_KK in turns_TKK:
        torch.testing.assert_close(kept_HKK @ turn_KK, turn_KK @ kept_HKK, rtol=0, atol=1e-6)
    torch.testing.assert_close(rotary_commutant(kept_HKK, rotary), kept_HKK)
    rest_HKK = g_HKK - kept_HKK
    assert float((rest_HKK * kept_HKK).sum().abs()) < 1e-9, "the nearest: what is left stands at a right angle"


def test_the_share_that_does_not_commute_matches_cases_by_hand():
    turn = torch.tensor([[3.0, -4.0], [4.0, 3.0]])
    mirror = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    assert not_commuting(torch.stack([turn, mirror, turn + 5 * mirror]), ADJACENT) == [
        0.0, 1.0, pytest.approx(math.sqrt(0.5))
    ]  # fmt: skip
    between = torch.zeros(1, 4, 4)
    between[0, 0, 2] = 1
    assert not_commuting(between, ADJACENT) == [1.0] and not_commuting(between, None) == [0.0]
    assert not_commuting(torch.eye(4)[None], HALVES) == [0.0]
    assert math.isnan(not_commuting(torch.zeros(1, 4, 4), HALVES)[0])


def test_a_small_model():
    documents = _documents()
    model = inspected(small_decoder(PLGA))
    found = criticality(model, documents)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(plain["between_texts"]) == list(OUTPUTS) and (plain["documents"], plain["tokens"]) == (3, 8)
    a = [model.auxiliary_outputs(document[None])[1]["A"][0] for document in documents]
    pairs = [order_parameter(a[0], a[1]).rms, order_parameter(a[1], a[2]).rms]
    assert found.between_texts["A"].layers[1].rms == pytest.approx(sum(pairs) / 2)
    halves = [model.auxiliary_outputs(document[None, :4])[0]["G"][0] for document in documents]
    whole = [model.auxiliary_outputs(document[None])[0]["G"][0] for document in documents]
    recomputed = [order_parameter(*pair).signed for pair in zip(halves, whole, strict=True)]
    assert found.recomputed["G"].layers[0].signed == pytest.approx(sum(recomputed) / 3)
    assert found.one_block == pytest.approx(float(model.losses(documents).mean()))
    first = [float(model.losses(document[None, :2])) for document in documents]
    one_by_one = [float(model.losses(document[None, :end])[0, -1]) for document in documents for end in range(3, 9)]
    assert found.sequential == pytest.approx(sum(first + one_by_one) / 21)
    assert [len(table.rows) for table in found.tables()] == [12, 2, 3]


def test_a_causal_operator_reads_alike_in_one_block_and_token_by_token():
    found = criticality(
        inspected(small_decoder(PLGA.model_copy(update={"density": DensitySpec(scope="prefix")}))), _documents()
    )
    assert found.sequential == pytest.approx(found.one_block, rel=1e-9)
    assert all(dependence.overall.rms == 0 for dependence in found.recomputed.values())


def test_a_model_without_rotary_positions_commutes():
    found = criticality(inspected(small_decoder(PLGA.model_copy(update={"rotary": None}))), _documents())
    assert all(layer.not_commuting == [0.0, 0.0] for layer in found.layers)
