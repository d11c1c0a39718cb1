"""Quality against memory: bits per byte with each context, and how much of the past it held.

Legend: `N` windows, `L` layers that have a choice of cache policies.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.files import json_safe
from linnet.evaluation.statistics import ratio
from linnet.inspection.contexts.reading import Batch, Read, WindowReader
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.present.progress import progress


@dataclass(frozen=True)
class LayerContext:
    """The context of one layer over all tokens: its average size in vectors of the layer's width, and its largest."""

    layer: int
    average_context: float
    largest_context: int


@dataclass(frozen=True)
class CachePolicyOutcome:
    """What one context costs and gives.

    difference: bits per byte more than with all tokens. standard_error: of that difference, from its spread over the
    windows; None with a single one. state_bytes: of these layers of one stream, averaged over all tokens.
    """

    context: CachePolicy
    bits_per_byte: float
    difference: float
    standard_error: float | None
    state_bytes: float
    layers: Sequence[LayerContext]

    @property
    def name(self) -> str:
        """As tables call it."""
        return self.context.label

    @property
    def average_context(self) -> float:
        """The average over the layers."""
        return sum(layer.average_context for layer in self.layers) / len(self.layers)

    @property
    def largest_context(self) -> int:
        """The largest of any layer."""
        return max(layer.largest_context for layer in self.layers)

    @property
    def worse_percent(self) -> float:
        """The difference in percent of the bits per byte with all tokens."""
        return 100 * self.difference / (self.bits_per_byte - self.difference)

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        losses = ("bits_per_byte", "difference", "standard_error", "worse_percent")
        return {
            "context": self.name,
            **asdict(self.context),
            **{name: json_safe(getattr(self, name)) for name in losses},
            "average_context": self.average_context,
            "largest_context": self.largest_context,
            "state_bytes": self.state_bytes,
            "per_layer": [asdict(layer) for layer in self.layers],
        }


@dataclass(frozen=True)
class CachePolicyComparison:
    """All contexts on the same windows, all tokens first. `within_percent`: what counts as no loss."""

    windows: int
    tokens: int
    bytes: int
    context_length: int
    within_percent: float
    outcomes: Sequence[CachePolicyOutcome]

    @property
    def full(self) -> CachePolicyOutcome:
        """With all tokens."""
        return self.outcomes[0]

    @property
    def smallest(self) -> CachePolicyOutcome:
        """The smallest average state among those that lose nothing."""
        good = [one for one in self.outcomes if one.worse_percent <= self.within_percent]
        return min(good, key=lambda one: (one.state_bytes, one.bits_per_byte), default=self.full)

    @property
    def lines(self) -> dict[str, list[CachePolicyOutcome]]:
        """The policies, by the series in which one number alone differs."""
        found: dict[str, list[CachePolicyOutcome]] = {}
        for one in self.outcomes:
            if one.context.series is not None:
                found.setdefault(one.context.series[0], []).append(one)
        return found

    @property
    def marks(self) -> list[CachePolicyOutcome]:
        """The policies that belong to no series."""
        return [one for one in self.outcomes if one.context.series is None]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return {
            "windows": self.windows,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "context_length": self.context_length,
            "within_percent": self.within_percent,
            "smallest": self.smallest.name,
            "contexts": [one.figures() for one in self.outcomes],
        }


def compare(
    reader: WindowReader,
    batches: Sequence[Batch],
    bytes_N: Tensor,
    contexts: Sequence[CachePolicy],
    layers: Sequence[int],
    context_length: int,
    within_percent: float,
) -> CachePolicyComparison:
    """Read the windows with each context, the first of which keeps all tokens.

    bytes_N: UTF-8 bytes of each window's targets. layers: the numbers of the layers that have a choice.
    """
    assert contexts[0] == FULL, "what the others are compared with"
    lengths_N = torch.cat([batch.lengths_B for batch in batches]).cpu()
    with progress("reading", len(contexts) * len(lengths_N), "windows") as advance:

        def read(context: CachePolicy) -> Read:
            found = []
            for batch in batches:
                found.append(reader.read(batch, context))
                advance(len(batch.lengths_B), context.label)
            return Read.join(found)

        reads = [read(context) for context in contexts]
    outcomes = [
        outcome(context, found, reads[0], lengths_N, bytes_N, layers)
        for context, found in zip(contexts, reads, strict=True)
    ]
    return CachePolicyComparison(
        len(lengths_N), int(lengths_N.sum()), int(bytes_N.sum()), context_length, within_percent, outcomes
    )


def outcome(
    context: CachePolicy, read: Read, full: Read, lengths_N: Tensor, bytes_N: Tensor, layers: Sequence[int]
) -> CachePolicyOutcome:
    """The sums over all windows; every token counts the same."""
    difference_N = (read.nats_B - full.nats_B) / math.log(2)
    difference = ratio(difference_N.numpy(), bytes_N.numpy())
    lengths_N, tokens = lengths_N.double(), int(lengths_N.sum())
    means_L = (lengths_N @ read.mean_sizes_BL / tokens).tolist()
    largest_L = read.largest_sizes_BL.amax(0).long().tolist()
    return CachePolicyOutcome(
        context,
        float(read.nats_B.sum()) / math.log(2) / int(bytes_N.sum()),
        difference.value,
        difference.standard_error,
        float((lengths_N @ read.nbytes_BL).sum()) / tokens,
        [LayerContext(*of_layer) for of_layer in zip(layers, means_L, largest_L, strict=True)],
    )
