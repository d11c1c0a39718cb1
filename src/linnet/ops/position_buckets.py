"""Distances in buckets, each with a bias of its own for every head (Raffel et al., "T5", arXiv 1910.10683, sec. 2.1).

Half of the buckets hold one distance each, the nearest; the others grow as logarithms do, to `furthest`, from which on
all distances are alike. Where tokens see both ways, half of all buckets are for what comes after the query.

Legend: `U` buckets, `N` heads, `T` queries, `S` keys.
"""

import math

import torch
from torch import Tensor


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


def bucket_bias(
    weights_UN: Tensor, queries: int, keys: int, past: int = 0, furthest: int = 128, both_ways: bool = False
) -> Tensor:
    """What is added to scores, `[N, T, S]`: query `t` stands at `past + t`, key `s` at `s`."""
    device = weights_UN.device
    query_T1 = torch.arange(past, past + queries, device=device)[:, None]
    offsets_TS = torch.arange(keys, device=device) - query_T1
    return weights_UN[position_buckets(offsets_TS, len(weights_UN), furthest, both_ways)].permute(2, 0, 1)


def check_buckets(buckets: int, furthest: int, both_ways: bool = False) -> None:
    """`ValueError` where buckets cannot be filled."""
    of_one_way = buckets // (2 if both_ways else 1)
    if of_one_way < 2 or (both_ways and buckets % 2):
        raise ValueError(f"buckets: {buckets}: must be {'an even number from 4' if both_ways else '2 or more'}")
    if furthest <= of_one_way // 2:
        raise ValueError(f"furthest: {furthest}: must be above {of_one_way // 2}, which have buckets of their own")
