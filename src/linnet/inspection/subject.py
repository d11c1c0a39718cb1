"""What is inspected: models that read a text, and the data that they are read on."""

from pathlib import Path

from linnet.core.errors import UserError
from linnet.data.split import Split
from linnet.evaluation.folder import ModelOnData, model_on_data
from linnet.evaluation.frozen import OperatorFrom
from linnet.inference.language_model import LanguageModel, load
from linnet.model.spec import ModelSpec
from linnet.model.store import CONFIG, model_folder


def load_reader(model: str | Path, device: str = "auto") -> LanguageModel:
    """A model folder, or a run's; `UserError` where it is none, or reads pairs."""
    _check_reads_text(model)
    return load(model, device)


def reader_on_data(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    context_length: int | None = None,
    operator_from: OperatorFrom = "train",
    device: str = "auto",
) -> ModelOnData:
    """`model_on_data`; `UserError` for a model of pairs too, whatever the data: windows of text say nothing of it."""
    _check_reads_text(model)
    return model_on_data(model, data_folder, split, context_length, operator_from, device)


def _check_reads_text(model: str | Path) -> None:
    """By its description alone, so that this is said before what else may not fit."""
    if ModelSpec.load(model_folder(model) / CONFIG).reads_pairs:
        raise UserError(f"{model}: a model of pairs (an encoder or a prefix); expected a decoder that reads a text")
