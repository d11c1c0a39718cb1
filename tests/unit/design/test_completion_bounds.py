"""The joint metric of several limits: a valid constraint, and a tighter bound than each limit alone."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.design.completion_bounds import CompletionBound, joint_metric, limited_metrics, multipliers
from linnet.design.cost_tables import build_cost_tables
from linnet.design.metrics import CostCounts
from linnet.design.scores import SCORES, ScoreSettings
from linnet.design.space import load_space

METRICS = [CostCounts(64).metric("flops"), CostCounts(1).metric("parameters"), CostCounts(1).metric("state@64")]
shares = st.tuples(*[st.sampled_from([0.05, 0.2, 0.5, 0.9])] * 3)


@settings(max_examples=25)
@given(shares, st.sampled_from(["entropy", "penalized_parameters"]))
def test_every_model_within_the_limits_is_within_the_limit_of_the_sum(small_space, shares, score: str):
    tables = build_cost_tables(small_space(), METRICS, SCORES[score], ScoreSettings())
    everything = np.array(list(product(range(len(tables.width_B)), repeat=2)))
    values = tables.evaluate(everything).metrics_CM
    limits_M = np.array([np.quantile(values[:, m], share) for m, share in enumerate(shares)])
    within = everything[(values <= limits_M).all(1)]
    outer = np.full((len(within), 1), tables.outer)
    path = np.hstack([outer, tables.width_B[within], outer])
    for joint in joint_metric(tables, limited_metrics(tables, limits_M)):
        sums = joint.cost_B[within].sum(1) + joint.join_WW[path[:, :-1], path[:, 1:]].sum(1)
        assert (sums <= joint.limit * (1 + 1e-12)).all()


def test_the_joint_bound_is_lower_than_each_single_one():
    chosen = [CostCounts(1024).metric("flops"), CostCounts(1).metric("state@4096")]
    tables = build_cost_tables(load_space("merino"), chosen, SCORES["entropy"], ScoreSettings())
    limits_M = np.array([86.2e9, 163e6])
    singles = limited_metrics(tables, limits_M)
    alone = [_promised(CompletionBound(tables, np.where(np.arange(2) == m, limits_M, np.inf))) for m in range(2)]
    together = _promised(CompletionBound(tables, limits_M))
    assert (multipliers(tables, singles) > 0).all()
    assert 95_415 < together < 0.95 * min(alone)


def _promised(promise: CompletionBound) -> float:
    tables = promise.tables
    costs = np.zeros((1, len(promise.metrics)))
    zero = np.zeros(1)
    blocks, outer = tables.space.spec.blocks, np.array([tables.outer])
    return float(promise.of(blocks, outer, costs, np.array([tables.fixed_score]), zero + 1e-9, zero)[0])


@pytest.mark.parametrize("limits_M", [[np.inf, 2e4, np.inf], [1e6, 1.0, np.inf], [1e12, 1e12, 1e12]])
def test_no_joint_metric_if_it_would_add_nothing(small_space, limits_M):
    """One limit; a limit that cannot be met; limits that no model reaches."""
    tables = build_cost_tables(small_space(), METRICS, SCORES["entropy"], ScoreSettings())
    singles = limited_metrics(tables, np.array(limits_M))
    assert joint_metric(tables, singles) == []
