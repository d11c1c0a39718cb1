"""The lifetimes of a text's tokens in each layer: what the model computed from the text says them in advance.

Legend: `W` windows, `T` tokens of a window.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.files import json_safe
from linnet.inspection.lifetimes.contributions import text_contributions
from linnet.inspection.lifetimes.steps import json_steps
from linnet.model.decoder import Decoder
from linnet.ops.decay.eviction import half_lives, lifetimes
from linnet.present.progress import progress

UPPER = 0.9
"""Beside the median, the 90th percentile is shown."""


@dataclass(frozen=True, eq=False)
class LayerLifetimes:
    """One layer. lifetimes_WT: whole steps, perhaps infinite; half_lives_WT: steps."""

    layer: int
    lifetimes_WT: Tensor
    half_lives_WT: Tensor

    @property
    def median(self) -> float:
        """Half of the tokens live so long or shorter."""
        return quantile(self.lifetimes_WT, 0.5)

    @property
    def upper(self) -> float:
        """Nine of ten tokens live so long or shorter."""
        return quantile(self.lifetimes_WT, UPPER)

    @property
    def half_life(self) -> float:
        """The median."""
        return quantile(self.half_lives_WT, 0.5)

    @property
    def never_kept(self) -> float:
        """The share of tokens that are below the threshold from the start."""
        return float((self.lifetimes_WT == 0).double().mean())

    @property
    def outlive(self) -> float:
        """The share of tokens that are still above the threshold when as many more as a window has have been read."""
        return float((self.lifetimes_WT > self.lifetimes_WT.shape[1]).double().mean())

    @property
    def average_context(self) -> float:
        """How many tokens a context holds that drops what is below the threshold: the mean over a window's steps.

        Every step counts after the drop. A token joins at its own step and is held for its lifetime, or to the
        window's end.
        """
        length = self.lifetimes_WT.shape[1]
        to_the_end_T = length - torch.arange(length, dtype=torch.float64)
        return float(torch.minimum(self.lifetimes_WT, to_the_end_T).sum(dim=1).mean() / length)

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return {
            "layer": self.layer,
            "median": json_steps(self.median),
            "percentile_90": json_steps(self.upper),
            "half_life_median": json_safe(self.half_life),
            "share_never_kept": self.never_kept,
            "share_outliving_window": self.outlive,
            "average_context": self.average_context,
        }


@dataclass(frozen=True)
class TextLifetimes:
    """Every token of so many windows of so many tokens, in each ted layer."""

    windows: int
    tokens: int
    layers: list[LayerLifetimes]

    @property
    def whole_context(self) -> float:
        """The average context of a layer that drops nothing."""
        return (self.tokens + 1) / 2

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return {
            "windows": self.windows,
            "tokens": self.tokens,
            "whole_context": self.whole_context,
            "per_layer": [layer.figures() for layer in self.layers],
        }


def text_lifetimes(decoder: Decoder, windows_WT: Tensor, layers: Sequence[int], threshold: float) -> TextLifetimes:
    """Read every window `[W, T]` and compute its tokens' lifetimes in the layers, which are those with ted."""
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
    with progress("reading", len(windows_WT), "windows") as advance:
        for tokens_T in windows_WT:
            for of_layer, read in zip(found, text_contributions(decoder, tokens_T), strict=True):
                of_layer.append((lifetimes(*read, threshold), half_lives(*read)))
            advance(1)
    return TextLifetimes(
        len(windows_WT),
        windows_WT.shape[1],
        [
            LayerLifetimes(layer, *(torch.stack(parts) for parts in zip(*of_layer, strict=True)))
            for layer, of_layer in zip(layers, found, strict=True)
        ],
    )


def quantile(values: Tensor, share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed; perhaps infinite."""
    ordered = values.flatten().sort().values
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])
