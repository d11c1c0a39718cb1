"""The model that is measured, as it is read from its folder, whatever it is measured on."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.documents import documents_of_split
from linnet.evaluation.frozen import CalibrationText, calibration_tokens
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.weights import convert_weights
from linnet.model.decoder import Decoder


@dataclass(frozen=True)
class ModelOptions:
    """How a model is read. calibration: what replaces the model's own calibration; random
    ones are drawn from `seed`. precision: that the weights are converted to (`inference.weights`); None: as stored.
    """

    context_length: int | None = None
    device: str = "auto"
    calibration: str | None = None
    precision: str | None = None
    seed: int = 0

    def load(self, model: str | Path) -> LanguageModel:
        """A model folder, or a run's, read so; `UserError` where it is none, or an option does not fit it.

        A calibration is put in before the weights are converted: converted weights cannot be given to another decoder.
        """
        found = load(model, self.device)
        if self.calibration is not None:
            try:
                found = found.with_calibration(self.calibration, self.seed)
            except UserError as error:
                raise UserError(f"{model}: {error}") from None
        if self.precision is not None:
            convert_weights(found.decoder, self.precision)
        return found


@dataclass(frozen=True)
class EvaluatedModel:
    """A model, its own tokenizer, and the tokens of a window that it is measured with."""

    decoder: Decoder
    tokenizer: Tokenizer
    context_length: int

    @classmethod
    def load(cls, model: str | Path, options: ModelOptions) -> "EvaluatedModel":
        """Read a model folder, or a run's; `UserError` where it is none, or an option does not fit it."""
        found = options.load(model)
        return cls(found.decoder, found.tokenizer, checked_context(found.decoder, options.context_length))

    def check_reads_text(self, origin: str) -> None:
        """`UserError` for a model of pairs."""
        if self.decoder.spec.prefix_field is not None:
            raise UserError(
                f"{origin}: text; the model reads pairs of an input and a target: expected their data folder"
            )

    def calibration(self, source: CalibrationText, data: TokenData | None) -> Tensor:
        """The text that calibrates a model that is not causal by itself, int64 `[1, T]`.

        As `frozen.calibration_tokens`; a text that other tokens were made of is read with the model's own tokenizer.
        """
        if source == "empty" or data is None:
            return torch.tensor([[self.tokenizer.end_id]])
        if data.tokenizer.hash == self.tokenizer.hash:
            return calibration_tokens(data, source, self.context_length)
        found: list[int] = []
        for _, tokens in documents_of_split(data, "train").sample(None):
            found += [self.tokenizer.end_id, *self.tokenizer.encode(data.tokenizer.decode(tokens[1:-1].tolist()))]
            if len(found) >= self.context_length:
                break
        return torch.tensor([found[: self.context_length]])


def checked_context(decoder: Decoder, context_length: int | None) -> int:
    """The tokens of a window, None for the model's; `UserError` where it cannot read so many."""
    known = decoder.spec.context_length
    if context_length is None:
        return known
    if context_length < 1:
        raise UserError(field="context_length", value=context_length, accepted="at least 1")
    if context_length > known and decoder.spec.embedding.positions == "learned":
        raise UserError(f"the model's learned positions end at {known}", field="context_length", value=context_length)
    return context_length


def check_calibrate_on(decoder: Decoder, source: CalibrationText, split: str) -> None:
    """`UserError` where the calibration would come from the text that is evaluated."""
    if not decoder.causal and split == "train" and source == "train":
        raise UserError(
            "the calibration would come from the evaluated text; with `split` train use empty",
            field="calibrate_on",
            value="train",
        )
