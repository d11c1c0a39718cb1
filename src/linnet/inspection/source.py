"""Where operators come from: a model that deduces them from a prompt, or has fixed ones; or a file that holds them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from linnet.core.errors import UserError
from linnet.inference.language_model import LanguageModel
from linnet.inspection.subject import load_text_model
from linnet.layers.registry import operator_files
from linnet.model.watched import Operators, deduces_operators, operators


@dataclass(frozen=True)
class LoadedOperators:
    """The operators of a model or a file. `origin`: in words. `prompt`: what they were deduced from, or None."""

    layers: Operators
    origin: str
    in_file: bool = False
    prompt: str | None = None
    prompt_tokens: int | None = None

    @property
    def shape(self) -> str:
        """In words: `5 layers, 14 heads of 64 x 64`."""
        shapes = dict.fromkeys(tuple(layer["G"].shape[:2]) for layer in self.layers)
        heads = " and ".join(f"{count} head{'s' * (count > 1)} of {width} x {width}" for count, width in shapes)
        return f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)}, {heads}"


def load_operators(source: str | Path, prompt: str | None = None, device: str = "auto") -> LoadedOperators:
    """Read a file of operators, or let a model folder, or a run's, deduce its own from a prompt.

    `prompt` None: the empty one, the end token alone (Gokden, arXiv 2502.13502). `UserError` where the source is
    neither, has no operator, or a prompt is given where nothing is deduced.
    """
    source = Path(source)
    if source.is_file() or source.suffix in operator_files().suffixes:
        if prompt is not None:
            raise UserError(
                f"{source} is a file, its operators are not deduced from a text", field="prompt", value=repr(prompt)
            )
        return LoadedOperators(operator_files().read(source), "as the file has them", in_file=True)
    model = load_text_model(source, device)
    if deduces_operators(model.decoder, str(source)):
        return deduced(model, prompt or "")
    if prompt is not None:
        raise UserError(
            f"the operators of {source} are fixed, not deduced from a text", field="prompt", value=repr(prompt)
        )
    return LoadedOperators(operators(model.decoder, torch.tensor([model.prompt_tokens("")])), "fixed in the model")


def deduced(model: LanguageModel, prompt: str) -> LoadedOperators:
    """What a model deduces from a prompt; `UserError` where that is longer than its learned positions."""
    tokens = model.prompt_tokens(prompt)
    known = model.spec.context_length
    if len(tokens) > known and model.spec.embedding.positions == "learned":
        raise UserError(f"{len(tokens)} tokens: the model's learned positions end at {known}", field="prompt")
    origin = f"deduced from {prompt!r}" if prompt else "deduced from the empty prompt, the end token alone"
    found = operators(model.decoder, torch.tensor([tokens]))
    return LoadedOperators(found, origin, prompt=prompt, prompt_tokens=len(tokens))
