"""One sentence in a long text."""

from collections.abc import Iterator
from random import Random
from typing import Literal

from pydantic import Field

from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.item import Chance, Question
from linnet.stories import stories
from linnet.stories.vocabulary.places import OUTDOORS

SPOTS = tuple(dict.fromkeys(spot for place in OUTDOORS for spot in place.spots))
HIDDEN = "key"
"""No story of the text tells of one."""


class Needle(Ability):
    """Where a key lies is said in one line of stories of at least `words` words, all lines equally likely; then asked.

    Chance: one of the spots that there are.
    """

    kind: Literal["needle"] = "needle"
    words: int = Field(200, ge=1, le=1 << 14)

    @property
    def alphabet(self) -> str:
        """Any tokenizer can spell text."""
        return ""

    @property
    def chance(self) -> Chance:
        """Every spot is equally likely."""
        return Chance(None, 1 / len(SPOTS))

    def draw(self, rng: Random) -> Question:
        """Stories of a seed of their own."""
        lines = list(_lines(rng.getrandbits(48), self.words))
        spot = rng.choice(SPOTS)
        lines.insert(rng.randint(0, len(lines)), f"The silver {HIDDEN} is {spot}.")
        return Question("\n".join([*lines, f"Where is the silver {HIDDEN}? It is"]), f" {spot}.")


def _lines(seed: int, words: int) -> Iterator[str]:
    """Paragraphs of stories until there are so many words."""
    for told in stories(seed):
        if HIDDEN in told.text.lower():
            continue
        for line in told.text.split("\n"):
            if words <= 0:
                return
            words -= len(line.split())
            yield line
