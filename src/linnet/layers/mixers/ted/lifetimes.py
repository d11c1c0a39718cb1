"""The lifetimes of tokens in TED layers, in steps: of the vocabulary in the lowest layer, and of the tokens of a text.

In the lowest layer the quantity and the rates of a token depend on its vocabulary entry alone, so lifetimes are known
without a text. In other layers they are computed from the quantities and rates of the tokens of a text.

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

MAX_EXACT = 2.0**53
"""From here on float64 does not represent every whole number."""

MAX_GROUPED = 1e9
"""From here on numbers are printed with an exponent."""


def whole_steps(lifetime: float) -> str:
    """A lifetime as text: `1,234`, `3.2e+12`, or `endless`."""
    if math.isinf(lifetime):
        return "endless"
    return numbers.grouped(lifetime) if lifetime < MAX_GROUPED else f"{lifetime:.3g}"


def steps(age: float) -> str:
    """An age as text, with three digits: `0.231`, `12.0`, `1,234`, `3.2e+12`, or `endless`."""
    return numbers.significant(age) if age < 1000 else whole_steps(age)


def json_steps(lifetime: float) -> int | float | None:
    """A lifetime for JSON; null if it is endless."""
    if math.isinf(lifetime):
        return None
    return int(lifetime) if lifetime < MAX_EXACT else lifetime


def ted_layers(model: InspectedModel, name: str) -> list[int]:
    """The indices of the layers with trainable exponential decays; `UserError` naming the model if it has none."""
    layers = [number for number, mixer in enumerate(model.mixers) if isinstance(mixer, Ted)]
    if not layers:
        kinds = ", ".join(dict.fromkeys(model.kinds))
        raise UserError(f"{name}: its tokens have no lifetime: its token mixer is {kinds}; expected a model with ted")
    return layers


@torch.no_grad()
def norms_and_rates(mixer: Ted, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of each head's quantity and the rates, `[B, T, N]`, computed by the model and converted to float64.

    `FloatingPointError` if one of them is not finite.
    """
    v_BTNC, rates_BTN = mixer.contributions(x_BTD)
    norms_BTN = torch.linalg.vector_norm(v_BTNC.double(), dim=-1)
    if not (norms_BTN.isfinite().all() and rates_BTN.isfinite().all()):
        raise FloatingPointError("quantities or rates are not finite, so its tokens have no lifetimes")
    return norms_BTN.cpu(), rates_BTN.double().cpu()


def text_contributions(model: InspectedModel, tokens_T: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The norms and rates `[T, N]` of a text's tokens in each ted layer, from one pass as in training."""
    inputs = zip(model.mixers, model.mixer_inputs(tokens_T[None]), strict=True)
    read = [norms_and_rates(mixer, x_1TD) for mixer, x_1TD in inputs if isinstance(mixer, Ted)]
    return [(norms_1TN[0], rates_1TN[0]) for norms_1TN, rates_1TN in read]


ENTRIES_AT_ONCE = 8192
CURVES = 6
"""The number of entries with a curve if none are named."""

AGES = 200
"""The approximate number of ages of a curve."""

MIN_LAST_AGE, MAX_LAST_AGE = 10, 10**12
"""The range of the last age of curves."""


@dataclass(frozen=True, eq=False)
class VocabularyLifetimes:
    """The entries of the vocabulary in the lowest layer, by token id.

    names: the printable forms. norms_VN, rates_VN: for each head, float64. lifetimes_V: in whole steps, may be
    infinite. half_lives_V: in steps.
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
        """The token ids in descending order of lifetime; equal lifetimes in descending order of half-life."""
        order = zip((-self.lifetimes_V).tolist(), (-self.half_lives_V).tolist(), range(len(self.names)), strict=True)
        return [token for *_, token in sorted(order)]

    def figures(self) -> dict[str, Any]:
        """The figures for JSON, in descending order of lifetime."""
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
    """Several entries over time, in descending order of lifetime; ages in steps."""

    ages: list[int]
    curves: list[Curve]

    def figures(self) -> dict[str, Any]:
        curves = [{"token": one.token, "entry": one.name, "relevance": one.relevance} for one in self.curves]
        return {"layer": 0, "ages": self.ages, "curves": curves}


def unknown_without_text(model: InspectedModel) -> str | None:
    """The reason why lifetimes in the lowest layer depend on more than the vocabulary entry; None if they do not."""
    lowest = model.mixers[0]
    if not isinstance(lowest, Ted):
        return f"the lowest layer is {model.kinds[0]}, not ted"
    if lowest.conv is not None:
        return "the lowest layer reads a token with those just before it"
    return None if model.positions == "none" else "the model adds positions to its tokens"


def vocabulary_lifetimes(model: InspectedModel, threshold: float) -> VocabularyLifetimes:
    """The lifetimes of every entry of the tokenizer; `unknown_without_text` must be None.

    Quantities and rates are computed in the model's precision, lifetimes in float64.
    """
    tokenizer, lowest = model.tokenizer, model.mixers[0]
    assert isinstance(lowest, Ted)
    size = tokenizer.vocab_size
    parts = torch.split(torch.arange(size), ENTRIES_AT_ONCE)
    read = [norms_and_rates(lowest, model.first_mixer_inputs(tokens_V)) for tokens_V in parts]
    norms_VN, rates_VN = (torch.cat([part_1VN[0] for part_1VN in each]) for each in zip(*read, strict=True))
    return VocabularyLifetimes(
        threshold,
        [tokenizer.describe_token(token) for token in range(size)],
        norms_VN,
        rates_VN,
        lifetimes(norms_VN, rates_VN, threshold),
        half_lives(norms_VN, rates_VN),
    )


def follow(vocabulary: VocabularyLifetimes, tokens: Sequence[int]) -> Curves:
    """The relevance of some entries from age 0 until a quarter after the longest finite lifetime among them."""
    chosen = [token for token in vocabulary.ranked if token in set(tokens)]
    finite = [lifetime for lifetime in vocabulary.lifetimes_V[chosen].tolist() if math.isfinite(lifetime)]
    last = min(max(MIN_LAST_AGE, math.ceil(1.25 * max(finite, default=0))), MAX_LAST_AGE)
    # Ages are 0, the powers of ten, and about evenly spaced in their logarithm.
    spaced = {round(last ** (step / AGES)) for step in range(AGES + 1)}
    ages = [0, *sorted(spaced | {10**power for power in range(len(str(last)))})]
    ages_A1 = torch.tensor(ages, dtype=torch.float64)[:, None]
    relevance_AX = relevance(vocabulary.norms_VN[chosen], vocabulary.rates_VN[chosen], ages_A1)
    curves = [
        Curve(token, vocabulary.names[token], relevance_A.tolist())
        for token, relevance_A in zip(chosen, relevance_AX.T, strict=True)
    ]
    return Curves(ages, curves)


def spread_entries(vocabulary: VocabularyLifetimes, count: int = CURVES) -> list[int]:
    """Entries from the longest to the shortest lifetime, evenly by rank, printable ones if there are any."""
    ranked = [token for token in vocabulary.ranked if "\\" not in vocabulary.names[token]] or vocabulary.ranked
    places = torch.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().long()
    return [ranked[place] for place in places.tolist()]


def tokens_of(texts: Sequence[str], tokenizer: Vocabulary) -> list[int]:
    """The distinct tokens of texts, in order; `UserError` for a text without tokens."""
    every: list[int] = []
    for text in texts:
        tokens = tokenizer.encode(text)
        if not tokens:
            raise UserError("has no token", field="token", value=repr(text), accepted="some text")
        every += tokens
    return list(dict.fromkeys(every))


UPPER = 0.9
"""The percentile that is shown beside the median."""


@dataclass(eq=False)
class LayerLifetimes:
    """The lifetimes of a text's tokens in one layer, in whole steps, may be infinite, and their half-lives in steps.

    median, upper: the median and the 90th percentile of the lifetimes. half_life: the median half-life. never_kept: the
    share of tokens that are below the threshold from the start. outlive: the share of tokens with a lifetime longer
    than a window. average_context: the mean number of tokens above the threshold after each step of a window.
    """

    layer: int
    lifetimes_WT: Tensor
    half_lives_WT: Tensor

    def __post_init__(self) -> None:
        length = self.lifetimes_WT.shape[1]
        self.median, self.upper = (quantile(self.lifetimes_WT, share) for share in (0.5, UPPER))
        self.half_life = quantile(self.half_lives_WT, 0.5)
        self.never_kept = float((self.lifetimes_WT == 0).double().mean())
        self.outlive = float((self.lifetimes_WT > length).double().mean())
        # A token is in the context from its own step for its lifetime, or until the end of the window.
        remaining_T = length - torch.arange(length, dtype=torch.float64)
        self.average_context = float(torch.minimum(self.lifetimes_WT, remaining_T).sum(dim=1).mean() / length)

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
    """The lifetimes of every token of several windows, in each ted layer.

    windows, tokens: the number of windows, and of tokens of a window.
    """

    windows: int
    tokens: int
    layers: list[LayerLifetimes]

    @property
    def whole_context(self) -> float:
        """The average context without eviction."""
        return (self.tokens + 1) / 2

    def figures(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "tokens": self.tokens,
            "whole_context": self.whole_context,
            "per_layer": [layer.figures() for layer in self.layers],
        }


def text_lifetimes(model: InspectedModel, windows_WT: Tensor, layers: Sequence[int], threshold: float) -> TextLifetimes:
    """Read windows `[W, T]` and compute the lifetimes of their tokens in `layers`, which are the ted layers."""
    by_layer: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
    with progress("reading", len(windows_WT), "windows") as advance:
        for tokens_T in windows_WT:
            for lives, read in zip(by_layer, text_contributions(model, tokens_T), strict=True):
                lives.append((lifetimes(*read, threshold), half_lives(*read)))
            advance(1)
    measured = [
        LayerLifetimes(layer, *(torch.stack(parts) for parts in zip(*lives, strict=True)))
        for layer, lives in zip(layers, by_layer, strict=True)
    ]
    return TextLifetimes(len(windows_WT), windows_WT.shape[1], measured)


def quantile(values: Tensor, share: float) -> float:
    """The smallest value that at least this share of all values does not exceed; may be infinite."""
    ordered = values.flatten().sort().values
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])
