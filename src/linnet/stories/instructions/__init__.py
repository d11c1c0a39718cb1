"""Instructions of the story world: endless examples by seed, each with a reference answer and a checker.

    from linnet.stories.instructions import examples
    for row in examples(seed=0, split="train"): ...

A row has `messages`, the last of which is the reference answer, and `checker`, a description that `data.checkers`
reads. Which settings, names and templates a split has is told in `example`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random

from linnet.core.errors import UserError, did_you_mean
from linnet.stories.instructions.example import SPLITS, Draws, InstructionExample, InstructionSplit, Plain
from linnet.stories.instructions.facts import (
    annotate,
    arithmetic,
    calculator,
    calculator_call,
    calculator_use,
    correction,
    steps,
    whereabouts,
)
from linnet.stories.instructions.reading import impossible, order, question, retell

KINDS: dict[str, Callable[[Draws], InstructionExample]] = {
    "questions": question,
    "impossible": impossible,
    "order": order,
    "retell": retell,
    "arithmetic": arithmetic,
    "steps": steps,
    "whereabouts": whereabouts,
    "calculator-call": calculator_call,
    "calculator": calculator,
    "calculator-use": calculator_use,
    "correction": correction,
    "annotate": annotate,
}
"""The types of instructions and what draws one. `arithmetic` and `steps` of a seed are the same sums."""

__all__ = ["KINDS", "SPLITS", "InstructionSplit", "examples"]


def examples(seed: int = 0, split: InstructionSplit = "train", kinds: Sequence[str] = ()) -> Iterator[Plain]:
    """Examples of the kinds in turn (all by default), without end; equal arguments give equal rows.

    `UserError` for an unknown split or kind.
    """
    if split not in SPLITS:
        raise UserError(f"expected one of {', '.join(SPLITS)}", field="split", value=split)
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(did_you_mean(kind, KINDS, f"expected some of {', '.join(KINDS)}"), field="kind", value=kind)
    return _examples(seed, split, tuple(kinds) or tuple(KINDS))


def _examples(seed: int, split: InstructionSplit, kinds: Sequence[str]) -> Iterator[Plain]:
    for index in count():
        for kind in kinds:
            drawn = "arithmetic" if kind == "steps" else kind  # so that both have the same sums
            draws = Draws(Random(f"linnet instructions {seed} {split} {drawn} {index}"), split)
            yield KINDS[kind](draws).to_dict(draws)
