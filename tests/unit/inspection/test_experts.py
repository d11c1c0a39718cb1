import json
import math

import pytest
import torch

from linnet.inspection.experts import ExpertUsage, LayerExpertUsage, expert_usage
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

FOUND = ExpertUsage(3, 8, [LayerExpertUsage(1, [0.5, 0.5, 0.0, 0.0]), LayerExpertUsage(2, [0.25] * 4)])


def small_decoder() -> Decoder:
    """The second of three layers has experts, and sends every token to the first and the third of four."""
    plain = {"mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 8}}
    mixed = {**plain, "feed_forward": {"kind": "experts", "hidden": 8, "experts": 4}}
    settings = {"vocab_size": 11, "d_model": 8, "context_length": 16, "blocks": [plain, mixed, plain]}
    decoder = Decoder(ModelSpec.parse(settings, "test"))
    router = decoder.layers[1].feed_forward.router
    router.forward = lambda x: torch.tensor([2.0, 0.0, 1.0, 0.0]).expand(*x.shape[:-1], 4)
    return decoder


def test_the_usage_by_its_definition():
    found = expert_usage(small_decoder(), torch.randint(11, (3, 8)))
    assert found == [LayerExpertUsage(1, [0.5, 0.0, 0.5, 0.0])]


def test_figures():
    (first, second) = json.loads(json.dumps(FOUND.to_dict()))["per_layer"]
    assert first["effective"] == pytest.approx(2) and second["effective"] == pytest.approx(4)
    assert (first["largest_load"], first["never_used"], first["layer"]) == (2.0, 2, 1)
    assert math.fsum(second["shares"]) == 1


def test_table_and_picture():
    (table,) = FOUND.tables()
    assert table.rows[0] == ("layer 1", "4", "2", "2", "0", "2")
    (picture,) = FOUND.plots()
    assert len(picture.drawing.panels) == 2
