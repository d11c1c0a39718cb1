"""For how many steps a TED layer remembers each token: of its vocabulary in the lowest layer, and of a text's tokens.

What a token leaves behind in the lowest layer, and how fast it fades, depend on its vocabulary entry alone, so it is
known without any text. In other layers the model computes it from the text, long before the token has faded.

Shapes: `V` vocabulary entries, `N` heads, `A` ages, `W` windows, `T` tokens of a window, `D` model width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import json_safe
from linnet.layers.inspection import InspectedModel, Vocabulary
from linnet.layers.mixers.ted.module import Ted
from linnet.ops.decay.eviction import half_lives, lifetimes, relevance
from linnet.present import numbers
from linnet.present.progress import progress

EXACT = 2.0**53
"""From here on float64 does not know every whole number."""

GROUPED = 1e9
"""From here on so many digits say nothing."""

ENDLESS = "endless"


def whole_steps(lifetime: float) -> str:
    """`1,234`, `3.2e+12`, or `endless`."""
    if math.isinf(lifetime):
        return ENDLESS
    return numbers.grouped(lifetime) if lifetime < GROUPED else f"{lifetime:.3g}"


def steps(age: float) -> str:
    """Three digits: `0.231`, `12.0`, `1,234`; `3.2e+12`, or `endless`."""
    return numbers.significant(age) if age < 1000 else whole_steps(age)


def json_steps(lifetime: float) -> int | float | None:
    """None, which is null, for one that never ends."""
    if math.isinf(lifetime):
        return None
    return int(lifetime) if lifetime < EXACT else lifetime


def ted_layers(model: InspectedModel, name: str) -> list[int]:
    """The numbers of the layers with trainable exponential decays; `UserError` naming the model if there is none."""
    layers = [number for number, mixer in enumerate(model.mixers) if isinstance(mixer, Ted)]
    if not layers:
        kinds = ", ".join(dict.fromkeys(model.kinds))
        raise UserError(f"{name}: no token of it has a lifetime: its token mixer is {kinds}; expected a model with ted")
    return layers


@torch.no_grad()
def norms_and_rates(mixer: Ted, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of each head's quantity and the rates, `[B, T, N]`, as the model computes them, then in float64.

    `FloatingPointError` where one of them is not finite: a model that has broken down.
    """
    v_BTNC, rates_BTN = mixer.contributions(x_BTD)
    norms_BTN = torch.linalg.vector_norm(v_BTNC.double(), dim=-1)
    if not (norms_BTN.isfinite().all() and rates_BTN.isfinite().all()):
        raise FloatingPointError("quantities or rates are not finite, so its tokens have no lifetimes")
    return norms_BTN.cpu(), rates_BTN.double().cpu()


def text_contributions(model: InspectedModel, tokens_T: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The norms and rates `[T, N]` of a text's tokens in each ted layer, from one pass as in training."""
    read = zip(model.mixers, model.mixer_inputs(tokens_T[None]), strict=True)
    found = [norms_and_rates(mixer, x_1TD) for mixer, x_1TD in read if isinstance(mixer, Ted)]
    return [(norms_1TN[0], rates_1TN[0]) for norms_1TN, rates_1TN in found]


ENTRIES_AT_ONCE = 8192
CURVES = 6
"""As many entries are followed over time where none are named."""

AGES = 200
"""About so many ages of a curve."""

LEAST_AGE, MOST_AGE = 10, 10**12
"""Where curves end: not before the one, and not after the other, which is more than anybody reads."""


@dataclass(frozen=True, eq=False)
class VocabularyLifetimes:
    """The entries of the vocabulary in the lowest layer, by token id.

    names: as people read them. norms_VN, rates_VN: of each head, float64. lifetimes_V: whole steps, perhaps infinite.
    half_lives_V: steps.
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
        curves = [{"token": one.token, "entry": one.name, "relevance": one.relevance} for one in self.curves]
        return {"layer": 0, "ages": self.ages, "curves": curves}


def unknown_without_text(model: InspectedModel) -> str | None:
    """Why the lowest layer's lifetimes depend on more than the vocabulary entry; None where they do not."""
    lowest = model.mixers[0]
    if not isinstance(lowest, Ted):
        return f"the lowest layer is {model.kinds[0]}, not ted"
    if not lowest.reads_alone:
        return "the lowest layer reads a token with those just before it"
    return None if model.positions == "none" else "the model adds positions to its tokens"


def vocabulary_lifetimes(model: InspectedModel, threshold: float) -> VocabularyLifetimes:
    """Every entry that the tokenizer knows; `unknown_without_text` must be None.

    Quantities and rates are what the model computes, in its own precision; what follows from them is in float64.
    """
    tokenizer, lowest = model.tokenizer, model.mixers[0]
    assert isinstance(lowest, Ted)
    size = tokenizer.vocab_size
    every = [torch.arange(start, min(start + ENTRIES_AT_ONCE, size)) for start in range(0, size, ENTRIES_AT_ONCE)]
    found = [norms_and_rates(lowest, model.first_mixer_inputs(tokens_V)) for tokens_V in every]
    norms_VN, rates_VN = (torch.cat([part_1VN[0] for part_1VN in parts]) for parts in zip(*found, strict=True))
    return VocabularyLifetimes(
        threshold,
        [tokenizer.describe_token(token) for token in range(size)],
        norms_VN,
        rates_VN,
        lifetimes(norms_VN, rates_VN, threshold),
        half_lives(norms_VN, rates_VN),
    )


def follow(vocabulary: VocabularyLifetimes, tokens: Sequence[int]) -> Curves:
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


def spread_entries(vocabulary: VocabularyLifetimes, count: int = CURVES) -> list[int]:
    """Entries from the longest to the shortest life, evenly by rank; those that print as they are if there are any."""
    ranked = [token for token in vocabulary.ranked if "\\" not in vocabulary.names[token]] or vocabulary.ranked
    places = torch.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().long()
    return [ranked[place] for place in places.tolist()]


def tokens_of(texts: Sequence[str], tokenizer: Vocabulary) -> list[int]:
    """The distinct tokens of texts, in their order; `UserError` for a text without any."""
    found: list[int] = []
    for text in texts:
        tokens = tokenizer.encode(text)
        if not tokens:
            raise UserError("has no token", field="token", value=repr(text), accepted="some text")
        found += tokens
    return list(dict.fromkeys(found))


UPPER = 0.9
"""Beside the median, the 90th percentile is shown."""


@dataclass(frozen=True, eq=False)
class LayerLifetimes:
    """One layer. lifetimes_WT: whole steps, perhaps infinite; half_lives_WT: steps."""

    layer: int
    lifetimes_WT: Tensor
    half_lives_WT: Tensor

    @property
    def median(self) -> float:
        """Half of the tokens live so long or shorter."""
        return quantile(self.lifetimes_WT, 0.5)

    @property
    def upper(self) -> float:
        """Nine of ten tokens live so long or shorter."""
        return quantile(self.lifetimes_WT, UPPER)

    @property
    def half_life(self) -> float:
        """The median."""
        return quantile(self.half_lives_WT, 0.5)

    @property
    def never_kept(self) -> float:
        """The share of tokens that are below the threshold from the start."""
        return float((self.lifetimes_WT == 0).double().mean())

    @property
    def outlive(self) -> float:
        """The share of tokens that are still above the threshold when as many more as a window has have been read."""
        return float((self.lifetimes_WT > self.lifetimes_WT.shape[1]).double().mean())

    @property
    def average_context(self) -> float:
        """How many tokens a context holds that drops what is below the threshold: the mean over a window's steps.

        Every step counts after the drop. A token joins at its own step and is held for its lifetime, or to the
        window's end.
        """
        length = self.lifetimes_WT.shape[1]
        to_the_end_T = length - torch.arange(length, dtype=torch.float64)
        return float(torch.minimum(self.lifetimes_WT, to_the_end_T).sum(dim=1).mean() / length)

    def figures(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "median": json_steps(self.median),
            "percentile_90": json_steps(self.upper),
            "half_life_median": json_safe(self.half_life),
            "share_never_kept": self.never_kept,
            "share_outliving_window": self.outlive,
            "average_context": self.average_context,
        }


@dataclass(frozen=True)
class TextLifetimes:
    """Every token of so many windows of so many tokens, in each ted layer."""

    windows: int
    tokens: int
    layers: list[LayerLifetimes]

    @property
    def whole_context(self) -> float:
        """The average context of a layer that drops nothing."""
        return (self.tokens + 1) / 2

    def figures(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "tokens": self.tokens,
            "whole_context": self.whole_context,
            "per_layer": [layer.figures() for layer in self.layers],
        }


def text_lifetimes(model: InspectedModel, windows_WT: Tensor, layers: Sequence[int], threshold: float) -> TextLifetimes:
    """Read every window `[W, T]` and compute its tokens' lifetimes in the layers, which are those with ted."""
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
    with progress("reading", len(windows_WT), "windows") as advance:
        for tokens_T in windows_WT:
            for of_layer, read in zip(found, text_contributions(model, tokens_T), strict=True):
                of_layer.append((lifetimes(*read, threshold), half_lives(*read)))
            advance(1)
    return TextLifetimes(
        len(windows_WT),
        windows_WT.shape[1],
        [
            LayerLifetimes(layer, *(torch.stack(parts) for parts in zip(*of_layer, strict=True)))
            for layer, of_layer in zip(layers, found, strict=True)
        ],
    )


def quantile(values: Tensor, share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed; perhaps infinite."""
    ordered = values.flatten().sort().values
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])
