"""How far beyond its trained length does a model read? Bits per byte by position, also with scaled rotary positions.

Shapes: `N` windows, `T` tokens of a window, `V` vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.pieces import ByteCounts
from linnet.data.split import Split
from linnet.evaluation.models import CalibrationText, frozen_state, text_model_on_data
from linnet.evaluation.statistics import Estimate, ratio
from linnet.inspection.text_model import TextInspection, spread_windows
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.model.spec import ModelSpec
from linnet.model.state import rows_of
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.progress import progress
from linnet.present.result import Picture
from linnet.present.table import Table

TIMES = 8
"""Length of the windows in trained lengths by default."""

BOUNDS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Bounds of the ranges of positions in trained lengths; after the last one, each range has two trained lengths."""

AS_TRAINED = "as trained"


@dataclass(frozen=True)
class RangeLoss:
    """The loss of predictions at positions `begin` to `end` - 1; the error is over windows, None with one."""

    begin: int
    end: int
    bits_per_byte: float
    standard_error: float | None


@dataclass(frozen=True)
class VariantLosses:
    """The losses of one way of reading, range by range."""

    name: str
    ranges: Sequence[RangeLoss]


@dataclass(frozen=True)
class PositionLosses(TextInspection):
    """The losses of all ways of reading the same windows.

    trained: tokens of a training sequence. tokens: of a window. about: the model and the text.
    """

    subject: ClassVar[str] = "Positions"

    trained: int
    tokens: int
    windows: int
    variants: Sequence[VariantLosses]
    about: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.about,
            "trained_length": self.trained,
            "window_tokens": self.tokens,
            "windows": self.windows,
            "variants": [
                {"positions": one.name, "parts": [json_safe(asdict(part)) for part in one.ranges]}
                for one in self.variants
            ],
        }

    def tables(self) -> list[Table]:
        """A row for each range of positions, a column for each way of reading."""
        rows = []
        for ranges in zip(*(one.ranges for one in self.variants), strict=True):
            begin, end = ranges[0].begin, ranges[0].end
            cells = []
            for one in ranges:
                error = "" if one.standard_error is None else f" ± {one.standard_error:.4f}"
                cells.append(f"{one.bits_per_byte:.4f}{error}")
            place = f"{numbers.grouped(begin)} to {numbers.grouped(end)}"
            rows.append((place, f"{end / self.trained:g}", *cells))
        columns = ("positions", "times trained", *(one.name for one in self.variants))
        note = (
            f"Over {self.windows} windows of {numbers.grouped(self.tokens)} tokens, trained on sequences of"
            f" {numbers.grouped(self.trained)}; ± standard error over the windows. Times trained: end of the row in"
            " trained lengths. All columns read the same text."
        )
        return [Table("Bits per byte by position", columns, rows, note)]

    def plots(self) -> list[Picture]:
        series = []
        for number, one in enumerate(self.variants):
            shown = [part for part in one.ranges if math.isfinite(part.bits_per_byte)]
            middles = [(part.begin + part.end) / 2 for part in shown]
            bits, errors = [part.bits_per_byte for part in shown], [part.standard_error or 0.0 for part in shown]
            low = [value - error for value, error in zip(bits, errors, strict=True)]
            high = [value + error for value, error in zip(bits, errors, strict=True)]
            series.append(Series(middles, bits, one.name, "o-", number, low=low, high=high))
        trained = Rule(self.trained, "trained", upright=True)
        x = Axis("position", "log2", numbers.grouped)
        plot = Plot([Panel(x, Axis("bits per byte"), series, rules=[trained])], (9.0, 4.6))
        caption = (
            "Each point is the mean over a range of positions, at its middle; the band is its standard error over the"
            " windows. The dashed line is the trained length."
        )
        return [Picture("loss_by_position", "Loss by position", plot, caption)]

    def conclusion(self) -> str:
        """The last range compared with the last one within the trained length."""
        plain = self.variants[0].ranges
        within = [part for part in plain if part.end <= self.trained]
        if not within or plain[-1].end <= self.trained:
            return ""
        best = min(self.variants, key=lambda one: one.ranges[-1].bits_per_byte)
        line = (
            f"At the end of the trained length {within[-1].bits_per_byte:.4f} bits per byte; at the end of the windows"
            f" {plain[-1].bits_per_byte:.4f} {self.variants[0].name}"
        )
        other = best is not self.variants[0]
        return f"{line}, {best.ranges[-1].bits_per_byte:.4f} {best.name}." if other else f"{line}."


def inspect_positions(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 16,
    times: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
) -> PositionLosses:
    """Read windows of a split, `times` as long as training sequences, with each way of scaling positions.

    `UserError` if model and data do not fit, the split has no window of this length, or learned positions end before.
    """
    found = text_model_on_data(model, data_folder, split, calibrate_on=calibrate_on, device=device)
    spec = found.decoder.spec
    learned = spec.embedding.positions == "learned"
    if learned and times is not None and times > 1:
        raise UserError(f"the model's learned positions end at {spec.context_length}", field="times", value=times)
    tokens = spec.context_length * (times or (1 if learned else TIMES))
    if len(found.sequence) <= tokens + 1:
        raise UserError(
            f"{found.sequence.name}: {len(found.sequence):,} tokens: expected more than {tokens + 1:,};"
            " prepare more text or read fewer `times` the trained length"
        )
    windows_NT = spread_windows(found.sequence, windows, tokens + 1)
    byte_counts = found.data.tokenizer.byte_counts().to("cpu")
    about = {"model": str(model), "data": str(data_folder), "split": split, "calibrate_on": calibrate_on}
    losses = measure_positions(found.decoder, windows_NT, byte_counts, variants(spec), found.calibration())
    return PositionLosses(spec.context_length, tokens, len(windows_NT), losses, about)


def position_ranges(trained: int, tokens: int) -> list[tuple[int, int]]:
    """Begin and end of each range of positions in a window of `tokens` tokens."""
    lengths = [*BOUNDS, *range(10, 2 + -(-tokens // trained), 2)]
    bounds = sorted({min(tokens, round(trained * length)) for length in lengths} | {tokens})
    return list(pairwise(bounds))


@dataclass(frozen=True)
class Variant:
    """Rotary positions scaled by one factor for all positions, or (dynamic) by the factor that each length needs.

    kind: of the scaling (`layers.rotary`); None for the model as trained.
    """

    name: str
    kind: str | None = None
    dynamic: bool = False

    def decoder(self, decoder: Decoder, tokens: int) -> Decoder:
        """A model for `tokens` tokens that shares the weights of `decoder`; all its rotary positions are scaled."""
        spec = decoder.spec
        factor = max(1.0, tokens / spec.context_length)
        if self.kind is None or (self.dynamic and factor == 1):
            return decoder
        scaling: dict[str, Any] = {"kind": self.kind, "factor": factor}
        if self.kind == "yarn":
            scaling["trained"] = spec.context_length
        plain = spec.model_dump()
        for block in plain["blocks"]:
            if block["mixer"].get("rotary") is not None:
                block["mixer"]["rotary"]["scaling"] = scaling
        return decoder_with_weights(ModelSpec.parse(plain, spec.name), decoder.state_dict()).eval()


def variants(spec: ModelSpec) -> list[Variant]:
    """The model as trained, and each scaling if it has rotary positions."""
    if all(block["mixer"].get("rotary") is None for block in spec.model_dump()["blocks"]):
        return [Variant(AS_TRAINED)]
    fixed = [Variant(name, kind) for name, kind in (("interpolated", "linear"), ("NTK", "ntk"), ("YaRN", "yarn"))]
    return [Variant(AS_TRAINED), *fixed, Variant("NTK, dynamic", "ntk", dynamic=True)]


@torch.no_grad()
def measure_positions(
    decoder: Decoder,
    windows_NT: Tensor,
    byte_counts: ByteCounts[Tensor],
    variants: Sequence[Variant],
    calibration_1T: Tensor,
) -> list[VariantLosses]:
    """Read windows with each variant; a window has one token more than is read.

    calibration_1T: the calibration text of layers that are calibrated.
    """
    tokens = windows_NT.shape[1] - 1
    ranges = position_ranges(decoder.spec.context_length, tokens)
    bytes_NT = byte_counts.of(windows_NT[:, 1:], windows_NT[:, :-1]).double()
    found = []
    with progress("reading", len(variants) * len(windows_NT), "windows") as advance:
        for variant in variants:
            rows = []
            for window_T in windows_NT.to(decoder.device):
                rows.append(_range_nats(variant, decoder, window_T[None], ranges, calibration_1T))
                advance(1, variant.name)
            losses = []
            for (begin, end), nats_N in zip(ranges, torch.stack(rows).unbind(1), strict=True):
                bits_N, bytes_N = nats_N / math.log(2), bytes_NT[:, begin:end].sum(1)
                # A range without text has no loss.
                bits = ratio(bits_N.numpy(), bytes_N.numpy()) if bytes_N.any() else Estimate(math.nan, None, 0)
                losses.append(RangeLoss(begin, end, bits.value, bits.standard_error))
            found.append(VariantLosses(variant.name, losses))
    return found


def _range_nats(
    variant: Variant, decoder: Decoder, window_1T: Tensor, ranges: Sequence[tuple[int, int]], calibration_1T: Tensor
) -> Tensor:
    """The loss of each range, float64; a dynamic variant reads up to the end of each with the factor of that length."""
    tokens = window_1T.shape[1] - 1
    passes = [(end, [(begin, end)]) for begin, end in ranges] if variant.dynamic else [(tokens, list(ranges))]
    nats = []
    for length, parts in passes:
        scaled = variant.decoder(decoder, length)
        state = None if scaled.causal else rows_of(frozen_state(scaled, calibration_1T, 1, length), 1)
        hidden_1TD = scaled.hidden(window_1T[:, :length], state)
        targets_1T = window_1T[:, 1 : length + 1]
        nats += [scaled.token_loss(hidden_1TD[:, a:b], targets_1T[:, a:b]).nats.double().cpu() for a, b in parts]
    return torch.stack(nats)
