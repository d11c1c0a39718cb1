"""How far a change of the text to come moves a model's earlier logits, and what that gains it: the leak.

For any mixer. Each window of text is read twice, the tokens behind a cut being those of another window the second time;
before the cut nothing has changed, so a causal model's logits there are the same.

Legend: `N` windows, `T` tokens of a window, `V` vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.evaluation.frozen import CalibrationText, frozen_state
from linnet.evaluation.likelihood import Evaluation
from linnet.inspection.matrices import largest
from linnet.inspection.subject import text_model_on_data
from linnet.inspection.windows import spread_windows
from linnet.model.decoder import Decoder
from linnet.model.state import rows_of
from linnet.present.progress import Advance, progress

CUT_SHARES = (0.25, 0.5, 0.75)
"""Where windows are cut unless told otherwise."""

Pass = Callable[[Tensor], Tensor]
"""Tokens `[1, T]` to logits `[T, V]`."""


@dataclass(frozen=True)
class CutChange:
    """What changing all tokens from `cut` on does to the logits before it, in their standard deviations.

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
    """The moves of one way of reading; `logits_std` is the standard deviation of the logits themselves."""

    logits_std: float
    cuts: list[CutChange]

    @property
    def largest(self) -> float:
        """The largest move at any cut."""
        return largest([cut.largest for cut in self.cuts])

    @property
    def rms(self) -> float:
        """Over the positions of all cuts."""
        squares = [rms**2 for cut in self.cuts for rms in cut.rms_by_position]
        return math.sqrt(sum(squares) / len(squares))

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        per_cut = [
            {"cut": cut.cut, "largest": cut.largest, "rms": cut.rms, "rms_by_position": cut.rms_by_position}
            for cut in self.cuts
        ]
        figures = {"largest": self.largest, "rms": self.rms, "logits_std": self.logits_std, "per_cut": per_cut}
        return dict(json_safe(figures))


@dataclass(frozen=True)
class Causality:
    """The moves of the pass without a state, as in training, and with a frozen calibration; quality both ways."""

    windows: int
    tokens: int
    whole_sequence: LogitChanges
    frozen: LogitChanges
    evaluation: Evaluation

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON. `leak` is null for a model that is causal by itself."""
        evaluation = self.evaluation.figures()
        return {
            "windows": self.windows,
            "tokens": self.tokens,
            "whole_sequence": self.whole_sequence.figures(),
            "frozen": self.frozen.figures(),
            "leak": evaluation.get("leak"),
            "evaluation": evaluation,
        }


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
    """Measure a model folder on a data folder: `windows` of the split, spread evenly, or as many as it has.

    `cuts`: tokens that stay as they are (None: a quarter, half, three quarters of a window). The other arguments are
    those of `evaluate_folder`, which measures the leak. `UserError` where model, data or cuts do not fit.
    """
    subject = text_model_on_data(model, data_folder, split, context_length, calibrate_on, device)
    context = subject.context_length
    kept = _checked_cuts(cuts, context)
    windows_NT = differing_windows(subject.sequence, subject.data.tokenizer.end_id, windows, context)
    with progress("comparing logits", 2 * len(windows_NT) * (1 + len(kept)), "passes") as advance:
        whole = moves(uncached_pass(subject.decoder), windows_NT, kept, advance)
        frozen = moves(calibrated_pass(subject.decoder, subject.calibration(), context), windows_NT, kept, advance)
    return Causality(len(windows_NT), context, whole, frozen, subject.evaluate(limit_tokens))


def differing_windows(sequence: TokenSequence, end_id: int, count: int, context_length: int) -> Tensor:
    """Up to `count` windows `[N, T]`, as `spread_windows`; `UserError` if not two differ."""
    if len(sequence) > context_length:
        windows_NT = spread_windows(sequence, end_id, count, context_length)
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
    """The pass over at most `capacity` tokens with a state, what it freezes being frozen from the calibration text."""
    frozen = frozen_state(decoder, calibration_1T, 1, capacity)
    return lambda tokens_1T: decoder(tokens_1T.to(decoder.device), rows_of(frozen, 1))[0]


@torch.no_grad()
def moves(read: Pass, windows_NT: Tensor, cuts: Sequence[int], advance: Advance) -> LogitChanges:
    """Read every window `[N, T]` as it is, and with the next window's tokens from each cut on; compare what is before.

    Windows must not be all the same.
    """
    most = torch.zeros(len(cuts))
    squares = [torch.zeros(cut, dtype=torch.float64) for cut in cuts]
    variance = 0.0
    for tokens_T, other_T in zip(windows_NT, windows_NT.roll(-1, dims=0), strict=True):
        logits_TV = read(tokens_T[None])
        variance += float(logits_TV.double().var(correction=0)) / len(windows_NT)
        advance(1)
        for number, cut in enumerate(cuts):
            changed_TV = read(torch.cat([tokens_T[:cut], other_T[cut:]])[None])
            moved_TV = (changed_TV[:cut] - logits_TV[:cut]).abs().float()
            most[number] = torch.maximum(most[number], moved_TV.max().cpu())  # unlike `max`, keeps NaN
            squares[number] += moved_TV.square().mean(dim=1).cpu()
            advance(1)
    std = math.sqrt(variance) or math.nan
    return LogitChanges(
        std,
        [
            CutChange(cut, most_of_cut / std, ((square_T / len(windows_NT)).sqrt() / std).tolist())
            for cut, most_of_cut, square_T in zip(cuts, most.tolist(), squares, strict=True)
        ],
    )


def _checked_cuts(cuts: Sequence[int] | None, context_length: int) -> list[int]:
    if context_length < 2:
        raise UserError(field="context_length", value=context_length, accepted="at least 2, to cut in between")
    if cuts is None:
        return sorted({max(1, int(share * context_length)) for share in CUT_SHARES})
    for cut in cuts:
        if not 0 < cut < context_length:
            raise UserError(field="cut", value=cut, accepted=f"1 to {context_length - 1}, inside a window")
    return sorted(set(cuts))
