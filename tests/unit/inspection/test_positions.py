import math

import pytest
import torch

from linnet.data.pieces import ByteCounts
from linnet.inspection.positions import (
    PositionLosses,
    RangeLoss,
    VariantLosses,
    measure_positions,
    position_ranges,
    variants,
)
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.present.style import png_of


def model(kind: str) -> Decoder:
    mixer = {"kind": kind, "heads": 1} | ({"metric_hidden": 4} if kind == "plga" else {})
    torch.manual_seed(0)
    return Decoder(ModelSpec(vocab_size=11, d_model=8, context_length=8, blocks=[{"mixer": mixer}])).double().eval()


def test_parts_cover_a_window_once():
    for trained, tokens in ((8, 64), (1, 8), (8, 8), (3, 50), (100, 1600)):
        parts = position_ranges(trained, tokens)
        assert [place for begin, end in parts for place in range(begin, end)] == list(range(tokens))
        assert tokens < trained or any(end == trained for _, end in parts)


@pytest.mark.parametrize("kind", ["attention", "retention", "plga"])
def test_the_parts_add_up_to_the_loss_of_the_windows(kind: str):
    decoder, windows_NT = model(kind), torch.randint(11, (3, 33))
    ways = variants(decoder.spec)
    assert len(ways) == 5
    found = measure_positions(
        decoder, windows_NT, ByteCounts.create([1] * 11).to("cpu"), ways, torch.randint(11, (1, 8))
    )
    sums = [sum(part.bits_per_byte * 3 * (part.end - part.begin) for part in one.ranges) * math.log(2) for one in found]
    if decoder.causal:
        whole = decoder(windows_NT[:, :-1], targets=windows_NT[:, 1:])
        assert sums[0] == pytest.approx(whole.nats.item())
    assert len(set(sums)) == 5


@pytest.mark.parametrize("error", [None, 0.1])
def test_pictures_and_tables_show_every_number(error):
    parts = [RangeLoss(0, 8, 2.0, error), RangeLoss(8, 16, 3.0, error), RangeLoss(16, 32, math.nan, None)]
    better = [*parts[:2], RangeLoss(16, 32, 2.5, error)]
    found = PositionLosses(8, 32, 2, [VariantLosses("as it is", parts), VariantLosses("YaRN", better)])
    (picture,) = found.plots()
    assert png_of(picture.drawing.figure()).startswith(b"\x89PNG")
    assert found.to_dict()["variants"][0]["parts"][2]["bits_per_byte"] is None
    (table,) = found.tables()
    assert [row[1] for row in table.rows] == ["1", "2", "4"] and table.rows[2][3].startswith("2.5000")
    within = PositionLosses(8, 8, 2, [VariantLosses("as it is", parts[:1])])
    assert within.conclusion() == ""
    three = PositionLosses(8, 16, 2, [VariantLosses("as it is", parts[:2]), VariantLosses("YaRN", better[:2])])
    assert three.conclusion().endswith("at the end of the windows 3.0000 as it is.")
