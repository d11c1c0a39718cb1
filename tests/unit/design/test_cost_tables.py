"""Costs and scores from tables equal those of the models."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.design.cost_tables import build_cost_tables
from linnet.design.metrics import CostCounts
from linnet.design.scores import SCORES, ScoreSettings, parts_of, score
from linnet.design.space import load_space
from linnet.model.cost import model_cost

SPACE_NAMES = ("merino", "mixed")


@pytest.fixture(scope="module", params=SPACE_NAMES)
def space(request):
    return load_space(request.param)


def all_metrics(tokens: int = 100):
    return [
        CostCounts(tokens).metric("flops"),
        CostCounts(tokens, with_head=True).metric("flops"),
        CostCounts(1).metric("parameters"),
        CostCounts(1, dtype="float32").metric("weights"),
        CostCounts(1, dtype="int8").metric("weights"),
        CostCounts(1).metric("state@4096"),
        CostCounts(tokens, batch=8).metric("training_memory"),
    ]


def of_model(spec, tokens: int = 100):
    cost = model_cost(spec)
    return [
        cost.flops(tokens, with_head=False),
        cost.flops(tokens, with_head=True),
        cost.parameters,
        cost.weights_bytes("float32"),
        cost.weights_bytes("int8"),
        cost.state_bytes(4096, 4),
        cost.training_memory(8, tokens).total,
    ]


@pytest.mark.parametrize("width", ["mean", "geometric", "minimum"])
def test_costs_and_scores_of_candidates_are_those_of_their_models(space, width: str):
    draws = np.random.default_rng(0)
    candidates = draws.integers(0, len(space.plain), (4, space.spec.blocks))
    chosen = ScoreSettings(width=width, alpha=(0.7, 0.2), sigma=0.5)
    # The others do not depend on the width.
    names = ("entropy_beta_2", "penalized_parameters", "parameters") if width == "mean" else ("entropy_beta_2",)
    for name in names:
        asked = all_metrics() if name == "parameters" else []  # they depend on neither the score nor the width
        tables = build_cost_tables(space, asked, SCORES[name], chosen)
        evaluation = tables.evaluate(candidates)
        for row, candidate in enumerate(candidates):
            spec = space.model(candidate)
            assert evaluation.metrics_CM[row].tolist() == (of_model(spec) if asked else [])
            assert evaluation.score_C[row] == pytest.approx(score(parts_of(spec), name, chosen), rel=1e-12)


def test_a_metric_of_a_model_is_the_sum_over_its_parts(space):
    spec = space.model([3, 17, 5, 8][: space.spec.blocks])
    assert [metric.of_model(spec) for metric in all_metrics()] == of_model(spec)


@settings(max_examples=10)
@given(tokens=st.integers(1, 64), tied=st.booleans(), width=st.sampled_from([None, 8]))
def test_fields_common_to_all_models_are_counted(small_space, tokens: int, tied: bool, width: int | None):
    model = {"embedding": {"width": width, "positions": "learned"}, "head": {"tied": tied, "norm": {"kind": "rms"}}}
    space = small_space(model=model, block={"repeat": [1, 2], "ratio": 1})
    tables = build_cost_tables(space, all_metrics(tokens), SCORES["parameters"], ScoreSettings())
    candidates = np.array(list(product(range(len(space.plain)), repeat=2)))
    evaluation = tables.evaluate(candidates)
    for row in (0, 7, len(candidates) - 1):
        spec = space.model(candidates[row])
        assert evaluation.metrics_CM[row].tolist() == of_model(spec, tokens)
        assert evaluation.score_C[row] == model_cost(spec).parameters


def test_fields_of_training_recipes_are_counted(small_space):
    """Their costs belong to the parts that have them."""
    mixers = [{"kind": "attention", "heads": 2, "kv_heads": 1, "query_key_norm": {}, "value_residual": {}}]
    mixers += [{**mixers[0], "query_key_norm": {"kind": kind}, "window": 4} for kind in ("rms", "layer")]
    feed_forward = {"kind": "mlp", "activation": "relu_squared"}
    model = {"embedding": {"skip": True}, "head": {"soft_cap": 30.0}, "initialization": {"zero_outputs": True}}
    space = small_space(model=model, block={"width": 16, "mixer": mixers, "feed_forward": feed_forward})
    tables = build_cost_tables(space, all_metrics(), SCORES["parameters"], ScoreSettings())
    candidates = np.array(list(product(range(len(space.plain)), repeat=2)))
    evaluation = tables.evaluate(candidates)
    for row in range(0, len(candidates), 17):
        spec = space.model(candidates[row])
        assert evaluation.metrics_CM[row].tolist() == of_model(spec)
        assert sum(part.parameters for part in parts_of(spec)) == model_cost(spec).parameters


@settings(max_examples=30)
@given(st.data(), st.sampled_from([None, "rms", "layer"]), st.sampled_from([None, "rms", "layer"]))
def test_training_memory_is_an_upper_bound_for_any_sequence_of_norms(small_space, data, first, last):
    """The memory of an `rms` norm at the end of a block depends on the next block."""
    norms = {"kind": ["rms", "layer"], "placement": ["pre", "post", "output", "sandwich"]}
    model = {"embedding": {"norm": first and {"kind": first}}, "head": {"norm": last and {"kind": last}}}
    space = small_space(model=model, block={"norm": norms, "repeat": [1, 2], "ratio": 1, "width": [8, 16]})
    tables = build_cost_tables(
        space, [CostCounts(32, batch=4).metric("training_memory")], SCORES["parameters"], ScoreSettings()
    )
    candidate = data.draw(st.tuples(*[st.integers(0, len(space.plain) - 1)] * 2))
    predicted = tables.evaluate(np.array([candidate])).metrics_CM[0, 0]
    spec = space.model(candidate)
    exact = model_cost(spec).training_memory(4, 32).total
    ends = [(spec.d_model, first == "rms")]
    ends += [(block.width, block.norm.placement == "post" and block.norm.kind == "rms") for block in spec.blocks]
    assert exact <= predicted <= exact + 4 * 4 * 32 * sum(width for width, rms in ends if rms)


def test_values_are_formatted_with_units():
    assert CostCounts(10, with_head=True).metric("flops").format(6.0e10) == "60 G"
    assert CostCounts(1).metric("state@10").format(2**21) == "2 MiB"
