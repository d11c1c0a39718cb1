"""`linnet inspect lifetimes`: the lifetimes of tokens with trainable exponential decays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.layers.inspection import Inspection, InspectionTarget
from linnet.layers.mixers.ted.lifetimes import (
    UPPER,
    Curves,
    TextLifetimes,
    VocabularyLifetimes,
    follow,
    quantile,
    spread_entries,
    steps,
    ted_layers,
    text_lifetimes,
    tokens_of,
    unknown_without_text,
    vocabulary_lifetimes,
    whole_steps,
)
from linnet.layers.mixers.ted.module import Ted
from linnet.present import numbers
from linnet.present.numbers import exact
from linnet.present.plot import Axis, Panel, Plot, Rule, Series
from linnet.present.result import Picture, Result
from linnet.present.table import Table

MORE = "--entries shows more of the vocabulary, --token chooses whose relevance is shown over time, --out draws it."

BARS = 40
"""The approximate maximum number of bars; each is at least a step wide."""

MARKED_AGE = 12
"""Up to this age every step has a dot."""

SOLID_LINES = 10
"""With more lines every second one is dotted."""

MIN_OF_THRESHOLD, MIN_DRAWN = 1e-2, 1e-300
"""The lower end of the axis relative to the threshold, and the value for 0, which a logarithmic axis does not have."""


class LifetimesOptions(Spec):
    """Options of `linnet inspect lifetimes`."""

    threshold: float = Field(1e-8, description="A token's life ends when its relevance is below this.")
    token: list[str] = Field(
        [], description="Show the relevance of this text's tokens over time (repeatable); by default of six entries."
    )
    entries: Annotated[int, Field(ge=1)] = Field(
        20, description="Print this many of the longest and of the shortest lifetimes."
    )
    windows: Annotated[int, Field(ge=1)] = Field(8, description="Windows of text to read, spread evenly.")


@dataclass(frozen=True)
class Lifetimes(Result):
    """Lifetimes of the vocabulary in the lowest layer, some entries over time, and lifetimes of the tokens of a text.

    unknown: the reason why nothing is known without a text, else None. entries: the number of table rows.
    """

    model: str
    threshold: float
    unknown: str | None
    vocabulary: VocabularyLifetimes | None
    curves: Curves | None
    text: TextLifetimes | None
    entries: int = 20
    data: str | None = None
    split: str = "validation"

    def title(self) -> str:
        return f"Lifetimes of {self.model}"

    def facts(self) -> dict[str, str]:
        facts = {"threshold": f"until relevance is below {exact(self.threshold)}"}
        if self.unknown is not None:
            facts["vocabulary"] = f"{self.unknown}, so nothing is known without text"
        return facts if self.data is None else facts | {"text": f"{self.split} split of {self.data}"}

    def tables(self) -> list[Table]:
        tables = [] if self.vocabulary is None else _vocabulary_tables(self.vocabulary, self.entries)
        if self.vocabulary is not None and self.curves is not None:
            tables.append(_curves_table(self.vocabulary, self.curves))
        if self.text is not None:
            tables.append(_layers_table(self.text, self.threshold))
        return tables

    def plots(self) -> list[Picture]:
        pictures = []
        if self.vocabulary is not None:
            lives = self.vocabulary.lifetimes_V.numpy()
            caption = f"{numbers.grouped(len(lives))} entries; each counts once, regardless of its frequency."
            for count, reason in ((lives == 0).sum(), "never kept"), (np.isinf(lives).sum(), "endless"):
                if count:
                    caption += f" {numbers.grouped(count)} not shown: {reason}."
            pictures.append(Picture("vocabulary", "Lifetimes of the vocabulary, layer 0", histogram(lives), caption))
        if self.curves is not None:
            caption = (
                "The remaining norm of a vocabulary entry in the lowest layer. Its lifetime ends where its line crosses"
                " the dashed one. With several heads a line ends with the slope of the slowest rate."
            )
            plot = relevance_curves(self.curves, self.threshold)
            pictures.append(Picture("relevance", "Relevance over time, layer 0", plot, caption))
        if self.text is not None:
            count = numbers.grouped(self.text.windows * self.text.tokens)
            caption = f"Over {count} tokens of text. Points are missing for 0, endless, and layers without ted."
            plot = layer_points(self.text)
            pictures.append(Picture("layers", "Lifetimes of a text's tokens, by layer", plot, caption))
        return pictures

    def conclusion(self) -> str:
        return MORE if self.curves else ""

    def to_dict(self) -> dict[str, Any]:
        """The figures for JSON; null for those that were not requested or are unknown."""
        data = {} if self.data is None else {"data": self.data, "split": self.split}
        return {
            "model": self.model,
            **data,
            "threshold": self.threshold,
            "unknown_without_text": self.unknown,
            "vocabulary": self.vocabulary and self.vocabulary.figures(),
            "relevance": self.curves and self.curves.figures(),
            "text": self.text and self.text.figures(),
        }


def inspect_lifetimes(target: InspectionTarget, options: LifetimesOptions) -> Lifetimes:
    """Compute the lifetimes of a model's vocabulary, and with data those of a text's tokens.

    `UserError` if the model has no ted layer, nothing is known without a text, or model and data do not fit.
    """
    threshold, name = options.threshold, target.source
    if threshold <= 0:
        raise UserError(field="threshold", value=exact(threshold), accepted="a number above 0")
    model = target.model()
    layers = ted_layers(model, name)
    unknown = unknown_without_text(model)
    if unknown is not None and (target.data is None or options.token):
        token = f"`token` {options.token[0]!r}: " if options.token else ""
        raise UserError(f"{token}{name}: {unknown}, so lifetimes depend on the text; expected `data` alone")
    try:
        vocabulary = None if unknown else vocabulary_lifetimes(model, threshold)
        text = None
        if target.data is not None:
            text = text_lifetimes(model, model.windows(options.windows), layers, threshold)
    except FloatingPointError as error:
        raise UserError(f"{name}: {error}") from None
    curves = None
    if vocabulary is not None:
        curves = follow(vocabulary, tokens_of(options.token, model.tokenizer) or spread_entries(vocabulary))
    return Lifetimes(name, threshold, unknown, vocabulary, curves, text, options.entries, target.data, target.split)


def _vocabulary_tables(vocabulary: VocabularyLifetimes, entries: int) -> list[Table]:
    ranked = vocabulary.ranked
    known = (
        "Computed from the vocabulary entry alone, without a text. Lifetime: steps until its relevance, the remaining"
        f" norm, is below {exact(vocabulary.threshold)}. Half-life: steps in which its relevance halves."
    )
    if len(ranked) <= 2 * entries:
        return [_entries_table("Vocabulary in layer 0", vocabulary, ranked, known)]
    middle, upper = (whole_steps(quantile(vocabulary.lifetimes_V, share)) for share in (0.5, UPPER))
    spread = f" Of all {numbers.grouped(len(ranked))} entries the median is {middle}, the 90th percentile {upper}."
    return [
        _entries_table("Vocabulary in layer 0: longest lives", vocabulary, ranked[:entries], known + spread),
        _entries_table(
            "Vocabulary in layer 0: shortest lives",
            vocabulary,
            ranked[: -entries - 1 : -1],
            "The JSON has all entries.",
        ),
    ]


def _entries_table(title: str, vocabulary: VocabularyLifetimes, tokens: Sequence[int], meaning: str) -> Table:
    rows, columns = [], (vocabulary.lifetimes_V, vocabulary.half_lives_V, vocabulary.norms)
    for token in tokens:
        life, half, norm = (float(of_V[token]) for of_V in columns)
        norm_text = numbers.significant(norm) if norm >= 1e-3 else f"{norm:.3g}"
        rows.append((vocabulary.names[token], str(token), whole_steps(life), steps(half), norm_text))
    return Table(title, ("entry", "token", "lifetime", "half-life", "norm"), rows, meaning)


def _curves_table(vocabulary: VocabularyLifetimes, curves: Curves) -> Table:
    # Columns are age 0 and the powers of ten.
    shown = [place for place, age in enumerate(curves.ages) if set(str(age)) <= set("10") and str(age).count("1") < 2]
    rows = [
        (
            curve.name,
            whole_steps(float(vocabulary.lifetimes_V[curve.token])),
            *(f"{curve.relevance[place]:.3g}" for place in shown),
        )
        for curve in curves.curves
    ]
    ages = [numbers.metric(curves.ages[place]) for place in shown]
    return Table(
        "Relevance over time, layer 0",
        ("entry", "lifetime", *(f"after {age}" for age in ages)),
        rows,
        "The remaining norm of an entry after the given number of steps.",
    )


def _layers_table(text: TextLifetimes, threshold: float) -> Table:
    rows = [
        (
            f"layer {layer.layer}",
            whole_steps(layer.median),
            whole_steps(layer.upper),
            steps(layer.half_life),
            f"{layer.never_kept:.1%}",
            f"{layer.outlive:.1%}",
            f"{layer.average_context:,.1f}",
        )
        for layer in text.layers
    ]
    return Table(
        "Tokens of the text",
        (
            "",
            "lifetime: median",
            "90th percentile",
            "half-life: median",
            "never kept",
            "outlive the window",
            "average context",
        ),
        rows,
        f"Over {text.windows} window{'s' * (text.windows > 1)} of {numbers.grouped(text.tokens)} tokens. Lifetimes are"
        " computed from quantity and rate, so those longer than the window are as exact as the others."
        f" Never kept: below {exact(threshold)} from the start. Average context: tokens above {exact(threshold)}, as a"
        f" mean over the steps of a window; {text.whole_context:,.1f} if it drops nothing.",
    )


def histogram(lifetimes: NDArray[np.float64]) -> Plot:
    """A histogram with a logarithmic axis; the area of a bar is its number of entries. 0 and infinity are not shown."""
    shown, drawn = lifetimes[np.isfinite(lifetimes) & (lifetimes > 0)], []
    if shown.size:
        edges = bar_edges(float(shown.min()), float(shown.max()))
        counts, _ = np.histogram(shown, edges)
        # Bars have different widths, as lifetimes are whole steps, so the height is per doubling.
        drawn.append(Series(edges, counts / np.diff(np.log2(edges)), style="bars"))
    x = Axis("lifetime, steps", "log" if drawn else "linear", numbers.metric)
    return Plot([Panel(x, Axis("entries per doubling of the lifetime"), drawn)], (9.0, 4.2))


def bar_edges(shortest: float, longest: float) -> NDArray[np.float64]:
    """Edges half-way between whole lifetimes, at a constant ratio, but at least one step apart."""
    ratio = max(2.0 ** (1 / 8), (longest / shortest) ** (1 / BARS))
    edges = [shortest - 0.5]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, math.floor(edges[-1] * ratio) + 0.5))
    return np.array(edges)


def relevance_curves(curves: Curves, threshold: float) -> Plot:
    """A line for each entry, from dark to light, with logarithmic axes and age 0; the threshold is dashed."""
    count = len(curves.curves)
    dots = [place for place, age in enumerate(curves.ages) if age <= MARKED_AGE]
    drawn = [
        Series(
            curves.ages,
            np.maximum(curve.relevance, MIN_DRAWN),
            curve.name,
            "o:" if place % 2 and count > SOLID_LINES else "o-",
            place / max(1, count - 1),
            dots=dots,
        )
        for place, curve in enumerate(curves.curves)
    ]
    highest = 3 * max(threshold / MIN_OF_THRESHOLD, *(curve.relevance[0] for curve in curves.curves))
    x = Axis("age, steps", "symlog", numbers.metric, low=0, high=curves.ages[-1])
    y = Axis("relevance", "log", low=threshold * MIN_OF_THRESHOLD, high=highest)
    end = Rule(threshold, f"threshold {numbers.exact(threshold)}")
    return Plot([Panel(x, y, drawn, rules=[end])], (9.0, 4.8))


def layer_points(text: TextLifetimes) -> Plot:
    """Median, 90th percentile and average context of each layer with lifetimes, and gaps for the others."""
    last = text.layers[-1].layer
    lines = {
        "90th percentile": [layer.upper for layer in text.layers],
        "median": [layer.median for layer in text.layers],
        "average context": [layer.average_context for layer in text.layers],
    }
    drawn = []
    for number, (name, values) in enumerate(lines.items()):
        shown = np.full(last + 1, math.nan)
        shown[[layer.layer for layer in text.layers]] = values
        shown[(shown <= 0) | np.isinf(shown)] = math.nan
        drawn.append(Series(range(last + 1), shown, name, "o:" if name == "average context" else "o-", number))
    x = Axis("layer", low=-0.5, high=last + 0.5, places={layer: str(layer) for layer in range(last + 1)})
    y = Axis("lifetime, steps; context, tokens", "log", numbers.metric)
    window = Rule(text.tokens, "tokens of a window")
    return Plot([Panel(x, y, drawn, rules=[window])], (max(6.5, 0.5 * last + 4), 4.4))


INSPECTIONS = [
    Inspection(
        "lifetimes",
        """Show for how many steps a model with trainable exponential decays (ted) keeps each token.

    In the lowest layer a token's lifetime depends on its vocabulary entry alone. The longest and the shortest lifetimes
    and the relevance of some entries over time are shown without a text. With --data also, for every layer with ted:
    median and 90th percentile over the tokens of a text, and the size of a context without tokens below the threshold.

    Example: linnet inspect lifetimes runs/ted

    Example: linnet inspect lifetimes runs/ted --data data/stories --threshold 1e-4 --out inspected

    Example: linnet inspect lifetimes runs/ted --token " the" --token " dragon" --entries 50
    """,
        LifetimesOptions,
        inspect_lifetimes,
        data="optional",
        applies=lambda model: any(isinstance(mixer, Ted) for mixer in model.mixers),
    )
]
"""The inspections of this kind (`layers.registry`)."""
