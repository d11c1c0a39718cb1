"""A trained PLDR-LLM with its operator frozen and the net behind it gone: the paper's v51Gi (arXiv 2502.13502)."""

from linnet.core.errors import UserError
from linnet.inference.language_model import LanguageModel
from linnet.inspection.source import deduced
from linnet.model.calibration import with_stored_calibration
from linnet.model.decoder import Decoder


def frozen(model: LanguageModel, prompt: str = "") -> Decoder:
    """The model with the operator that it infers from a prompt; the empty one (the paper) is the end token alone.

    What it says is what the model says whose G-cache holds that operator. `UserError` where nothing is inferred.
    """
    if not any(mixer.traits.calibrates for mixer in model.decoder.mixers):
        raise UserError("the model has no plga layer that infers an operator", field="freeze")
    return with_stored_calibration(model.decoder, [layer["G"] for layer in deduced(model, prompt).layers])
