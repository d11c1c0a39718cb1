"""Lifetimes as rows of text, with what to look for."""

from collections.abc import Sequence

from linnet.inspection.lifetimes.folder import Lifetimes
from linnet.inspection.lifetimes.steps import steps, whole_steps
from linnet.inspection.lifetimes.text import UPPER, TextLifetimes, quantile
from linnet.inspection.lifetimes.vocabulary import Curves, Vocabulary
from linnet.present import numbers
from linnet.present.numbers import exact
from linnet.present.table import Table


def lifetimes_tables(found: Lifetimes, entries: int = 20) -> list[Table]:
    """The vocabulary, some entries over time, and the layers over a text: of each what there is."""
    tables = [] if found.vocabulary is None else _vocabulary_tables(found.vocabulary, entries)
    if found.vocabulary is not None and found.curves is not None:
        tables.append(_curves_table(found.vocabulary, found.curves))
    if found.text is not None:
        tables.append(_layers_table(found.text, found.threshold))
    return tables


def _vocabulary_tables(vocabulary: Vocabulary, entries: int) -> list[Table]:
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


def _entries_table(title: str, vocabulary: Vocabulary, tokens: Sequence[int], meaning: str) -> Table:
    rows, columns = [], (vocabulary.lifetimes_V, vocabulary.half_lives_V, vocabulary.norms)
    for token in tokens:
        life, half, norm = (float(of_V[token]) for of_V in columns)
        said = numbers.significant(norm) if norm >= 1e-3 else f"{norm:.3g}"
        rows.append((vocabulary.names[token], str(token), whole_steps(life), steps(half), said))
    return Table(title, ("entry", "token", "lifetime", "half-life", "norm"), rows, meaning)


def _curves_table(vocabulary: Vocabulary, curves: Curves) -> Table:
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
