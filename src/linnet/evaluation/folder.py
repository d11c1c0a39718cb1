"""Evaluating a model folder on a data folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from linnet.data.loader import Batch, validation_batches
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.data.token_data import TokenData
from linnet.evaluation.frozen import CalibrationText, calibration_tokens
from linnet.evaluation.likelihood import Evaluation
from linnet.evaluation.measure import evaluate_windows
from linnet.evaluation.subject import EvaluatedModel, ModelOptions, check_calibrate_on
from linnet.model.decoder import Decoder
from linnet.model.store import TOKENIZER, model_folder
from linnet.present.progress import progress

TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class ModelOnData:
    """A model and the split that it is measured on; they fit each other. `calibrate_on`: see `calibration_tokens`."""

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
        """The text that calibrates a model that is not causal by itself, int64 `[1, T]`."""
        return calibration_tokens(self.data, self.calibrate_on, self.context_length)

    def evaluate(self, limit_tokens: int | None = None) -> Evaluation:
        """Every token but the split's first, of pairs every target, is predicted once; `limit_tokens` spreads fewer
        windows evenly.
        """
        total = min(limit_tokens or len(self.sequence), len(self.sequence))
        with progress("evaluating", total, "tokens") as advance:

            def batches() -> Iterator[Batch]:
                sequence = self.sequence
                spans = self.data.spans(sequence, self.context_length, self.decoder.encoder is not None)
                rows = max(1, TOKENS_AT_ONCE // self.context_length)
                for batch in validation_batches(sequence, spans, rows, limit_tokens):
                    yield batch
                    advance(batch.count)

            token_bytes_V = torch.from_numpy(self.data.tokenizer.token_bytes())
            return evaluate_windows(self.decoder, batches(), token_bytes_V, self.context_length, self.calibration())


def evaluate_folder(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    limit_tokens: int | None = None,
    context_length: int | None = None,
    calibrate_on: CalibrationText = "train",
    device: str = "auto",
    calibration: str | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a model folder, or a run's, on a split of a data folder.

    Every token but the split's first is predicted once, in windows of `context_length` (None: the model's) that begin
    with a document where they can (`document_windows`); `limit_tokens` spreads fewer windows evenly. `calibration`,
    `precision` and `seed` as in `model_on_data`. `UserError` where model and data do not fit.
    """
    found = model_on_data(model, data_folder, split, context_length, calibrate_on, device, calibration, precision, seed)
    return found.evaluate(limit_tokens)


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
    """Read a model folder, or a run's, for a split of a data folder; `UserError` where they do not fit.

    `context_length`: tokens in a window, None for the model's. `calibration`: what replaces the model's own
    calibration; random ones are drawn from `seed`. `precision`: the precision they are brought to
    (`inference.weights`); None: as stored.
    """
    data = TokenData.open(data_folder)
    data.check_tokenizer(model_folder(model) / TOKENIZER)
    found = EvaluatedModel.load(model, ModelOptions(context_length, device, calibration, precision, seed))
    data.check_prefixes(found.decoder.spec.prefix_field)
    check_calibrate_on(found.decoder, calibrate_on, split)
    return ModelOnData(found.decoder, data, split, found.context_length, calibrate_on)
