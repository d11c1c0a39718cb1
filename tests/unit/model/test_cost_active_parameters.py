"""What one token uses of a model with experts."""

import json
import re

import pytest

from linnet.cli.main import main
from linnet.design import search
from linnet.design.space import load_space
from linnet.model.cost import model_cost
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.scaling.counts import parameter_counts

IDLE = 2 * 6 * 3 * 128 * 480
"""Of tiny-experts: of two layers each six experts, of three maps."""

SPACE = """
name: mixture
model: {vocab_size: 64, d_model: 32, context_length: 32}
blocks: 2
block:
  mixer: {kind: ted}
  ratio: [0.5, 1, 2]
  feed_forward: {kind: experts, experts: [1, 2, 4], top_k: [1, 2]}
"""


def vectors(model: ModelSpec) -> int:
    """Parameters that are no matrices."""
    return sum(p.numel() for name, p in Decoder(model).named_parameters() if p.dim() < 2)


def test_spec_show_tells_both(capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "show", "tiny-experts", "--json"]) == 0
    parameters = json.loads(capsys.readouterr().out)["parameters"]
    assert parameters["total"] - parameters["active"] == IDLE
    assert main(["spec", "show", "tiny-experts"]) == 0
    assert re.search(f"used by one token +{parameters['active']:,}", capsys.readouterr().out)
    assert main(["spec", "show", "tiny-attention"]) == 0
    assert "used by one token" not in capsys.readouterr().out


def test_experts_cost_the_flops_of_those_that_a_token_passes():
    model = ModelSpec.load("tiny-experts")
    (block,) = model.blocks
    dense = block.model_copy(update={"feed_forward": block.feed_forward.model_copy(update={"experts": 2})})
    routers = 2 * 2 * 128 * (8 - 2)
    few = model_cost(model.replace(blocks=[dense]))
    assert model_cost(model).flops_per_token(64, True) == few.flops_per_token(64, True) + routers
    assert few.active_parameters == few.parameters


def test_the_matrices_that_a_token_is_multiplied_by():
    model = ModelSpec.load("tiny-experts")
    counts, cost = parameter_counts(model), model_cost(model)
    assert (counts.total, counts.stored) == (cost.active_parameters, cost.parameters)
    assert counts.total - counts.matrices_and_head == vectors(model)


def test_a_search_keeps_to_active_parameters_and_leaves_out_what_cannot_be(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    space = load_space(tmp_path / "space.yaml", (), None)
    found = search.design(tmp_path / "space.yaml", max_active_parameters=20_000, method="exact")
    cost = model_cost(found.model)
    assert cost.active_parameters <= 20_000
    assert all(block.feed_forward.top_k <= block.feed_forward.experts for block in space.described)
