"""Lifetimes of a model folder: of its vocabulary, and over a data folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.data.split import Split
from linnet.inspection.lifetimes.contributions import ted_layers
from linnet.inspection.lifetimes.text import TextLifetimes, text_lifetimes
from linnet.inspection.lifetimes.vocabulary import (
    Curves,
    Vocabulary,
    follow,
    spread_entries,
    tokens_of,
    unknown_without_text,
    vocabulary_lifetimes,
)
from linnet.inspection.subject import load_text_model, text_model_on_data
from linnet.inspection.windows import spread_windows
from linnet.present.numbers import exact


@dataclass(frozen=True)
class Lifetimes:
    """Of the vocabulary in the lowest layer, some entries over time, or why not (`unknown`); of a text's tokens."""

    threshold: float
    unknown: str | None
    vocabulary: Vocabulary | None
    curves: Curves | None
    text: TextLifetimes | None

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON; null for what was not asked for or is not known."""
        return {
            "threshold": self.threshold,
            "unknown_without_text": self.unknown,
            "vocabulary": self.vocabulary and self.vocabulary.figures(),
            "relevance": self.curves and self.curves.figures(),
            "text": self.text and self.text.figures(),
        }


def inspect_lifetimes(
    model: str | Path,
    threshold: float = 1e-8,
    texts: Sequence[str] = (),
    data_folder: str | Path | None = None,
    split: Split = "validation",
    windows: int = 8,
    context_length: int | None = None,
    device: str = "auto",
) -> Lifetimes:
    """The lifetimes of a model folder, or a run's; with a data folder also those of the tokens of its text.

    `texts`: their tokens are followed over time; if none are given, entries from the longest life to the shortest.
    `windows` of `context_length` tokens are spread evenly over the split. `UserError` where the model has no ted layer,
    nothing about it is known without a text, or model and data do not fit.
    """
    if not 0 < threshold < inf:
        raise UserError(field="threshold", value=exact(threshold), accepted="a number above 0")
    subject = None
    if data_folder is None:
        speaker = load_text_model(model, device)
        decoder, tokenizer = speaker.decoder, speaker.tokenizer
    else:  # what a PLDR-LLM would freeze plays no part: the text is read in one pass
        subject = text_model_on_data(model, data_folder, split, context_length, calibrate_on="empty", device=device)
        decoder, tokenizer = subject.decoder, subject.data.tokenizer
    layers = ted_layers(decoder, str(model))
    unknown = unknown_without_text(decoder)
    if unknown is not None and (subject is None or texts):
        asked = f"`token` {texts[0]!r}: " if texts else ""
        raise UserError(f"{asked}{model}: {unknown}, so lifetimes depend on the text; expected `data` alone")
    try:
        vocabulary = None if unknown else vocabulary_lifetimes(decoder, tokenizer, threshold)
        text = None
        if subject is not None:
            windows_WT = spread_windows(subject.sequence, windows, subject.context_length)
            text = text_lifetimes(decoder, windows_WT, layers, threshold)
    except FloatingPointError as error:
        raise UserError(f"{model}: {error}") from None
    curves = None
    if vocabulary is not None:
        curves = follow(vocabulary, tokens_of(texts, tokenizer) or spread_entries(vocabulary))
    return Lifetimes(threshold, unknown, vocabulary, curves, text)
