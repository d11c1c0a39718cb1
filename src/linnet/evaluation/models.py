"""The model that is evaluated: how it is loaded, which text it is calibrated on, and the data that it fits.

A decoder that is not causal without a state is calibrated on another text first; then its states are frozen and no
prediction depends on later tokens. Shapes: `T` tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.documents import documents_of_split
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.weights import convert_weights
from linnet.model.decoder import Decoder
from linnet.model.folder import CONFIG, TOKENIZER, model_folder
from linnet.model.spec import ModelSpec
from linnet.model.state import DecoderState, rows_of

CalibrationText = Literal["train", "empty"]
"""The first tokens of the training split, or the empty prompt: the end token alone (Gokden, arXiv 2502.13502)."""

TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded.

    context_length: tokens of a window; None: the model's. calibration: what replaces the model's own calibration;
    random ones are drawn from `seed`. precision: what the weights are converted to (`inference.weights`); None: as
    stored.
    """

    context_length: int | None = None
    device: str = "auto"
    calibration: str | None = None
    precision: str | None = None
    seed: int = 0

    def load(self, model: str | Path) -> LanguageModel:
        """Load a model folder, or a run; `UserError` if it is none, or an option does not fit it."""
        found = load(model, self.device)
        if self.calibration is not None:  # before the conversion: converted weights do not fit another decoder
            try:
                found = found.with_calibration(self.calibration, self.seed)
            except UserError as error:
                raise UserError(f"{model}: {error}") from None
        if self.precision is not None:
            convert_weights(found.decoder, self.precision)
        return found


@dataclass(frozen=True)
class EvaluatedModel:
    """A model with its own tokenizer, and the context length that it is evaluated with."""

    decoder: Decoder
    tokenizer: Tokenizer
    context_length: int

    @classmethod
    def load(cls, model: str | Path, options: ModelOptions) -> "EvaluatedModel":
        """Load a model folder, or a run; `UserError` if it is none, or an option does not fit it."""
        found, length = options.load(model), options.context_length
        spec = found.decoder.spec
        if length is not None and length < 1:
            raise UserError(field="context_length", value=length, accepted="at least 1")
        if length is not None and length > spec.context_length and spec.embedding.positions == "learned":
            problem = f"the model's learned positions end at {spec.context_length}"
            raise UserError(problem, field="context_length", value=length)
        return cls(found.decoder, found.tokenizer, spec.context_length if length is None else length)

    def check_reads_text(self, origin: str) -> None:
        """`UserError` for a model of pairs."""
        if self.decoder.spec.prefix_field is not None:
            raise UserError(
                f"{origin}: text; the model reads pairs of an input and a target: expected their data folder"
            )

    def calibration(self, source: CalibrationText, data: TokenData | None) -> Tensor:
        """The calibration text, int64 `[1, T]`; text with other tokens is read with the model's own tokenizer."""
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


@dataclass(frozen=True)
class ModelOnData:
    """A model, and the split of a data folder that it is evaluated on; they fit each other."""

    decoder: Decoder
    data: TokenData
    split: Split
    context_length: int
    calibrate_on: CalibrationText

    @property
    def sequence(self) -> TokenSequence:
        """The tokens of the split."""
        return self.data.split(self.split)

    def calibration(self) -> Tensor:
        """The calibration text of a model that is not causal by itself, int64 `[1, T]`."""
        return calibration_tokens(self.data, self.calibrate_on, self.context_length)


def model_on_data(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
    calibration: str | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> ModelOnData:
    """Load a model folder, or a run, for a split of a data folder; `UserError` if they do not fit.

    The arguments are those of `ModelOptions`.
    """
    data = TokenData.open(data_folder)
    data.check_tokenizer(model_folder(model) / TOKENIZER, may_have_more=True)
    found = EvaluatedModel.load(model, ModelOptions(context_length, device, calibration, precision, seed))
    data.check_prefixes(found.decoder.spec.prefix_field)
    check_calibrate_on(found.decoder, calibrate_on, split)
    return ModelOnData(found.decoder, data, split, found.context_length, calibrate_on)


def load_text_model(model: str | Path, device: str = "auto") -> LanguageModel:
    """`load` for models that read text; `UserError` for a model of pairs."""
    _check_reads_text(model)
    return load(model, device)


def text_model_on_data(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
) -> ModelOnData:
    """`model_on_data` for models that read text; `UserError` for a model of pairs."""
    _check_reads_text(model)
    return model_on_data(model, data_folder, split, context_length, calibrate_on, device)


def _check_reads_text(model: str | Path) -> None:
    # The description alone decides, so that this error precedes those about the data.
    if ModelSpec.load(model_folder(model) / CONFIG).prefix_field is not None:
        raise UserError(f"{model}: a model of pairs (an encoder or a prefix); expected a decoder that reads a text")


def check_calibrate_on(decoder: Decoder, source: CalibrationText, split: str) -> None:
    """`UserError` if the model would be calibrated on the text that is evaluated."""
    if not decoder.causal and split == "train" and source == "train":
        raise UserError(
            "the model would be calibrated on the evaluated text; with `split` train use empty",
            field="calibrate_on",
            value="train",
        )


def calibration_tokens(data: TokenData, source: CalibrationText, context_length: int) -> Tensor:
    """A calibration text of at most `context_length` tokens, int64 `[1, T]`."""
    if source == "empty":
        return torch.tensor([[data.tokenizer.end_id]])
    sequence = data.split("train")
    return torch.from_numpy(sequence.read(0, min(context_length, len(sequence))))[None]


@torch.no_grad()
def frozen_state(decoder: Decoder, calibration_1T: Tensor, batch: int, capacity: int) -> DecoderState:
    """A state for `batch` streams of `capacity` tokens that contains the calibration, but no token.

    The decoder reads the calibration text with a state, then each layer forgets its tokens. `UserError` if a layer that
    sees later tokens cannot be calibrated.
    """
    for number, layer in enumerate(decoder.layers):
        for sublayer in (layer.mixer, layer.feed_forward):
            if sublayer is not None and not (sublayer.traits.causal or sublayer.traits.calibrates):
                where = f"layer {number}: {decoder.spec.layer_kinds[number]}"
                raise UserError(f"{where}: sees later tokens always; expected layers that can be causal")
    state = decoder.initial_state(1, max(capacity, calibration_1T.shape[1]))
    decoder.hidden(calibration_1T.to(decoder.device), state)
    return rows_of(state.forget(), batch)
