"""Distances in buckets, each with a bias of its own for every head (Raffel et al., "T5", arXiv 1910.10683, sec. 2.1).

Half of the buckets hold one distance each, the nearest; the others grow as logarithms do, to `furthest`, from which on
all distances are alike. Where tokens see both ways, half of all buckets are for what comes after the query.

Legend: `U` buckets, `N` heads, `T` queries, `S` keys, `L` offsets, which are `T + S - 1`.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def position_buckets(offsets: Tensor, buckets: int = 32, furthest: int = 128, both_ways: bool = False) -> Tensor:
    """The bucket of each offset, the key's position less the query's: int64, below `buckets`.

    With `both_ways` keys behind the query have buckets of their own; else they share that of the query's own key.
    """
    if not both_ways:
        return _of_distances((-offsets).clamp(min=0), buckets, furthest)
    half = buckets // 2
    return _of_distances(offsets.abs(), half, furthest) + half * (offsets > 0)


def _of_distances(distances: Tensor, buckets: int, furthest: int) -> Tensor:
    """In float32, in which the published models' limits between buckets came about."""
    exact = buckets // 2
    steps = (distances.clamp(min=1).float() / exact).log() / math.log(furthest / exact)
    wide = (exact + (steps * (buckets - exact)).long()).clamp(max=buckets - 1)
    return torch.where(distances < exact, distances, wide)


def bucket_bias_reference(weights_UN: Tensor, offsets: Tensor, furthest: int = 128, both_ways: bool = False) -> Tensor:
    """The definition: what is added to scores of these offsets `[..., T, S]`: `[..., N, T, S]`."""
    return weights_UN[position_buckets(offsets, len(weights_UN), furthest, both_ways)].movedim(-1, -3)


def bucket_bias(weights_UN: Tensor, offsets: Tensor, furthest: int = 128, both_ways: bool = False) -> Tensor:
    """The same. Offsets `[T, S]` must be those of queries and keys that stand one behind the other.

    Such have one entry on each diagonal, and so has their gradient: its sums take a pass over it, where adding the
    entries to their buckets one by one takes half of a layer's time (`experiments/LOG.md`).
    """
    if offsets.dim() > 2 or torch.compiler.is_compiling():
        return bucket_bias_reference(weights_UN, offsets, furthest, both_ways)
    offsets_L = torch.cat([offsets[:, 0].flip(0), offsets[0, 1:]])
    entries_NL = weights_UN[position_buckets(offsets_L, len(weights_UN), furthest, both_ways)].t()
    bias_NTS: Tensor = _AlongDiagonals.apply(entries_NL, len(offsets))  # type: ignore[no-untyped-call]
    return bias_NTS


class _AlongDiagonals(torch.autograd.Function):
    """`[N, L] -> [N, T, S]`: the first entry in the lower left corner, the last one in the upper right."""

    @staticmethod
    def forward(ctx: Any, entries_NL: Tensor, queries: int) -> Tensor:
        return entries_NL.unfold(-1, entries_NL.shape[-1] - queries + 1, 1).flip(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_bias_NTS: Tensor) -> tuple[Tensor, None]:
        """Rows that each begin one place later stand in columns where the diagonals were."""
        heads, queries, keys = of_bias_NTS.shape
        places = queries + keys - 1
        rows = of_bias_NTS.new_zeros(heads, queries * places)
        later_NTS = rows.as_strided(of_bias_NTS.shape, (queries * places, places - 1, 1), queries - 1)
        later_NTS.copy_(of_bias_NTS)
        return rows.view(heads, queries, places).sum(1), None


def check_buckets(buckets: int, furthest: int, both_ways: bool = False) -> None:
    """`ValueError` where buckets cannot be filled."""
    of_one_way = buckets // (2 if both_ways else 1)
    if of_one_way < 2 or (both_ways and buckets % 2):
        raise ValueError(f"buckets: {buckets}: must be {'an even number from 4' if both_ways else '2 or more'}")
    if furthest <= of_one_way // 2:
        raise ValueError(f"furthest: {furthest}: must be above {of_one_way // 2}, which have buckets of their own")
