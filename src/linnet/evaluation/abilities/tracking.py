"""Following a state through many changes: products of permutations.

The word problem of S5 is complete for NC1, that of S3 is solvable (Barrington, 1989): what that means for state-space
models and transformers is in Merrill, Petty and Sabharwal, "The Illusion of State" (arXiv 2404.08819).
"""

from functools import cache
from itertools import permutations
from random import Random
from typing import Annotated, Literal

from linnet.evaluation.abilities.ability import SIZES, Ability, symbols
from linnet.evaluation.abilities.item import Chance, Symbols

Permutation = tuple[int, ...]

FIRST, POINTS = 0x4E00, {"s3": 3, "s5": 5}


class Tracking(Ability):
    """`length` permutations of a group, and behind each the product of all so far. Chance: any element of the group."""

    kind: Literal["tracking"] = "tracking"
    group: Literal["s3", "s5"] = "s3"
    length: Annotated[int, SIZES] = 16

    @property
    def elements(self) -> tuple[Permutation, ...]:
        """Of the group, in lexicographic order."""
        return elements(POINTS[self.group])

    @property
    def alphabet(self) -> str:
        """A symbol for each element, as what is read and as what is answered."""
        return symbols(FIRST, len(self.elements))

    @property
    def chance(self) -> Chance:
        """A product of equally likely elements is any element, whatever the products before it."""
        order = len(self.elements)
        return Chance(1 / order, order**-self.length)

    def draw(self, rng: Random) -> Symbols:
        """Elements are independent and equally likely."""
        symbol_of = dict(zip(self.elements, self.alphabet, strict=True))
        read = [rng.choice(self.elements) for _ in range(self.length)]
        state, states = tuple(range(POINTS[self.group])), []
        for change in read:
            state = tuple(change[point] for point in state)
            states.append(symbol_of[state])
        return Symbols([symbol_of[change] for change in read], states)


@cache
def elements(points: int) -> tuple[Permutation, ...]:
    """All permutations of so many points."""
    return tuple(permutations(range(points)))
