"""Several models on the same documents: what each loses, and by how much they differ.

Bytes are the same for all models whatever their tokenizers, so bits per byte are compared, document by document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from linnet.core.files import json_safe
from linnet.evaluation.measured import TextEvaluation
from linnet.evaluation.statistics import (
    RESAMPLES,
    SIGNIFICANT,
    Estimate,
    Interval,
    bootstrap_interval,
    holm_correction,
    paired_difference,
)


@dataclass(frozen=True)
class PairDifference:
    """The second model's bits per byte less the first's: below 0 the second is better.

    p_value: of no difference, corrected for the number of pairs (Holm); None with one document. resampled: the
    bootstrap's interval. better_share: of the documents that the second finds likelier.
    """

    first: str
    second: str
    difference: Estimate
    p_value: float | None
    resampled: Interval | None
    better_share: float

    @property
    def differs(self) -> bool | None:
        """Whether the difference is larger than chance explains; None where nothing says so."""
        return None if self.p_value is None else self.p_value < SIGNIFICANT

    def figures(self) -> dict[str, Any]:
        """The numbers by name."""
        interval = self.difference.interval()
        return {
            "first": self.first,
            "second": self.second,
            "difference": self.difference.value,
            "standard_error": self.difference.standard_error,
            "interval": None if interval is None else list(interval),
            "bootstrap_interval": None if self.resampled is None else list(self.resampled),
            "p_value": self.p_value,
            "differs": self.differs,
            "better_share": self.better_share,
        }


@dataclass(frozen=True)
class ModelComparison:
    """Models by name, what was measured of each, and every pair of them, the better of a pair second."""

    names: Sequence[str]
    measured: Sequence[TextEvaluation]
    pairs: Sequence[PairDifference]

    @classmethod
    def of(
        cls, names: Sequence[str], measured: Sequence[TextEvaluation], resamples: int = RESAMPLES
    ) -> "ModelComparison":
        """From models that were measured on the same documents."""
        bytes_N = measured[0].losses.bytes_N
        assert all(np.array_equal(one.losses.bytes_N, bytes_N) for one in measured), "other documents"
        models = list(zip(names, measured, strict=True))
        found = [_difference(*_better_last(first, second), resamples) for first, second in combinations(models, 2)]
        corrected = holm_correction([pair.difference.p_value() for pair in found])
        return cls(
            tuple(names),
            tuple(measured),
            tuple(
                PairDifference(pair.first, pair.second, pair.difference, p, pair.resampled, pair.better_share)
                for pair, p in zip(found, corrected, strict=True)
            ),
        )

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        models = [{"model": name, **one.figures()} for name, one in zip(self.names, self.measured, strict=True)]
        ready: dict[str, Any] = json_safe({"models": models, "pairs": [pair.figures() for pair in self.pairs]})
        return ready


Model = tuple[str, TextEvaluation]


def _better_last(first: Model, second: Model) -> tuple[Model, Model]:
    better = second[1].bits_per_byte.value < first[1].bits_per_byte.value
    return (first, second) if better else (second, first)


def _difference(first: Model, second: Model, resamples: int) -> PairDifference:
    """Before the p-value is corrected."""
    before, after = first[1].losses, second[1].losses
    difference = paired_difference(before.bits_N, after.bits_N, before.bytes_N)
    resampled = bootstrap_interval(after.bits_N - before.bits_N, before.bytes_N, resamples)
    return PairDifference(
        first[0], second[0], difference, None, resampled, float((after.bits_N < before.bits_N).mean())
    )
