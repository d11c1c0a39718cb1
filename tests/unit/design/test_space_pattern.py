"""Patterns: several parts in the place of a block, repeated together."""

from itertools import product

import numpy as np
import pytest

from linnet.core.errors import UserError
from linnet.design import search
from linnet.design.cost_tables import build_cost_tables
from linnet.design.metrics import CostCounts
from linnet.design.scores import SCORES, ScoreSettings, parts_of
from linnet.design.space import Space, SpaceSpec, build_space
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec

PATTERN = [
    {"repeat": 3, "mixer": [{"kind": "ted", "heads": 1}, {"kind": "retention"}]},
    {"mixer": {"kind": "attention"}, "ratio": 1},
]


def described(**block: object) -> Space:
    """Two blocks, each of one or two groups of four layers, with two widths and two of the three mixers."""
    plain = {
        "model": {"vocab_size": 31, "d_model": 16, "context_length": 64},
        "blocks": 2,
        "block": {
            "width": [16, 24],
            "ratio": 2,
            "repeat": [1, 2],
            "head_width": 8,
            "feed_forward": {"kind": "mlp"},
            "pattern": PATTERN,
            **block,
        },
    }
    return build_space(SpaceSpec.parse(plain, "space"), "space")


def layers_of(model: ModelSpec) -> list[str]:
    return [block.mixer.kind for block in model.blocks for _ in range(block.repeat)]


def test_every_model_has_the_mixers_of_the_pattern_in_order():
    space = described()
    assert len(space.plain) == 2 * 2 * 2 and space.size == 64
    for candidate in product(range(8), repeat=2):
        layers = layers_of(space.model(candidate))
        for four in zip(*[iter(layers)] * 4, strict=True):
            assert four in {("ted",) * 3 + ("attention",), ("retention",) * 3 + ("attention",)}


def test_fields_of_a_part_override_those_of_the_block():
    first, second, *_ = described().model([0, 0]).blocks
    assert (first.width, second.width) == (16, 16)
    assert (first.feed_forward.hidden, second.feed_forward.hidden) == (32, 16)
    assert second.mixer.heads == 2


def test_the_repeats_of_a_part_may_be_choices():
    space = described(pattern=[{**PATTERN[0], "repeat": [1, 3, 7]}, PATTERN[1]], width=16, repeat=1)
    assert sorted({layers_of(space.model([n, n])).index("attention") for n in range(len(space.plain))}) == [1, 3, 7]


def test_costs_of_a_pattern_are_those_of_the_model():
    space, counting = described(), CostCounts(64, False, "float32", 2)
    metrics = [counting.metric(name) for name in ("flops", "parameters", "state@1000", "training_memory")]
    score = SCORES["penalized_parameters"]
    tables = build_cost_tables(space, [metric for metric in metrics if metric], score, ScoreSettings())
    for candidate in ((0, 7), (5, 2), (6, 6)):
        model, evaluation = space.model(candidate), tables.evaluate(np.array([candidate]))
        cost = model_cost(model)
        expected = [cost.flops(64, with_head=False), cost.parameters, cost.state_bytes(1000, 4)]
        assert evaluation.metrics_CM[0, :3].tolist() == expected
        layers = sum(part.depth for part in parts_of(model))
        assert tables.depth_B[list(candidate)].sum() == layers == len(layers_of(model))


@pytest.mark.parametrize("method", ["exact", "evolution"])
def test_a_search_under_a_state_budget_preserves_the_pattern(method: str):
    sizes = []
    for budget in (5e6, 40e6):
        found = search.design(
            "patterned", max_state={4096: budget}, method=method, settings={"search": {"iterations": 8}}
        )
        layers = layers_of(found.model)
        full = {"attention", "plga"}
        assert [layer in full for layer in layers] == [False, False, False, True] * (len(layers) // 4)
        assert model_cost(found.model).state_bytes(4096, 4) <= budget
        sizes.append(found.score)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"pattern": "ted"}, "space: block.pattern: 'ted': expected a list of parts of a block, as in"),
        ({"pattern": []}, r"space: block.pattern: \[\]: expected a list of parts"),
        ({"pattern": ["ted"]}, r"space: block.pattern: \['ted'\]: expected a list of parts"),
        ({"pattern": [{"mixer": {"kind": "ted"}, "width": 8}]}, "block.pattern.0.width: belongs to the block"),
        ({"pattern": [{"mixr": 1}]}, "space: block.pattern.0: mixr"),
        ({"share_weights": True}, "block.share_weights: belongs to a part of the pattern"),
        ({"repeat": [1, 0]}, "space: block.repeat: 0: must be a whole number greater than 0"),
        ({"repeat": 300}, "space: block.pattern.0: a pattern of 1,200 layers in all; must be at most 1,000"),
        ({"repeat": 10**9}, "a pattern of 4,000,000,000 layers in all"),
        ({"pattern": [{"repeat": 2}]}, "space: block.pattern.0: mixer: missing"),
        ({"pattern": [{"mixer": [{"kind": "ted", "heads": 5}, {"kind": "mamba"}]}]}, "block.mixer: ted: fits no block"),
    ],
)
def test_a_wrong_pattern_is_an_error(block: dict, message: str):
    with pytest.raises(UserError, match=message):
        described(**block)
