"""A trained PLDR-LLM with its operator frozen and the net behind it gone: the paper's v51Gi (arXiv 2502.13502)."""

from pathlib import Path

from linnet.core.errors import UserError
from linnet.inference.language_model import LanguageModel, load
from linnet.inspection.source import deduced
from linnet.layers.mixers.plga.operator import PowerLawOperator
from linnet.model.decoder import Decoder
from linnet.model.fixed import with_fixed_operators
from linnet.model.store import check_new_folder, write_model


def frozen(model: LanguageModel, prompt: str = "") -> Decoder:
    """The model with the operator that it infers from a prompt; the empty one (the paper) is the end token alone.

    What it says is what the model says whose G-cache holds that operator. `UserError` where nothing is inferred.
    """
    if not any(isinstance(module, PowerLawOperator) for module in model.decoder.modules()):
        raise UserError("--freeze-operator: the model has no plga layer that infers an operator")
    return with_fixed_operators(model.decoder, [layer["G"] for layer in deduced(model, prompt).layers])


def export_frozen(folder: str | Path, out: str | Path, prompt: str = "", command: str | None = None) -> Decoder:
    """Write the frozen model of a model folder, or a run's, as the model folder `out`."""
    check_new_folder(out)
    model = load(folder, device="cpu")
    decoder = frozen(model, prompt)
    made = {"frozen_from": str(folder), "operator_prompt": prompt, "command": command}
    write_model(out, decoder, model.tokenizer, made)
    return decoder
