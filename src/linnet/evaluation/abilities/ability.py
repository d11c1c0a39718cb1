"""What every ability says of itself, and its items: a function of sizes, seed and side alone."""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count as count_from
from random import Random

from pydantic import Field

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.data.split import Split, below, content_hash
from linnet.evaluation.abilities.item import AbilityItem, Chance

HELD_OUT = 0.1
"""Of all questions that can be drawn: the share that is never trained on, by a hash of what is asked."""

DRAWS_FOR_ITEM = 1000
"""A kind that has so few different questions that none of a side is among so many draws is no use."""

PURPOSE = b"ability"


class Ability(Spec):
    """One kind of question at one size."""

    kind: str

    @property
    @abstractmethod
    def alphabet(self) -> str:
        """Every symbol that can occur, in their order; empty where items are text."""

    @property
    @abstractmethod
    def chance(self) -> Chance:
        """Exact."""

    @abstractmethod
    def draw(self, rng: Random) -> AbilityItem:
        """One item, from the dice alone."""

    def items(self, count: int, seed: int = 0, split: Split = "validation") -> Iterator[AbilityItem]:
        """So many items; no item of one side asks what one of the other side asks, whatever the seeds.

        They depend on the arguments alone: not on the platform, not on each other's number. `UserError` where a side
        has none.
        """
        for index in range(count):
            yield self._item(seed, split, index)

    def _item(self, seed: int, split: Split, index: int) -> AbilityItem:
        rng = Random(f"linnet ability {self.kind} {seed} {split} {index}")
        for draw in count_from():
            item = self.draw(rng)
            held_out = below(content_hash(item.identity, PURPOSE), HELD_OUT)
            if held_out == (split == "validation"):
                return item
            if draw == DRAWS_FOR_ITEM:
                raise UserError(f"{self.said}: too few different questions to hold some out; choose larger sizes")
        raise AssertionError("unreachable")

    @property
    def said(self) -> str:
        """The kind and its sizes, for people: `recall pairs=8 values=16`."""
        sizes = {name: value for name, value in self.model_dump().items() if name != "kind"}
        return " ".join([self.kind, *(f"{name}={_plain(value)}" for name, value in sizes.items())])


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def symbols(first: int, count: int) -> str:
    """Characters in a row; letters and digits for people come first where an ability needs few."""
    return "".join(chr(first + number) for number in range(count))


SIZES = Field(gt=0, le=1 << 14)
"""Of lengths and distances in symbols."""
