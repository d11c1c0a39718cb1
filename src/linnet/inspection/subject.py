"""What is inspected: models that read a text, and the data that they are read on."""

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from linnet.core.errors import UserError
from linnet.evaluation.folder import model_on_data
from linnet.inference.language_model import load
from linnet.model.spec import ModelSpec
from linnet.model.store import CONFIG, model_folder

Others = ParamSpec("Others")
Opened = TypeVar("Opened")
Opening = Callable[Concatenate[str | Path, Others], Opened]
"""Of a model folder, or a run's; `UserError` where it is none."""


def _of_text(opening: Opening[Others, Opened]) -> Opening[Others, Opened]:
    """The same, but of no model of pairs: `UserError`, whatever else does not fit."""

    def checked(model: str | Path, /, *others: Others.args, **named: Others.kwargs) -> Opened:
        _check_reads_text(model)
        return opening(model, *others, **named)

    return checked


def _check_reads_text(model: str | Path) -> None:
    """By its description alone, so that this is said before what else may not fit."""
    if ModelSpec.load(model_folder(model) / CONFIG).prefix_field is not None:
        raise UserError(f"{model}: a model of pairs (an encoder or a prefix); expected a decoder that reads a text")


load_text_model = _of_text(load)
"""`load` for models that read a text."""

text_model_on_data = _of_text(model_on_data)
"""`model_on_data` for models that read a text: windows of text say nothing of others."""
