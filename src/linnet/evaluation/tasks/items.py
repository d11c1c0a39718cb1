"""Multiple-choice items, the scores of their choices, and what choosing without reading would reach."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np

ScoreName = Literal["acc", "acc_norm", "acc_bytes", "mc2"]
"""How an item is scored from the log-likelihoods of its choices.

acc: 1 if the likeliest choice is right. acc_norm, acc_bytes: the same with log-likelihoods divided by the characters of
the choice (as the LM Evaluation Harness does), or by its UTF-8 bytes. mc2: share of the right choices in the
probability of all choices.
"""

DELIMITER = " "
"""Between a context and its continuation, as in the LM Evaluation Harness, also if the context is empty."""


@dataclass(frozen=True)
class TaskItem:
    """One question.

    pairs: for each choice, the context and the text that is scored after it. choices: the texts to choose among.
    normalizers: for each choice, the text whose length normalizes its score. labels: 1 for a right choice, else 0.
    own_texts: the item's own text with each choice, without the prompt template that all items of a task share.
    """

    pairs: tuple[tuple[str, str], ...]
    choices: tuple[str, ...]
    normalizers: tuple[str, ...]
    labels: tuple[int, ...]
    own_texts: tuple[str, ...]

    @classmethod
    def of_choices(cls, context: str, choices: Sequence[str], labels: Sequence[int], own: str | None = None) -> Self:
        """Several continuations of one context. own: the question without the template; None: the context."""
        own = context if own is None else own
        return cls(
            tuple((context, f"{DELIMITER}{choice}") for choice in choices),
            tuple(choices),
            tuple(choices),
            tuple(labels),
            tuple(f"{own} {choice}" for choice in choices),
        )

    @classmethod
    def of_contexts(cls, contexts: Sequence[str], continuation: str, labels: Sequence[int]) -> Self:
        """One continuation of several contexts, which are the choices."""
        return cls(
            tuple((context, f"{DELIMITER}{continuation}") for context in contexts),
            tuple(contexts),
            (continuation,) * len(contexts),
            tuple(labels),
            tuple(f"{context} {continuation}" for context in contexts),
        )

    @classmethod
    def of_answer(cls, context: str) -> Self:
        """A question without choices, or with choices whose labels are unknown."""
        return cls(((context, ""),), (), (), (), (context,))

    @property
    def chance(self) -> float:
        """The mean score of guessing, the same for every `ScoreName`; only for an item with choices."""
        return sum(self.labels) / len(self.labels)

    def score(self, name: ScoreName | str, log_likelihoods: Sequence[float]) -> float:
        """The score from 0 to 1; the first of equally likely choices counts. NaN if a log-likelihood is NaN."""
        assert name in get_args(ScoreName), name
        found = np.asarray(log_likelihoods, dtype=np.float64)
        if np.isnan(found).any():
            return math.nan
        if name == "mc2":
            shares = np.exp(found - found.max())
            return float(shares[np.asarray(self.labels) == 1].sum() / shares.sum())
        if name == "acc_norm":
            found = found / [len(text) for text in self.normalizers]
        if name == "acc_bytes":
            found = found / [len(text.encode()) for text in self.normalizers]
        return float(self.labels[int(found.argmax())])


def one_hot(gold: int, choices: int) -> list[int]:
    """Labels of `choices` choices of which one is right."""
    return [int(number == gold) for number in range(choices)]


def baselines(items: Sequence[TaskItem]) -> dict[str, float]:
    """The scores of always taking the longest choice, the shortest, and the position (letter) that is right most often.

    Lengths are in UTF-8 bytes; the first of equally long choices counts. The position is selected on the items
    themselves, so its score is slightly better than what could be known before.
    """

    def mean_label(extreme: Callable[[list[int]], int]) -> float:
        labels = []
        for item in items:
            lengths = [len(choice.encode()) for choice in item.choices]
            labels.append(item.labels[lengths.index(extreme(lengths))])
        return sum(labels) / len(items)

    positions = max(len(item.choices) for item in items)
    right_at = [sum(item.labels[at] for item in items if at < len(item.labels)) for at in range(positions)]
    return {"longest": mean_label(max), "shortest": mean_label(min), "letter": max(right_at) / len(items)}
