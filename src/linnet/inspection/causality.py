"""Does later text change a model's earlier logits, and how much loss does that gain: the leak. For any mixer.

Each window is read twice, the second time with another window's tokens after a cut. Before the cut nothing has changed,
so a causal model's logits there are the same. Shapes: `N` windows, `T` tokens of a window, `V` vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.evaluation.likelihood import Evaluation
from linnet.evaluation.measure import evaluate_split
from linnet.evaluation.models import CalibrationText, frozen_state, text_model_on_data
from linnet.inspection.text_model import TextInspection, spread_windows
from linnet.model.decoder import Decoder
from linnet.model.state import rows_of
from linnet.present import numbers
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.progress import Advance, progress
from linnet.present.result import Picture
from linnet.present.style import INK
from linnet.present.table import Table

CUT_SHARES = (0.25, 0.5, 0.75)
"""Positions of the cuts in a window by default."""

Pass = Callable[[Tensor], Tensor]
"""Tokens `[1, T]` to logits `[T, V]`."""


@dataclass(frozen=True)
class CutChange:
    """How far changing all tokens from `cut` on changes the logits before it, in their standard deviations.

    rms_by_position: over windows and vocabulary, at each of the `cut` positions.
    """

    cut: int
    largest: float
    rms_by_position: list[float]

    @property
    def rms(self) -> float:
        """Over all positions before the cut."""
        return math.sqrt(sum(rms**2 for rms in self.rms_by_position) / self.cut)


@dataclass(frozen=True)
class LogitChanges:
    """The changes at all cuts for one way of reading; logits_std: the standard deviation of the logits."""

    logits_std: float
    cuts: list[CutChange]

    @property
    def largest(self) -> float:
        """The largest change at any cut; NaN if one is NaN."""
        values = [cut.largest for cut in self.cuts]
        return math.nan if any(map(math.isnan, values)) else max(values)

    @property
    def rms(self) -> float:
        """Over the positions of all cuts."""
        squares = [rms**2 for cut in self.cuts for rms in cut.rms_by_position]
        return math.sqrt(sum(squares) / len(squares))

    def to_dict(self) -> dict[str, Any]:
        per_cut = [
            {"cut": cut.cut, "largest": cut.largest, "rms": cut.rms, "rms_by_position": cut.rms_by_position}
            for cut in self.cuts
        ]
        figures = {"largest": self.largest, "rms": self.rms, "logits_std": self.logits_std, "per_cut": per_cut}
        return dict(json_safe(figures))


@dataclass(frozen=True)
class Causality(TextInspection):
    """The changes in the pass without a state, as in training, and after calibration; the likelihood of both passes.

    about: the model and the text.
    """

    subject: ClassVar[str] = "Causality"

    windows: int
    tokens: int
    whole_sequence: LogitChanges
    frozen: LogitChanges
    evaluation: Evaluation
    about: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """`leak` is None for a model that is causal by itself."""
        evaluation = self.evaluation.to_dict()
        return {
            **self.about,
            "windows": self.windows,
            "tokens": self.tokens,
            "whole_sequence": self.whole_sequence.to_dict(),
            "frozen": self.frozen.to_dict(),
            "leak": evaluation.get("leak"),
            "evaluation": evaluation,
        }

    def tables(self) -> list[Table]:
        """The changes at each cut and at all, and the leak."""
        whole, frozen = self.whole_sequence, self.frozen
        values = [
            (f"changed from token {one.cut} on", one.largest, one.rms, other.largest, other.rms)
            for one, other in zip(whole.cuts, frozen.cuts, strict=True)
        ]
        values.append(("all", whole.largest, whole.rms, frozen.largest, frozen.rms))
        rows = [(name, *(f"{value:.3g}" for value in changes)) for name, *changes in values]
        columns = ("text", "whole sequence: largest", "RMS", "calibrated: largest", "RMS")
        note = (
            "Change of the logits before the changed text, in their own standard deviations, over"
            f" {self.windows} windows of {numbers.grouped(self.tokens)} tokens. It is 0 for a causal model, and for any"
            " model that was calibrated on other text."
        )
        causal, whole_sequence = self.evaluation.causal, self.evaluation.whole_sequence
        losses = [("causal", f"{causal.bits_per_byte:.4f}")]
        if whole_sequence is not None:
            losses.append(("whole sequence, sees the future", f"{whole_sequence.bits_per_byte:.4f}"))
        leak = self.evaluation.leak
        losses.append(("leak", "none" if leak is None else numbers.signed(leak, 4)))
        leak_note = f"Gained by seeing the future, on {numbers.grouped(causal.tokens)} tokens; see `linnet evaluate`."
        return [
            Table("Changed logits", columns, rows, note),
            Table("Leak", ("", "bits per byte"), losses, leak_note),
        ]

    def plots(self) -> list[Picture]:
        caption = (
            "How far a change of later text changes earlier logits. Solid: the pass over the whole sequence, as in"
            " training. Dotted: calibrated on other text. The lines of a causal model are at 0. The first token attends"
            " only to itself, so its logits never change."
        )
        drawn, cuts = [], []
        for number, (whole, frozen) in enumerate(zip(self.whole_sequence.cuts, self.frozen.cuts, strict=True)):
            name, positions = f"changed from token {whole.cut} on", range(whole.cut)
            drawn.append(Series(positions, whole.rms_by_position, name, color=number))
            drawn.append(Series(positions, frozen.rms_by_position, style=":", color=number))
            cuts.append(Rule(whole.cut, style=":", color=number, upright=True))
        drawn.append(Series([], [], "the same after calibration on other text", ":", INK))
        x = Axis("position in the window, tokens", low=0)
        y = Axis("RMS change of the logits, standard deviations", low=0)
        plot = Plot([Panel(x, y, drawn, rules=cuts)])
        return [Picture("changed_logits", "Changed logits by position", plot, caption)]


def inspect_causality(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    windows: int = 8,
    cuts: Sequence[int] | None = None,
    limit_tokens: int | None = None,
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
) -> Causality:
    """Measure a model folder on evenly spaced windows of a split of a data folder.

    cuts: numbers of tokens that stay as they are (None: a quarter, half, three quarters of a window). The other
    arguments are those of `evaluate_folder`, which measures the leak. `UserError` if model, data or cuts do not fit.
    """
    found = text_model_on_data(model, data_folder, split, context_length, calibrate_on, device)
    context = found.context_length
    if context < 2:
        raise UserError(field="context_length", value=context, accepted="at least 2, to cut in between")
    if cuts is None:
        cuts = [max(1, int(share * context)) for share in CUT_SHARES]
    for cut in cuts:
        if not 0 < cut < context:
            raise UserError(field="cut", value=cut, accepted=f"1 to {context - 1}, inside a window")
    cuts = sorted(set(cuts))
    windows_NT = differing_windows(found.sequence, windows, context)
    with progress("comparing logits", 2 * len(windows_NT) * (1 + len(cuts)), "passes") as advance:
        whole = logit_changes(uncached_pass(found.decoder), windows_NT, cuts, advance)
        calibrated = calibrated_pass(found.decoder, found.calibration(), context)
        frozen = logit_changes(calibrated, windows_NT, cuts, advance)
    about = {"model": str(model), "data": str(data_folder), "split": split, "calibrate_on": calibrate_on}
    return Causality(len(windows_NT), context, whole, frozen, evaluate_split(found, limit_tokens), about)


def differing_windows(sequence: TokenSequence, count: int, context_length: int) -> Tensor:
    """Up to `count` windows `[N, T]` of `spread_windows`; `UserError` if all are the same."""
    if len(sequence) > context_length:
        windows_NT = spread_windows(sequence, count, context_length)
        if (windows_NT != windows_NT[0]).any():
            return windows_NT
    raise UserError(
        f"{sequence.name}: {len(sequence)} tokens: expected two different windows of {context_length} to compare;"
        " prepare more text or choose a shorter `context_length`"
    )


def uncached_pass(decoder: Decoder) -> Pass:
    """The pass without a state, as in training."""
    return lambda tokens_1T: decoder(tokens_1T.to(decoder.device))[0]


def calibrated_pass(decoder: Decoder, calibration_1T: Tensor, capacity: int) -> Pass:
    """The pass over at most `capacity` tokens with a state that was calibrated on another text."""
    frozen = frozen_state(decoder, calibration_1T, 1, capacity)
    return lambda tokens_1T: decoder(tokens_1T.to(decoder.device), rows_of(frozen, 1))[0]


@torch.no_grad()
def logit_changes(read: Pass, windows_NT: Tensor, cuts: Sequence[int], advance: Advance) -> LogitChanges:
    """Compare the logits of every window `[N, T]` with those after other tokens follow each cut.

    The other tokens are those of the next window; the windows must not be all the same.
    """
    largest = torch.zeros(len(cuts))
    squares = [torch.zeros(cut, dtype=torch.float64) for cut in cuts]
    variance = 0.0
    for tokens_T, other_T in zip(windows_NT, windows_NT.roll(-1, dims=0), strict=True):
        logits_TV = read(tokens_T[None])
        variance += float(logits_TV.double().var(correction=0)) / len(windows_NT)
        advance(1)
        for number, cut in enumerate(cuts):
            changed_TV = read(torch.cat([tokens_T[:cut], other_T[cut:]])[None])
            change_TV = (changed_TV[:cut] - logits_TV[:cut]).abs().float()
            largest[number] = torch.maximum(largest[number], change_TV.max().cpu())  # unlike `max`, keeps NaN
            squares[number] += change_TV.square().mean(dim=1).cpu()
            advance(1)
    std = math.sqrt(variance) or math.nan
    changes = [
        CutChange(cut, largest_at_cut / std, ((square_T / len(windows_NT)).sqrt() / std).tolist())
        for cut, largest_at_cut, square_T in zip(cuts, largest.tolist(), squares, strict=True)
    ]
    return LogitChanges(std, changes)
