"""Cost and score of every block of a space, computed once; the cost of a model is then a sum that takes microseconds.

Legend: `B` blocks of the space, `W` widths, `M` metrics, `N` blocks of a model, `C` candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.metrics import Metric
from linnet.design.scores import Part, Score, ScoreSettings, parts_of, penalty, unit_part, width_term
from linnet.design.space import Space
from linnet.model.cost import projection_cost


class CandidateScores(NamedTuple):
    """Scores `[C]` and metrics `[C, M]` of candidates."""

    score_C: Numbers
    metrics_CM: Numbers


@dataclass(frozen=True)
class CostTables:
    """Everything that determines the score and metrics of a model.

    width_B: index of each block's width among the widths; depth_B: its layers; term_B: its term of the model's width.
    join_*: cost of the projection between two widths. fixed_*: cost common to all models. outer: index of d_model.
    beta: strength of the penalty for depth.
    """

    space: Space
    metrics: tuple[Metric, ...]
    score: Score
    settings: ScoreSettings
    width_B: Indices
    depth_B: Numbers
    term_B: Numbers
    score_B: Numbers
    metrics_BM: Numbers
    join_score_WW: Numbers
    join_metrics_WWM: Numbers
    fixed_score: float
    fixed_metrics_M: Numbers
    outer: int
    beta: float

    def evaluate(self, candidates_CN: Indices) -> CandidateScores:
        widths = self.width_B[candidates_CN]
        outer = np.full((len(candidates_CN), 1), self.outer)
        before, after = np.hstack([outer, widths]), np.hstack([widths, outer])
        metrics_CM = self.fixed_metrics_M + self.metrics_BM[candidates_CN].sum(1)
        metrics_CM += self.join_metrics_WWM[before, after].sum(1)
        total_C = self.fixed_score + self.score_B[candidates_CN].sum(1) + self.join_score_WW[before, after].sum(1)
        depth_C, terms_CN = self.depth_B[candidates_CN].sum(1), self.term_B[candidates_CN]
        term_C = terms_CN.min(1) if self.settings.width == "minimum" else terms_CN.sum(1)
        return CandidateScores(total_C * self.penalty(depth_C, term_C), metrics_CM)

    def penalty(self, depth: Numbers, term: Numbers) -> Numbers:
        """Apply `scores.penalty` with these settings."""
        return penalty(depth, term, self.beta, self.settings.width)


def build_cost_tables(space: Space, metrics: Sequence[Metric], score: Score, settings: ScoreSettings) -> CostTables:
    """Measure and score each distinct block and each pair of widths."""
    model = space.model([0] * space.spec.blocks)
    parts = [unit_part(unit, model) for unit in space.units]
    widths = sorted({model.d_model, *(part.width for part in parts)})
    place = {width: index for index, width in enumerate(widths)}
    outside = [part for part in parts_of(model) if part.outside]

    of_blocks = np.array(
        [[sum(metric.of_block(block, model) for block in unit) for metric in metrics] for unit in space.units]
    )
    joins = np.array([[[metric.of_join(a, b) for metric in metrics] for b in widths] for a in widths])
    return CostTables(
        space,
        tuple(metrics),
        score,
        settings,
        width_B=np.array([place[part.width] for part in parts]),
        depth_B=np.array([float(part.depth) for part in parts]),
        term_B=np.array([width_term(part.depth, part.width, settings.width) for part in parts]),
        score_B=np.array([score.of_part(part, settings) for part in parts], dtype=np.float64),
        metrics_BM=of_blocks.reshape(len(parts), len(metrics)).astype(np.float64),
        join_score_WW=np.array(
            [
                [score.of_part(Part(0, b, (), (), projection_cost(a, b).parameters), settings) for b in widths]
                for a in widths
            ],
            dtype=np.float64,
        ),
        join_metrics_WWM=joins.reshape(len(widths), len(widths), len(metrics)).astype(np.float64),
        fixed_score=float(sum(score.of_part(part, settings) for part in outside)),
        fixed_metrics_M=np.array([float(metric.fixed(model)) for metric in metrics]),
        outer=place[model.d_model],
        beta=score.beta if settings.beta is None else settings.beta,
    )
