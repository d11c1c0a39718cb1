"""The paper's comparison of its caches: do text and deductive outputs stay the same (Gokden, arXiv 2502.13502).

The same prompt is continued with each of the four settings, always by the likeliest token. What the operators were
deduced from last is what is compared: the prompt where the G-cache keeps them, or the KV-cache the prompt's A; the
whole text but its last token where nothing is kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.inference.caches import Caches
from linnet.inference.engine import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.inspection.operator_figures import OutputFigures, operator_figures
from linnet.inspection.subject import load_text_model
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.watched import Operators, deduces_operators, operators_from
from linnet.present.progress import Advance, progress

SETTINGS = (Caches(), Caches(calibration=False), Caches(kv=False), Caches(kv=False, calibration=False))
"""Both caches first: the others are compared with these."""


@dataclass(frozen=True)
class CacheRun:
    """What one setting gave. `ids`: the tokens of the continuation; `first_difference`: the first that is another.

    `distances`: of each deductive output from that with both caches, by name, relative to its size (Frobenius norms).
    """

    caches: Caches
    ids: list[int]
    text: str
    first_difference: int | None
    outputs: list[OutputFigures]
    distances: dict[str, float]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        named = {
            one.name: {"rmse": one.rmse, **one.determinant.figures(), "distance": self.distances[one.name]}
            for one in self.outputs
        }
        return {
            "kv_cache": self.caches.kv,
            "g_cache": self.caches.calibration,
            "tokens": len(self.ids),
            "same_text": self.first_difference is None,
            "first_difference": self.first_difference,
            "text": self.text,
            **json_safe(named),
        }


@dataclass(frozen=True)
class CacheComparison:
    """The four settings, that with both caches first."""

    prompt: str
    prompt_tokens: int
    max_tokens: int
    runs: list[CacheRun]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return {
            "prompt": self.prompt,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.max_tokens,
            "same_text": all(run.first_difference is None for run in self.runs),
            "settings": [run.figures() for run in self.runs],
        }


def inspect_caches(model: str | Path, prompt: str, max_tokens: int, device: str = "auto") -> CacheComparison:
    """Compare the settings of a model folder, or a run's; `UserError` where it deduces no operator."""
    speaker = load_text_model(model, device)
    if not deduces_operators(speaker.decoder, str(model)):
        raise UserError(f"{model}: its operators are fixed, none is inferred; expected a model that deduces them")
    return compare_caches(speaker, prompt, max_tokens)


def compare_caches(model: LanguageModel, prompt: str, max_tokens: int) -> CacheComparison:
    """Continue the prompt with each setting by up to `max_tokens` tokens, always by the likeliest."""
    with progress("generating", len(SETTINGS) * max_tokens, "tokens") as advance:
        found = [_continued(model, prompt, max_tokens, caches, advance) for caches in SETTINGS]
    first_ids, first_layers = found[0]
    runs = [
        CacheRun(
            caches,
            ids,
            model.tokenizer.decode(ids),
            first_difference(first_ids, ids),
            operator_figures(layers).outputs,
            distances(layers, first_layers),
        )
        for caches, (ids, layers) in zip(SETTINGS, found, strict=True)
    ]
    return CacheComparison(prompt, len(model.prompt_tokens(prompt)), max_tokens, runs)


def _continued(
    model: LanguageModel, prompt: str, max_tokens: int, caches: Caches, advance: Advance
) -> tuple[list[int], Operators]:
    """The continuation's tokens, and what was deduced last."""
    ids: list[int] = []
    tokenizer = model.tokenizer
    shown: list[dict[str, Tensor]] = []
    steps = decode(
        model.decoder,
        [model.prompt_tokens(prompt)],
        max_tokens,
        Sampling(temperature=0.0),
        {tokenizer.end_id},
        vocab_size=tokenizer.vocab_size,
        caches=caches,
        record=AuxiliaryOutputs(outputs=shown),
    )
    layers: Operators = []
    for (token,) in steps:
        if any(len(layer) > 1 for layer in shown):
            layers = operators_from(shown)
        shown.clear()  # of each step there are gigabytes for a large model
        if token is not None:
            ids.append(token)
        advance(1)
    return ids, layers


def first_difference(first: Sequence[int], other: Sequence[int]) -> int | None:
    """The number of the first token that differs, or that only one of both has; None for equal texts."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False)))
    return None if same == len(first) == len(other) else same


def distances(layers: Operators, from_layers: Operators) -> dict[str, float]:
    """`||X - Y|| / ||Y||` of each deductive output over all layers; NaN where Y is 0 or not finite."""
    found = {}
    for name in dict.fromkeys(name for layer in layers for name in layer):
        pairs = [(x[name].double(), y[name].double()) for x, y in zip(layers, from_layers, strict=True) if name in x]
        size = sum(float(y.square().sum()) for _, y in pairs)
        difference = sum(float((x - y).square().sum()) for x, y in pairs)
        found[name] = math.sqrt(difference / size) if size > 0 and math.isfinite(difference) else math.nan
    return found
