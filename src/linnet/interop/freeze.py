"""A trained PLDR-LLM with its operator frozen and the net behind it gone: the paper's v51Gi (arXiv 2502.13502)."""

from pathlib import Path

from linnet.core.errors import UserError
from linnet.inference.language_model import LanguageModel, load
from linnet.inspection.source import deduced
from linnet.model.decoder import Decoder
from linnet.model.fixed import with_fixed_operators
from linnet.model.store import check_new_folder, write_model


def frozen(model: LanguageModel, prompt: str = "") -> Decoder:
    """The model with the operator that it infers from a prompt; the empty one (the paper) is the end token alone.

    What it says is what the model says whose G-cache holds that operator. `UserError` where nothing is inferred.
    """
    if not any(mixer.traits.settles for mixer in model.decoder.mixers):
        raise UserError("the model has no plga layer that infers an operator", field="freeze_operator")
    return with_fixed_operators(model.decoder, [layer["G"] for layer in deduced(model, prompt).layers])


def export(
    model: str | Path,
    out: str | Path,
    *,
    freeze_operator: bool = False,
    prompt: str = "",
    command: str | None = None,
) -> Decoder:
    """Write a model folder, or a run's, in another form: the model folder `out`, whose decoder is returned.

    freeze_operator: a PLDR-LLM keeps the operator that it infers from `prompt` in the place of the net that infers it
    (`frozen`). command: kept in `run.json`. Raises `UserError` where no form is asked for, or the model has none such.
    """
    if not freeze_operator:
        raise UserError("export: no form was asked for", accepted="`freeze_operator`")
    check_new_folder(out)
    source = load(model, device="cpu")
    decoder = frozen(source, prompt)
    made = {"frozen_from": str(model), "operator_prompt": prompt, "command": command}
    write_model(out, decoder, source.tokenizer, made)
    return decoder
