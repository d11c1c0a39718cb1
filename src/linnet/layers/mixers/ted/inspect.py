"""What trainable exponential decays bring to `linnet inspect`: the lifetimes of tokens."""

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
"""At most about so many; each at least a step wide."""

MARKED_AGE = 12
"""So far a step can be told from the next, and has a dot."""

TOLD_BY_COLOR = 10
"""Of more lines than that every second is dotted."""

BELOW, NOTHING = 1e-2, 1e-300
"""Curves are shown until so much of the threshold is left; nothing at all has no place on a logarithmic axis."""


class LifetimesOptions(Spec):
    """Options of `linnet inspect lifetimes`."""

    threshold: float = Field(1e-8, description="A token's life ends when its relevance is below this.")
    token: list[str] = Field(
        [], description="Show the relevance of this text's tokens over time (repeatable); by default of six entries."
    )
    entries: Annotated[int, Field(ge=1)] = Field(
        20, description="Print so many of the longest lives and of the shortest."
    )
    windows: Annotated[int, Field(ge=1)] = Field(8, description="Windows of text to read, spread evenly.")


@dataclass(frozen=True)
class Lifetimes(Result):
    """Of the vocabulary in the lowest layer, some entries over time, or why not (`unknown`); of a text's tokens."""

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
        return lifetimes_tables(self, self.entries)

    def plots(self) -> list[Picture]:
        return lifetimes_pictures(self)

    def conclusion(self) -> str:
        return MORE if self.curves else ""

    def to_dict(self) -> dict[str, Any]:
        read = {} if self.data is None else {"data": self.data, "split": self.split}
        return {"model": self.model, **read, **self.figures()}

    def figures(self) -> dict[str, Any]:
        """The numbers by name, ready for JSON; null for what was not asked for or is not known."""
        return {
            "threshold": self.threshold,
            "unknown_without_text": self.unknown,
            "vocabulary": self.vocabulary and self.vocabulary.figures(),
            "relevance": self.curves and self.curves.figures(),
            "text": self.text and self.text.figures(),
        }


def inspect_lifetimes(target: InspectionTarget, options: LifetimesOptions) -> Lifetimes:
    """The lifetimes of a model; with data also those of the tokens of its text.

    `UserError` where the model has no ted layer, nothing about it is known without a text, or model and data do not
    fit.
    """
    threshold, name = options.threshold, target.source
    if threshold <= 0:
        raise UserError(field="threshold", value=exact(threshold), accepted="a number above 0")
    model = target.model()
    layers = ted_layers(model, name)
    unknown = unknown_without_text(model)
    if unknown is not None and (target.data is None or options.token):
        asked = f"`token` {options.token[0]!r}: " if options.token else ""
        raise UserError(f"{asked}{name}: {unknown}, so lifetimes depend on the text; expected `data` alone")
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


def lifetimes_tables(found: Lifetimes, entries: int = 20) -> list[Table]:
    """The vocabulary, some entries over time, and the layers over a text: of each what there is."""
    tables = [] if found.vocabulary is None else _vocabulary_tables(found.vocabulary, entries)
    if found.vocabulary is not None and found.curves is not None:
        tables.append(_curves_table(found.vocabulary, found.curves))
    if found.text is not None:
        tables.append(_layers_table(found.text, found.threshold))
    return tables


def _vocabulary_tables(vocabulary: VocabularyLifetimes, entries: int) -> list[Table]:
    ranked = vocabulary.ranked
    known = (
        "Known from the vocabulary entry alone, without any text. Lifetime: steps until its relevance, the norm of what"
        f" is left of it, is below {exact(vocabulary.threshold)}. Half-life: steps in which its relevance halves."
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
        said = numbers.significant(norm) if norm >= 1e-3 else f"{norm:.3g}"
        rows.append((vocabulary.names[token], str(token), whole_steps(life), steps(half), said))
    return Table(title, ("entry", "token", "lifetime", "half-life", "norm"), rows, meaning)


def _curves_table(vocabulary: VocabularyLifetimes, curves: Curves) -> Table:
    """At step 0 and the powers of ten."""
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
        "The norm of what is left of an entry after so many steps.",
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
        " computed from quantity and rate, not waited for, so those that outlive the window are as exact as the others."
        f" Never kept: below {exact(threshold)} from the start. Average context: tokens in a context that drops what is"
        f" below {exact(threshold)}, in the mean of a window's steps; {text.whole_context:,.1f} if it drops nothing.",
    )


def lifetimes_pictures(found: Lifetimes) -> list[Picture]:
    """The lifetimes of the vocabulary, some entries over time, and the layers over a text: of each what there is."""
    pictures = []
    if found.vocabulary is not None:
        lives = found.vocabulary.lifetimes_V.numpy()
        pictures.append(
            Picture("vocabulary", "Lifetimes of the vocabulary, layer 0", histogram(lives), _left_out(lives))
        )
    if found.curves is not None:
        caption = (
            "What is left of a vocabulary entry in the lowest layer. Where a line crosses the dashed one, the entry's"
            " life ends. One rate fades evenly; where there are several heads, each line ends with its slowest."
        )
        plot = relevance_curves(found.curves, found.threshold)
        pictures.append(Picture("relevance", "Relevance over time, layer 0", plot, caption))
    if found.text is not None:
        count = numbers.grouped(found.text.windows * found.text.tokens)
        caption = f"Over {count} tokens of text. No point: endless, or 0, or a layer without ted."
        pictures.append(Picture("layers", "Lifetimes of a text's tokens, by layer", layer_points(found.text), caption))
    return pictures


def histogram(lifetimes: NDArray[np.float64]) -> Plot:
    """Over a logarithmic axis, a bar's area being its number of entries; those of 0 and endless ones are left out."""
    shown, drawn = lifetimes[np.isfinite(lifetimes) & (lifetimes > 0)], []
    if shown.size:
        edges = bar_edges(float(shown.min()), float(shown.max()))
        counts, _ = np.histogram(shown, edges)
        # Bars differ in width, as lives are whole steps: per doubling, so that a wide one is not higher for that.
        drawn.append(Series(edges, counts / np.diff(np.log2(edges)), style="bars"))
    x = Axis("lifetime, steps", "log" if drawn else "linear", numbers.metric)
    return Plot([Panel(x, Axis("entries per doubling of the lifetime"), drawn)], (9.0, 4.2))


def bar_edges(shortest: float, longest: float) -> NDArray[np.float64]:
    """Edges half-way between whole lifetimes, each so many times the one before, but a step apart at least."""
    ratio = max(2.0 ** (1 / 8), (longest / shortest) ** (1 / BARS))
    edges = [shortest - 0.5]
    while edges[-1] < longest:
        edges.append(max(edges[-1] + 1, math.floor(edges[-1] * ratio) + 0.5))
    return np.array(edges)


def _left_out(lifetimes: NDArray[np.float64]) -> str:
    caption = f"{numbers.grouped(len(lifetimes))} entries; each counts once, however often it is used."
    for count, what in ((lifetimes == 0).sum(), "never kept"), (np.isinf(lifetimes).sum(), "endless"):
        if count:
            caption += f" {numbers.grouped(count)} not shown: {what}."
    return caption


def relevance_curves(curves: Curves, threshold: float) -> Plot:
    """A line for each entry, from dark to light, both axes logarithmic but for age 0; the threshold is dashed."""
    count = len(curves.curves)
    dots = [place for place, age in enumerate(curves.ages) if age <= MARKED_AGE]
    drawn = [
        Series(
            curves.ages,
            np.maximum(curve.relevance, NOTHING),
            curve.name,
            "o:" if place % 2 and count > TOLD_BY_COLOR else "o-",
            place / max(1, count - 1),
            dots=dots,
        )
        for place, curve in enumerate(curves.curves)
    ]
    highest = 3 * max(threshold / BELOW, *(curve.relevance[0] for curve in curves.curves))
    x = Axis("age, steps", "symlog", numbers.metric, low=0, high=curves.ages[-1])
    y = Axis("relevance", "log", low=threshold * BELOW, high=highest)
    end = Rule(threshold, f"threshold {numbers.exact(threshold)}")
    return Plot([Panel(x, y, drawn, rules=[end])], (9.0, 4.8))


def layer_points(text: TextLifetimes) -> Plot:
    """Median, 90th percentile and average context of each layer that has lifetimes; a gap for one that has none."""
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
        """Show for how many steps a model with trainable exponential decays (ted) remembers each token.

    In the lowest layer a token's lifetime depends on its vocabulary entry alone: shown without any text, the longest
    and the shortest, and the relevance of some over time. With --data also, for every layer with ted: median and 90th
    percentile over the tokens of a text, and the context that a model needs which drops what is below the threshold.

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
"""What `linnet inspect` finds here."""
