"""The lifetimes of the vocabulary in the lowest layer: known without any text.

What a token leaves behind there, and how fast it fades, depend on its vocabulary entry alone.

Legend: `V` entries, `N` heads, `A` ages, `D` model width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.data.tokenizer import Tokenizer
from linnet.inspection.lifetimes.contributions import norms_and_rates
from linnet.inspection.lifetimes.steps import json_steps
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import DecayingMixer
from linnet.model.decoder import Decoder
from linnet.model.stack import Block
from linnet.ops.decay.eviction import half_lives, lifetimes, relevance

ENTRIES_AT_ONCE = 8192
CURVES = 6
"""As many entries are followed over time where none are named."""

AGES = 200
"""About so many ages of a curve."""

LEAST_AGE, MOST_AGE = 10, 10**12
"""Where curves end: not before the one, and not after the other, which is more than anybody reads."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The entries of the vocabulary in the lowest layer, by token id.

    names: as people read them (`Tokenizer.show`). norms_VN, rates_VN: of each head, float64. lifetimes_V: whole steps,
    perhaps infinite. half_lives_V: steps.
    """

    threshold: float
    names: list[str]
    norms_VN: Tensor
    rates_VN: Tensor
    lifetimes_V: Tensor
    half_lives_V: Tensor

    @property
    def norms(self) -> Tensor:
        """The relevance at age 0, `[V]`."""
        norms_V: Tensor = torch.linalg.vector_norm(self.norms_VN, dim=1)
        return norms_V

    @property
    def ranked(self) -> list[int]:
        """The token ids, longest life first."""
        # Those that live equally long, for a step or for ever, by what is left at their half-life.
        order = zip((-self.lifetimes_V).tolist(), (-self.half_lives_V).tolist(), range(len(self.names)), strict=True)
        return [token for *_, token in sorted(order)]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON; the longest life first."""
        norms, half, steps = self.norms.tolist(), self.half_lives_V.tolist(), self.lifetimes_V.tolist()
        entries = [
            {
                "token": token,
                "entry": self.names[token],
                "lifetime": json_steps(steps[token]),
                "half_life": json_safe(half[token]),
                "norm": norms[token],
            }
            for token in self.ranked
        ]
        return {"layer": 0, "heads": self.rates_VN.shape[1], "entries": entries}


@dataclass(frozen=True)
class Curve:
    """The relevance of one vocabulary entry at each age."""

    token: int
    name: str
    relevance: list[float]


@dataclass(frozen=True)
class Curves:
    """Several entries over time, the longest life first. `ages`: in steps."""

    ages: list[int]
    curves: list[Curve]

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON."""
        curves = [{"token": one.token, "entry": one.name, "relevance": one.relevance} for one in self.curves]
        return {"layer": 0, "ages": self.ages, "curves": curves}


def unknown_without_text(decoder: Decoder) -> str | None:
    """Why the lowest layer's lifetimes depend on more than the vocabulary entry; None where they do not."""
    if not isinstance(decoder.mixers[0], DecayingMixer):
        return f"the lowest layer is {decoder.spec.layer_kinds[0]}, not ted"
    if not decoder.mixers[0].reads_alone:
        return "the lowest layer reads a token with those just before it"
    return None if decoder.spec.embedding.positions == "none" else "the model adds positions to its tokens"


def vocabulary_lifetimes(decoder: Decoder, tokenizer: Tokenizer, threshold: float) -> Vocabulary:
    """Every entry that the tokenizer knows; `unknown_without_text` must be None.

    Quantities and rates are what the model computes, in its own precision; what follows from them is in float64.
    """
    found = [
        _contributions(decoder, torch.arange(start, min(start + ENTRIES_AT_ONCE, tokenizer.vocab_size)))
        for start in range(0, tokenizer.vocab_size, ENTRIES_AT_ONCE)
    ]
    norms_VN, rates_VN = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Vocabulary(
        threshold,
        [tokenizer.describe_token(token) for token in range(tokenizer.vocab_size)],
        norms_VN,
        rates_VN,
        lifetimes(norms_VN, rates_VN, threshold),
        half_lives(norms_VN, rates_VN),
    )


@torch.no_grad()
def _contributions(decoder: Decoder, tokens_V: Tensor) -> tuple[Tensor, Tensor]:
    """The norms and rates `[V, N]` of entries in the lowest layer, on the CPU."""
    x_1VD = decoder.embedding(tokens_V[None].to(decoder.device), BatchLayout())
    block, layer = decoder.blocks[0], decoder.layers[0]
    assert isinstance(block, Block) and isinstance(layer.mixer, DecayingMixer)
    if block.project is not None:
        x_1VD = block.project(x_1VD)
    x_1VD = layer.mix_embedding(x_1VD, x_1VD)
    norms_1VN, rates_1VN = norms_and_rates(layer.mixer, layer.mixer_norm(x_1VD) if layer.pre else x_1VD)
    return norms_1VN[0], rates_1VN[0]


def follow(vocabulary: Vocabulary, tokens: Sequence[int]) -> Curves:
    """The relevance of some entries from age 0 until the longest finite life among them has passed."""
    chosen = [token for token in vocabulary.ranked if token in set(tokens)]
    ages = _ages(vocabulary.lifetimes_V[chosen])
    ages_A1 = torch.tensor(ages, dtype=torch.float64)[:, None]
    found_AX = relevance(vocabulary.norms_VN[chosen], vocabulary.rates_VN[chosen], ages_A1)
    curves = [
        Curve(token, vocabulary.names[token], found_A.tolist())
        for token, found_A in zip(chosen, found_AX.T, strict=True)
    ]
    return Curves(ages, curves)


def _ages(lifetimes_X: Tensor) -> list[int]:
    """Ages about evenly spaced in their logarithm, with the powers of ten, to a quarter more than the longest life."""
    finite = [lifetime for lifetime in lifetimes_X.tolist() if math.isfinite(lifetime)]
    last = min(max(LEAST_AGE, math.ceil(1.25 * max(finite, default=0))), MOST_AGE)
    steps = {round(last ** (step / AGES)) for step in range(AGES + 1)}
    tens = {10**power for power in range(len(str(last)))}
    return [0, *sorted(steps | tens)]


def spread_entries(vocabulary: Vocabulary, count: int = CURVES) -> list[int]:
    """Entries from the longest to the shortest life, evenly by rank; those that print as they are if there are any."""
    ranked = [token for token in vocabulary.ranked if "\\" not in vocabulary.names[token]] or vocabulary.ranked
    places = torch.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().long()
    return [ranked[place] for place in places.tolist()]


def tokens_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The distinct tokens of texts, in their order; `UserError` for a text without any."""
    found: list[int] = []
    for text in texts:
        tokens = tokenizer.encode(text)
        if not tokens:
            raise UserError("has no token", field="token", value=repr(text), accepted="some text")
        found += tokens
    return list(dict.fromkeys(found))
