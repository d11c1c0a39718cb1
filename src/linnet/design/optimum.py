"""The true optimum of a space, by dynamic programming over the blocks of a model.

Partial models are extended block by block. One is pruned if even its best completion (`completion_bounds`) cannot beat
a known model, or if another of the same width is as good in everything that counts (`feasibility.non_dominated`). What
is never pruned without such a proof contains the optimum.

Legend: `B` blocks of the space, `M` limited metrics, `L` labels (partial models), `K` compared columns.
"""

from dataclasses import dataclass, fields

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.completion_bounds import ROUNDING, CompletionBound
from linnet.design.cost_tables import CostTables
from linnet.design.feasibility import MAX_COMPARISONS, margins, non_dominated_by_width
from linnet.design.space import Candidate
from linnet.present.progress import Advance

MAX_LABELS = 2_000_000
MAX_PREFIXES = 12_000_000
"""Partial models examined before the proof is abandoned: about ten seconds of one core."""
AT_ONCE = 500_000
BEAM = 2_000
"""Partial models kept at each step while searching the first known model; fewer if there are many blocks."""
SLACK = 1e-9
"""Relative; what is pruned is worse by more than rounding."""


class TooLargeError(Exception):
    """There are more partial models than fit in memory or a few seconds, so the optimum is not known."""


@dataclass(frozen=True)
class Optimum:
    """The model with the highest score within the limits, and the number of partial models examined."""

    candidate: Candidate
    score: float
    examined: int


@dataclass(frozen=True)
class Labels:
    """Partial models: blocks `[L, blocks so far]`, costs `[L, M]`, width reached, sums so far, upper bound."""

    models: Indices
    costs: Numbers
    width: Indices
    score: Numbers
    depth: Numbers
    term: Numbers
    bound: Numbers

    def at(self, rows: Indices) -> "Labels":
        return Labels(*(getattr(self, f.name)[rows] for f in fields(self)))


def optimum(
    tables: CostTables, limits_M: Numbers, known: float = -np.inf, advance: Advance = lambda *_: None
) -> Optimum | None:
    """Return the best model within the limits, or None if there is none.

    known: a score that some model is known to reach. advance: called with the number of partial models examined. Raises
    `TooLargeError`.
    """
    program = _Program(tables, limits_M, advance)
    children = 4 * len(tables.width_B) * tables.space.spec.blocks
    first = program.run(known, beam=max(1, min(BEAM, MAX_PREFIXES // children)))
    if first is not None:
        known = max(known, first.score)
    found = program.run(known, beam=None)
    return found and Optimum(found.candidate, found.score, program.examined)


class _Program:
    def __init__(self, tables: CostTables, limits_M: Numbers, advance: Advance) -> None:
        self.tables, self.bound = tables, CompletionBound(tables, limits_M)
        self.limits_M, self.advance = limits_M, advance
        self.costs_BM = np.stack([metric.cost_B for metric in self.bound.metrics], axis=1)
        self.joins_WWM = np.stack([metric.join_WW for metric in self.bound.metrics], axis=2)
        limited = self.bound.metrics[: self.bound.limited]
        self.margin_M = margins(
            [np.append(metric.cost_B, metric.join_WW) for metric in limited], [m.limit for m in limited], ROUNDING
        )
        self.examined, self.most = 0, MAX_PREFIXES

    def run(self, known: float, beam: int | None) -> Optimum | None:
        """Extend all partial models whose bound is at least `known`, or only the `beam` best at each step.

        Returns the best complete model within the limits, or None if there is none.
        """
        self.most = self.examined + MAX_PREFIXES
        labels = Labels(
            models=np.zeros((1, 0), dtype=np.int64),
            costs=np.zeros((1, self.costs_BM.shape[1])),
            width=np.array([self.tables.outer]),
            score=np.array([self.tables.fixed_score]),
            depth=np.zeros(1),
            term=np.array([np.inf if self.tables.settings.width == "minimum" else 0.0]),
            bound=np.array([np.inf]),
        )
        for missing in range(self.tables.space.spec.blocks - 1, -1, -1):
            labels = self._extended(labels, missing, known - SLACK * abs(known) if known > -np.inf else known, beam)
            if beam is None and missing:
                compared = [-labels.score[:, None], labels.costs[:, : len(self.margin_M)]]
                margins_K = [0.0, *self.margin_M]
                if self.tables.beta:
                    compared += [labels.depth[:, None], -labels.term[:, None]]
                    margins_K += [0.0, 0.0]
                rows = non_dominated_by_width(labels.width, np.hstack(compared), np.array(margins_K), MAX_COMPARISONS)
                labels = labels.at(np.sort(rows))
        if not len(labels.bound):
            return None

        # Complete models are evaluated again, so that rounding lets none past a limit.
        evaluation = self.tables.evaluate(labels.models)
        within = (evaluation.metrics_CM <= self.limits_M).all(1)
        if not within.any():
            return None
        row = int(np.where(within, evaluation.score_C, -np.inf).argmax())
        return Optimum(tuple(int(b) for b in labels.models[row]), float(evaluation.score_C[row]), self.examined)

    def _extended(self, labels: Labels, missing: int, known: float, beam: int | None) -> Labels:
        """Append each block to each label and keep what may still reach `known`."""
        step = max(1, AT_ONCE // len(self.costs_BM))
        found: Labels | None = None
        for start in range(0, len(labels.bound), step):
            part = self._with_each_block(labels.at(np.arange(start, min(start + step, len(labels.bound)))), missing)
            self.examined += len(part.bound)
            self.advance(len(part.bound))
            promising = part.at(np.flatnonzero((part.bound >= known) & (part.bound > -np.inf)))
            if found is None:
                found = promising
            else:
                both = ([getattr(found, f.name), getattr(promising, f.name)] for f in fields(promising))
                found = Labels(*(np.concatenate(arrays) for arrays in both))
            if beam is not None and len(found.bound) > beam:
                found = found.at(np.argpartition(-found.bound, beam)[:beam])
            if len(found.bound) > MAX_LABELS or (beam is None and self.examined > self.most):
                raise TooLargeError
        return found if found is not None else labels

    def _with_each_block(self, labels: Labels, missing: int) -> Labels:
        tables, blocks = self.tables, len(self.costs_BM)
        row, block = np.divmod(np.arange(len(labels.bound) * blocks), blocks)
        before, width = labels.width[row], tables.width_B[block]
        models = np.hstack([labels.models[row], block[:, None]])
        costs = labels.costs[row] + self.joins_WWM[before, width] + self.costs_BM[block]
        score = labels.score[row] + tables.join_score_WW[before, width] + tables.score_B[block]
        depth = labels.depth[row] + tables.depth_B[block]
        terms = labels.term[row], tables.term_B[block]
        term = np.minimum(*terms) if tables.settings.width == "minimum" else terms[0] + terms[1]
        return Labels(
            models, costs, width, score, depth, term, self.bound.of(missing, width, costs, score, depth, term)
        )
