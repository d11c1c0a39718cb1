"""Sublayers that mix each token with the previous one (`nn.neighbors`): their state, and RWKV's initial weights.

Shapes: `B` batch, `D` width, `M` mixes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.layers.batch_layout import BatchLayout
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import FeedForward, Place, Traits
from linnet.layers.state import Contents, State


@dataclass
class LastTokenState(State):
    """The last token of each row, `[B, D]`."""

    last: Tensor

    def observe(self, position: int, row: int = 0) -> Contents:
        return self.contents(position, 0, range(min(position, 1)))


class ShiftedFeedForward(FeedForward):
    """A feed-forward that reads each token and the previous one."""

    traits = Traits(constant_state=True, window=2)

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def initial_state(
        self, batch: int, capacity: int, device: torch.device, dtype: torch.dtype, cache_policy: CachePolicy = FULL
    ) -> LastTokenState:
        return LastTokenState(torch.zeros(batch, self.d_model, device=device, dtype=dtype))

    def supports(self, layout: BatchLayout, length: int, state: State | None) -> bool:
        return layout.padding is None


def rising(channels: int) -> Tensor:
    """From 0 for the first channel to almost 1 for the last, `[1, 1, D]`, as in the published initialization."""
    return torch.arange(channels)[None, None] / channels


def layers_left(place: Place) -> float:
    """The fraction of the model's layers from this one on: 1 for the first."""
    return 1 - place.index / place.layers
