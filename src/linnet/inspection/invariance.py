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
from linnet.data.shards import TokenSequence
from linnet.data.split import Split
from linnet.evaluation.folder import model_on_data
from linnet.inspection.matrices import json_ready
from linnet.model.decoder import Decoder
from linnet.model.watched import Operators, deduces_operators, operators
from linnet.present.progress import progress

PROMPTS, TOKENS = 100, 64


@dataclass(frozen=True)
class Variation:
    """Over prompts, `||X - mean|| / ||mean||`, Frobenius norms: the root mean square and the largest."""

    rms: float
    largest: float

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        return dict(json_ready({"variation": self.rms, "largest": self.largest}))


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
    prompts: int = PROMPTS,
    tokens: int = TOKENS,
    seed: int = 0,
    device: str = "auto",
) -> Invariance:
    """Measure a model folder over prompts from a data folder (`document_prompts`).

    `UserError` where model and data do not fit, or the model deduces no operator.
    """
    subject = model_on_data(model, data_folder, split, operator_from="empty", device=device)
    if not deduces_operators(subject.decoder, str(model)):
        raise UserError(f"{model}: its operators are fixed, they do not vary; expected a model that deduces them")
    known = subject.decoder.spec.context_length
    if tokens > known and subject.decoder.spec.embedding.positions == "learned":
        raise UserError(f"the model's learned positions end at {known}", field="tokens", value=tokens)
    return invariance(
        subject.decoder, document_prompts(subject.sequence, subject.data.tokenizer.end_id, prompts, tokens, seed)
    )


def document_prompts(sequence: TokenSequence, end_id: int, count: int, tokens: int, seed: int) -> Tensor:
    """The beginnings `[N, T]` of documents drawn at random: the end token before them, then their own tokens.

    Only documents with as many tokens are drawn from, none twice; all of them where there are no more than `count`.
    `UserError` where there are not two.
    """
    ends = sequence.positions(end_id)
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

        def read() -> Iterator[Operators]:
            for prompt_T in prompts_NT:
                yield [_learned(layer) for layer in operators(decoder, prompt_T[None])]
                advance(1)

        means = _means(read(), len(prompts_NT))
        distances = [_distances(found, means) for found in read()]
    outputs = [_output(name, distances, means) for name in dict.fromkeys(name for layer in means for name in layer)]
    return Invariance(len(prompts_NT), prompts_NT.shape[1], outputs)


def _learned(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a layer in float64; nothing of a layer that has only its fixed `G`."""
    return {name: x_HKK.double() for name, x_HKK in layer.items()} if len(layer) > 1 else {}


def _means(found: Iterator[Operators], count: int) -> Operators:
    """The mean of each output, as the first one and what the others differ by: exact where none differs."""
    first = next(found)
    sums = [{name: torch.zeros_like(x) for name, x in layer.items()} for layer in first]
    for layers in found:
        for total, layer, of_first in zip(sums, layers, first, strict=True):
            for name, x in layer.items():
                total[name] += x - of_first[name]
    return [
        {name: of_first[name] + total / count for name, total in of_sums.items()}
        for of_sums, of_first in zip(sums, first, strict=True)
    ]


def _distances(found: Operators, means: Operators) -> list[dict[str, float]]:
    """The squared distance of each layer's outputs from their means."""
    return [
        {name: float((x - mean[name]).square().sum()) for name, x in layer.items()}
        for layer, mean in zip(found, means, strict=True)
    ]


def _output(name: str, distances: list[list[dict[str, float]]], means: Operators) -> OutputVariation:
    """`distances[prompt][layer][name]`."""
    having = [number for number, layer in enumerate(means) if name in layer]
    sizes = {number: float(means[number][name].square().sum()) for number in having}
    of_layer = {number: [prompt[number][name] for prompt in distances] for number in having}
    together = [sum(of_prompt) for of_prompt in zip(*of_layer.values(), strict=True)]
    return OutputVariation(
        name,
        _variation(together, sum(sizes.values())),
        {number: _variation(of_layer[number], sizes[number]) for number in having},
    )


def _variation(squared_distances: list[float], squared_size: float) -> Variation:
    if squared_size == 0 or not math.isfinite(sum(squared_distances)):
        return Variation(math.nan, math.nan)
    mean = sum(squared_distances) / len(squared_distances)
    return Variation(math.sqrt(mean / squared_size), math.sqrt(max(squared_distances) / squared_size))
