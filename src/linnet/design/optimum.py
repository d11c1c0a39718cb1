"""The true optimum of a space: a dynamic programme over the blocks of a model.

Beginnings of models are made longer, block by block. One is dropped where it cannot become better than a model that is
known already, even with the best of all endings that its width and what it left of each limit allow: each limit taken
for itself (`endings`), and a sum of all (`joint`). One is dropped, too, where another is as good in all that counts
(`dominance`). What is never dropped without such a proof contains the optimum.

Legend: `B` blocks of the space, `M` limited metrics, `L` labels (beginnings of models).
"""

from dataclasses import dataclass, fields

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.design.cost_tables import CostTables
from linnet.design.dominance import margins, needed
from linnet.design.endings import ROUNDING, CompletionBound
from linnet.design.space import Candidate
from linnet.present.progress import Advance

MOST_LABELS = 2_000_000
MOST_BEGINNINGS = 12_000_000
"""Looked at before the proof is given up: about ten seconds of one core."""
AT_ONCE = 500_000
BEAM = 2_000
"""Beginnings kept at each step on the way to the first model that is known; fewer where there are many blocks."""
SLACK = 1e-9
"""Relative; what is dropped is worse by more than rounding."""


class TooLargeError(Exception):
    """There are more beginnings than fit into memory or into some seconds, so the optimum is not known."""


@dataclass(frozen=True)
class Optimum:
    """The model of the highest score within the limits, and how many beginnings of models were looked at."""

    candidate: Candidate
    score: float
    beginnings: int


@dataclass(frozen=True)
class Labels:
    """Beginnings of models: blocks `[L, blocks so far]`, costs `[L, M]`, width reached, sums so far, promise."""

    models: Indices
    costs: Numbers
    width: Indices
    score: Numbers
    depth: Numbers
    term: Numbers
    promise: Numbers

    def at(self, rows: Indices) -> "Labels":
        """Some of them."""
        return Labels(*(getattr(self, f.name)[rows] for f in fields(self)))

    def beside(self, other: "Labels") -> "Labels":
        """Both."""
        return Labels(*(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)))


def optimum(
    tables: CostTables, limits_M: Numbers, known: float = -np.inf, advance: Advance = lambda *_: None
) -> Optimum | None:
    """The best model within the limits; None where there is none. `known`: a score that some model is known to have.

    `advance` hears of the beginnings that are looked at. Raises `TooLargeError`.
    """
    programme = _Programme(tables, limits_M, advance)
    ways = 4 * len(tables.width_B) * tables.space.spec.blocks
    first = programme.run(known, beam=max(1, min(BEAM, MOST_BEGINNINGS // ways)))
    if first is not None:
        known = max(known, first.score)
    found = programme.run(known, beam=None)
    return found and Optimum(found.candidate, found.score, programme.beginnings)


class _Programme:
    def __init__(self, tables: CostTables, limits_M: Numbers, advance: Advance) -> None:
        self.tables, self.promise = tables, CompletionBound(tables, limits_M)
        self.limits_M, self.advance = limits_M, advance
        self.costs_BM = np.stack([metric.cost_B for metric in self.promise.metrics], axis=1)
        self.joins_WWM = np.stack([metric.join_WW for metric in self.promise.metrics], axis=2)
        limited = self.promise.metrics[: self.promise.limited]
        self.margin_M = margins(
            [np.append(metric.cost_B, metric.join_WW) for metric in limited], [m.limit for m in limited], ROUNDING
        )
        self.beginnings, self.most = 0, MOST_BEGINNINGS

    def run(self, known: float, beam: int | None) -> Optimum | None:
        """All beginnings that promise at least `known`, or only the `beam` most promising at each step."""
        labels, self.most = self._nothing(), self.beginnings + MOST_BEGINNINGS
        for missing in range(self.tables.space.spec.blocks - 1, -1, -1):
            labels = self._longer(labels, missing, known - SLACK * abs(known) if known > -np.inf else known, beam)
            if beam is None and missing:
                labels = self._needed(labels)
        return self._best(labels)

    def _needed(self, labels: Labels) -> Labels:
        """Those that no other makes needless."""
        compared, margins_K = [-labels.score[:, None], labels.costs[:, : len(self.margin_M)]], [0.0, *self.margin_M]
        if self.tables.beta:
            compared += [labels.depth[:, None], -labels.term[:, None]]
            margins_K += [0.0, 0.0]
        return labels.at(needed(labels.width, np.hstack(compared), np.array(margins_K)))

    def _nothing(self) -> Labels:
        """The beginning without a block."""
        term = np.inf if self.tables.settings.width == "minimum" else 0.0
        return Labels(
            models=np.zeros((1, 0), dtype=np.int64),
            costs=np.zeros((1, self.costs_BM.shape[1])),
            width=np.array([self.tables.outer]),
            score=np.array([self.tables.fixed_score]),
            depth=np.zeros(1),
            term=np.array([term]),
            promise=np.array([np.inf]),
        )

    def _longer(self, labels: Labels, missing: int, known: float, beam: int | None) -> Labels:
        """Each label with each block behind it, as far as that may become `known` or better."""
        step = max(1, AT_ONCE // len(self.costs_BM))
        found: Labels | None = None
        for start in range(0, len(labels.promise), step):
            part = self._with_each_block(labels.at(np.arange(start, min(start + step, len(labels.promise)))), missing)
            self.beginnings += len(part.promise)
            self.advance(len(part.promise))
            kept = part.at(np.flatnonzero((part.promise >= known) & (part.promise > -np.inf)))
            found = kept if found is None else found.beside(kept)
            if beam is not None and len(found.promise) > beam:
                found = found.at(np.argpartition(-found.promise, beam)[:beam])
            if len(found.promise) > MOST_LABELS or (beam is None and self.beginnings > self.most):
                raise TooLargeError
        return found if found is not None else labels

    def _with_each_block(self, labels: Labels, missing: int) -> Labels:
        tables, blocks = self.tables, len(self.costs_BM)
        row, block = np.divmod(np.arange(len(labels.promise) * blocks), blocks)
        before, width = labels.width[row], tables.width_B[block]
        models = np.hstack([labels.models[row], block[:, None]])
        costs = labels.costs[row] + self.joins_WWM[before, width] + self.costs_BM[block]
        score = labels.score[row] + tables.join_score_WW[before, width] + tables.score_B[block]
        depth = labels.depth[row] + tables.depth_B[block]
        terms = labels.term[row], tables.term_B[block]
        term = np.minimum(*terms) if tables.settings.width == "minimum" else terms[0] + terms[1]
        promise = self.promise.of(missing, width, costs, score, depth, term)
        return Labels(models, costs, width, score, depth, term, promise)

    def _best(self, labels: Labels) -> Optimum | None:
        """Of complete models, evaluation anew so that no rounding lets one past a limit."""
        if not len(labels.promise):
            return None
        evaluation = self.tables.evaluate(labels.models)
        within = (evaluation.metrics_CM <= self.limits_M).all(1)
        if not within.any():
            return None
        row = int(np.where(within, evaluation.score_C, -np.inf).argmax())
        return Optimum(tuple(int(b) for b in labels.models[row]), float(evaluation.score_C[row]), self.beginnings)
