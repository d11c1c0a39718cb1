"""Multiple choice: what is read, what is chosen among, and what the log-likelihoods of the choices are worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np

ScoreName = Literal["acc", "acc_norm", "acc_bytes", "mc2"]
"""The share of right choices: the likeliest one (`acc`), by character of the choice (`acc_norm`, as the LM Evaluation
Harness has it), by its UTF-8 byte (`acc_bytes`); `mc2`: the share of the right ones in the probability of all.
"""


DELIMITER = " "
"""Between a context and what follows it, as in the LM Evaluation Harness, also where the context is empty."""


@dataclass(frozen=True)
class TaskItem:
    """One question.

    pairs: of each choice the text before and the text that is scored. choices: what is chosen among. measured: the text
    of each choice by whose length a score is divided. labels: 1 for what is right, else 0. own: the item's own text
    with each choice, without the frame that all items of a task share.
    """

    pairs: tuple[tuple[str, str], ...]
    choices: tuple[str, ...]
    measured: tuple[str, ...]
    labels: tuple[int, ...]
    own: tuple[str, ...]

    @classmethod
    def of_choices(cls, context: str, choices: Sequence[str], labels: Sequence[int], own: str | None = None) -> Self:
        """Several continuations of one context; `own`: the question without its frame, the context if not given."""
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
        """One continuation of several contexts, the choices."""
        return cls(
            tuple((context, f"{DELIMITER}{continuation}") for context in contexts),
            tuple(contexts),
            (continuation,) * len(contexts),
            tuple(labels),
            tuple(f"{context} {continuation}" for context in contexts),
        )

    @classmethod
    def of_answer(cls, context: str) -> Self:
        """A question without choices, or of which nobody knows which are right."""
        return cls(((context, ""),), (), (), (), (context,))

    @property
    def chance(self) -> float:
        """What guessing gives on average, in every score; of an item that has choices."""
        return sum(self.labels) / len(self.labels)

    def score(self, name: ScoreName | str, log_likelihoods: Sequence[float]) -> float:
        """From 0 to 1, by a `ScoreName`; of equal choices the first is taken. NaN where the model gave no number."""
        assert name in get_args(ScoreName), name
        found = np.asarray(log_likelihoods, dtype=np.float64)
        if np.isnan(found).any():
            return math.nan
        if name == "mc2":
            shares = np.exp(found - found.max())
            return float(shares[np.asarray(self.labels) == 1].sum() / shares.sum())
        if name == "acc_norm":
            found = found / [len(text) for text in self.measured]
        if name == "acc_bytes":
            found = found / [len(text.encode()) for text in self.measured]
        return float(self.labels[int(found.argmax())])


def one_hot(gold: int, choices: int) -> list[int]:
    """Labels of `choices` of which one is right."""
    return [int(number == gold) for number in range(choices)]
