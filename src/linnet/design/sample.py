"""Stratified sample of a space: bands of equal size, with and without shared weights, from shallow to deep."""

from collections.abc import Sequence

import numpy as np

from linnet.core.arrays import Indices, Numbers
from linnet.core.errors import UserError
from linnet.design.cost_tables import build_cost_tables
from linnet.design.scores import SCORES, ScoreSettings
from linnet.design.space import Candidate, Space

DRAWN = 50_000
OUTER_SHARE = 0.1
"""Share of the smallest and of the largest models of each kind that lie outside all bands."""

TOLERANCE = 0.03
"""Relative tolerance of decoder parameters within a band."""


def shares_weights(space: Space, candidate: Sequence[int]) -> bool:
    """Return True if some block passes its weights more than once."""
    return any(block.share_weights and block.repeat > 1 for number in candidate for block in space.units[number])


def stratified_sample(space: Space, shapes: int, bands: int, seed: int) -> list[Candidate]:
    """Draw `shapes` models, equally many for each of `bands` numbers of decoder parameters in equal ratios.

    In each band half of the models share weights, if the space has both kinds, and each kind has one model from each
    part of the models sorted by depth over width. `UserError` if a band has too few.
    """
    draws = np.random.default_rng(seed)
    tables = build_cost_tables(space, [], SCORES["decoder_parameters"], ScoreSettings())
    drawn_CN = np.unique(draws.integers(0, len(space.plain), (DRAWN, space.spec.blocks)), axis=0)
    size_C = tables.evaluate(drawn_CN).score_C
    stretch_C = tables.depth_B[drawn_CN].sum(1) ** 2 / tables.term_B[drawn_CN].sum(1)
    shared_C = np.array([shares_weights(space, candidate) for candidate in drawn_CN])
    kinds = [kind for kind in (~shared_C, shared_C) if kind.any()]
    # Sizes that models of every kind have, in equal ratios.
    ends = [np.quantile(size_C[kind], [OUTER_SHARE, 1 - OUTER_SHARE]) for kind in kinds]
    levels = np.geomspace(max(end[0] for end in ends), min(end[1] for end in ends), bands)
    per_band = np.diff(np.linspace(0, shapes, bands + 1).round().astype(int))
    chosen: list[Indices] = []
    for level, count in zip(levels, per_band, strict=True):
        near_C = np.abs(size_C / level - 1) < TOLERANCE
        shares = np.diff(np.linspace(0, count, len(kinds) + 1).round().astype(int))
        for kind, share in zip(kinds, shares, strict=True):
            chosen.append(_spread(np.flatnonzero(near_C & kind), stretch_C, int(share), draws, level))
    return [tuple(int(block) for block in drawn_CN[row]) for row in np.concatenate(chosen)]


def _spread(rows: Indices, stretch_C: Numbers, count: int, draws: np.random.Generator, level: float) -> Indices:
    """Draw one row from each of `count` equal parts, sorted by depth over width."""
    if len(rows) < count:
        raise UserError(
            f"{count} models of about {level:,.0f} decoder parameters: the space has only {len(rows)}",
            field="shapes",
            accepted="fewer shapes, more bands, or a larger space",
        )
    parts = np.array_split(rows[np.argsort(stretch_C[rows], kind="stable")], count) if count else []
    return np.array([draws.choice(part) for part in parts], dtype=np.int64)
