"""Bits per byte by position, up to a multiple of the trained length.

Legend: `N` windows, `T` tokens of a window, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from linnet.core.files import json_safe
from linnet.evaluation.frozen import frozen_state
from linnet.evaluation.statistics import Estimate, ratio
from linnet.inspection.positions.variants import Variant
from linnet.model.decoder import Decoder
from linnet.model.state import rows_of
from linnet.present.progress import progress

BOUNDS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Where parts of a window begin and end, in trained lengths; from the last on each is two such lengths."""


@dataclass(frozen=True)
class RangeLoss:
    """Of the predictions at positions from `begin` to before `end`; the error is that over windows, None with one."""

    begin: int
    end: int
    bits_per_byte: float
    standard_error: float | None


@dataclass(frozen=True)
class VariantLosses:
    """What one way of reading gave, part by part."""

    name: str
    parts: Sequence[RangeLoss]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        parts = [{name: json_safe(value) for name, value in asdict(part).items()} for part in self.parts]
        return {"positions": self.name, "parts": parts}


@dataclass(frozen=True)
class PositionLosses:
    """All ways of reading the same windows. `trained`: tokens of a training sequence; `tokens`: of a window."""

    trained: int
    tokens: int
    windows: int
    variants: Sequence[VariantLosses]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return {
            "trained_length": self.trained,
            "window_tokens": self.tokens,
            "windows": self.windows,
            "variants": [one.figures() for one in self.variants],
        }


def parts_of(trained: int, tokens: int) -> list[tuple[int, int]]:
    """Begin and end of each part of a window of so many tokens."""
    lengths = [*BOUNDS, *range(10, 2 + -(-tokens // trained), 2)]
    bounds = sorted({min(tokens, round(trained * length)) for length in lengths} | {tokens})
    return list(pairwise(bounds))


def measure_positions(
    decoder: Decoder,
    windows_NT: Tensor,
    token_bytes_V: Tensor,
    ways: Sequence[Variant],
    calibration_1T: Tensor,
) -> PositionLosses:
    """Read windows, each with a token more than is read, in each way, one after the other.

    calibration_1T: what settles layers that settle.
    """
    tokens, trained = windows_NT.shape[1] - 1, decoder.spec.context_length
    parts = parts_of(trained, tokens)
    bytes_NT = token_bytes_V[windows_NT[:, 1:]].double()
    found = []
    with progress("reading", len(ways) * len(windows_NT), "windows") as advance:
        for way in ways:
            rows = []
            for window_T in windows_NT.to(decoder.device):
                rows.append(_nats(way, decoder, window_T[None], parts, calibration_1T))
                advance(1, way.name)
            found.append(VariantLosses(way.name, _losses(torch.stack(rows), bytes_NT, parts)))
    return PositionLosses(trained, tokens, len(windows_NT), found)


@torch.no_grad()
def _nats(
    way: Variant, decoder: Decoder, window_1T: Tensor, parts: Sequence[tuple[int, int]], calibration_1T: Tensor
) -> Tensor:
    """Of each part, float64; a dynamic way reads up to the end of each with what that length needs."""
    tokens = window_1T.shape[1] - 1
    reads = [(end, [(begin, end)]) for begin, end in parts] if way.dynamic else [(tokens, list(parts))]
    nats = []
    for length, read in reads:
        reader = way.decoder(decoder, length)
        state = None if reader.causal else rows_of(frozen_state(reader, calibration_1T, 1, length), 1)
        hidden_1TD = reader.hidden(window_1T[:, :length], state)
        targets_1T = window_1T[:, 1 : length + 1]
        nats += [reader.token_loss(hidden_1TD[:, a:b], targets_1T[:, a:b]).nats.double().cpu() for a, b in read]
    return torch.stack(nats)


def _losses(nats_NP: Tensor, bytes_NT: Tensor, parts: Sequence[tuple[int, int]]) -> list[RangeLoss]:
    """A part without text has no loss."""
    losses = []
    for (begin, end), nats_N in zip(parts, nats_NP.unbind(1), strict=True):
        bits_N, bytes_N = nats_N / math.log(2), bytes_NT[:, begin:end].sum(1)
        found = ratio(bits_N.numpy(), bytes_N.numpy()) if bytes_N.any() else Estimate(math.nan, None, 0)
        losses.append(RangeLoss(begin, end, found.value, found.standard_error))
    return losses
