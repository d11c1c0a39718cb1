"""How much the operator of power-law graph attention varies from text to text, relative to its size.

Legend: `N` prompts, `T` tokens of a prompt.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.inspection.subject import text_model_on_data
from linnet.model.decoder import Decoder
from linnet.model.watched import Operators, deduces_operators, operators
from linnet.present.progress import progress

Outputs = dict[tuple[str, int], Tensor]
"""Deductive outputs by their names and the numbers of their layers."""


@dataclass(frozen=True)
class Variation:
    """Over prompts, `||X - mean|| / ||mean||`, Frobenius norms: the root mean square and the largest."""

    rms: float
    largest: float

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return dict(json_safe({"variation": self.rms, "largest": self.largest}))


@dataclass(frozen=True)
class OutputVariation:
    """One deductive output: over all layers together, and of each layer that has it, by its number."""

    name: str
    overall: Variation
    layers: dict[int, Variation]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        per_layer = [{"layer": layer, **variation.figures()} for layer, variation in self.layers.items()]
        return {**self.overall.figures(), "per_layer": per_layer}


@dataclass(frozen=True)
class Invariance:
    """How much each deductive output varies over so many prompts of so many tokens."""

    prompts: int
    tokens: int
    outputs: list[OutputVariation]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        named = {one.name: one.figures() for one in self.outputs}
        return {"prompts": self.prompts, "tokens": self.tokens, **named}


def inspect_invariance(
    model: str | Path,
    data_folder: str | Path,
    split: Split = "validation",
    prompts: int = 100,
    tokens: int = 64,
    seed: int = 0,
    device: str = "auto",
) -> Invariance:
    """Measure a model folder over prompts from a data folder (`document_prompts`).

    `UserError` where model and data do not fit, or the model deduces no operator.
    """
    subject = text_model_on_data(model, data_folder, split, calibrate_on="empty", device=device)
    if not deduces_operators(subject.decoder, str(model)):
        raise UserError(f"{model}: its operators are fixed, they do not vary; expected a model that deduces them")
    known = subject.decoder.spec.context_length
    if tokens > known and subject.decoder.spec.embedding.positions == "learned":
        raise UserError(f"the model's learned positions end at {known}", field="tokens", value=tokens)
    return invariance(subject.decoder, document_prompts(subject.sequence, prompts, tokens, seed))


def document_prompts(sequence: TokenSequence, count: int, tokens: int, seed: int) -> Tensor:
    """The beginnings `[N, T]` of documents drawn at random: the end token before them, then their own tokens.

    Only documents with as many tokens are drawn from, none twice; all of them where there are no more than `count`.
    `UserError` where there are not two.
    """
    ends = sequence.document_bounds
    lengths = np.diff(ends)
    long_enough = ends[:-1][lengths >= tokens]
    if len(long_enough) < 2:
        longest = int(lengths.max(initial=0))
        raise UserError(
            f"{len(long_enough)} documents of {sequence.name} have as many (the longest has {longest}, its end token"
            " counted): expected at least two",
            field="tokens",
            value=tokens,
        )
    random = np.random.Generator(np.random.PCG64(seed))
    chosen = random.permutation(long_enough)[:count]
    return torch.from_numpy(np.stack([sequence.read(int(start), tokens) for start in chosen]))


def invariance(decoder: Decoder, prompts_NT: Tensor) -> Invariance:
    """The variation over prompts `[N, T]`, in float64; of fixed operators there is none.

    The prompts are read twice, for the mean and for what differs from it, so that memory does not grow with them; one
    at a time, so that the same prompt gives the same operator to the bit.
    """
    with progress("deducing operators", 2 * len(prompts_NT), "prompts") as advance:

        def read() -> Iterator[Outputs]:
            for prompt_T in prompts_NT:
                yield _deduced(operators(decoder, prompt_T[None]))
                advance(1)

        means = _means(read(), len(prompts_NT))
        distances = [{key: float((x - means[key]).square().sum()) for key, x in found.items()} for found in read()]
    sizes = {key: float(mean.square().sum()) for key, mean in means.items()}
    outputs = [_output(name, distances, sizes) for name in dict.fromkeys(name for name, _ in means)]
    return Invariance(len(prompts_NT), prompts_NT.shape[1], outputs)


def _deduced(layers: Operators) -> Outputs:
    """In float64; nothing of a layer that has only its fixed `G`."""
    having = [(number, layer) for number, layer in enumerate(layers) if len(layer) > 1]
    return {(name, number): x_HKK.double() for number, layer in having for name, x_HKK in layer.items()}


def _means(found: Iterator[Outputs], count: int) -> Outputs:
    """The mean of each output, as the first one and what the others differ by: exact where none differs."""
    first = next(found)
    sums = {key: torch.zeros_like(x_HKK) for key, x_HKK in first.items()}
    for outputs in found:
        for key, x_HKK in outputs.items():
            sums[key] += x_HKK - first[key]
    return {key: x_HKK + sums[key] / count for key, x_HKK in first.items()}


def _output(
    name: str, distances: list[dict[tuple[str, int], float]], sizes: dict[tuple[str, int], float]
) -> OutputVariation:
    """From the squared distances of each prompt's outputs, and the squared sizes of their means."""
    of_layer = {key: [of_prompt[key] for of_prompt in distances] for key in sizes if key[0] == name}
    together = [sum(of_prompt) for of_prompt in zip(*of_layer.values(), strict=True)]
    layers = {key[1]: _variation(squares, sizes[key]) for key, squares in of_layer.items()}
    return OutputVariation(name, _variation(together, sum(sizes[key] for key in of_layer)), layers)


def _variation(squared_distances: list[float], squared_size: float) -> Variation:
    if squared_size == 0 or not math.isfinite(sum(squared_distances)):
        return Variation(math.nan, math.nan)
    mean = sum(squared_distances) / len(squared_distances)
    return Variation(math.sqrt(mean / squared_size), math.sqrt(max(squared_distances) / squared_size))
