"""Which contexts are compared, and what they are called."""

from collections.abc import Sequence
from itertools import product

from linnet.layers.cache_policy import FULL, BankCache, CachePolicy
from linnet.ops.decay.eviction import EvictionPolicy
from linnet.present.numbers import exact

TOP_K = (8, 16, 32, 64, 128, 256)
THRESHOLDS = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Compared, one list after the other, unless told otherwise."""

OFF_TOP_K, OFF_THRESHOLD = 0, -1.0


def contexts(
    top_k: Sequence[int] = (),
    thresholds: Sequence[float] = (),
    min_tokens_to_keep: int = 1,
    bank_length: int | None = None,
) -> list[CachePolicy]:
    """All tokens, the bank, then policies: of each list given with the other off, of both their cross product.

    Without any, the lists above one after the other. Each once, in the order of its numbers.
    """
    if not top_k and not thresholds:
        pairs = [*product(TOP_K, [OFF_THRESHOLD]), *product([OFF_TOP_K], THRESHOLDS)]
    else:
        pairs = list(product(sorted(top_k) or [OFF_TOP_K], sorted(thresholds) or [OFF_THRESHOLD]))
    policies = [EvictionPolicy(k, threshold, min_tokens_to_keep) for k, threshold in pairs]
    return [FULL, BankCache(bank_length), *dict.fromkeys(policies)]


def series(context: EvictionPolicy) -> str:
    """The policies among which one number alone differs: `threshold`, `top_k`, or `top_k 8 and threshold`."""
    if not context.top_k:
        return "threshold"
    return "top_k" if context.threshold < 0 else f"top_k {context.top_k} and threshold"


def varied(context: EvictionPolicy) -> str:
    """The number that differs within its `series`."""
    if series(context) == "top_k":
        return str(context.top_k)
    return exact(context.threshold) if context.threshold >= 0 else "off"
