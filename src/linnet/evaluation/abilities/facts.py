"""Facts of the story world that have to be put together: who is where, who has what, what is inside of what."""

from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from linnet.evaluation.abilities.item import Question
from linnet.evaluation.abilities.questions import TextAbility
from linnet.stories import names_of
from linnet.stories.entities import Character, Item
from linnet.stories.vocabulary.places import OUTDOORS
from linnet.stories.vocabulary.things import TOYS, TREASURES
from linnet.stories.world import World

MOST_PEOPLE = min(len(OUTDOORS), len(TREASURES))


class StoryFacts(TextAbility):
    """`people`, each at another place and with a toy, in which lies a treasure; where is one of them?

    hops: facts that it takes: 1 for a person, 2 for a toy, 3 for a treasure. All facts are told, in any order. Chance:
    one of the places that are told, not knowing whose it is, and so with every step.
    """

    told: ClassVar[str] = "Read who is where, and who has what, then say where it is."

    kind: Literal["facts"] = "facts"
    people: int = Field(4, ge=2, le=MOST_PEOPLE)
    hops: int = Field(2, ge=1, le=3)

    @property
    def guesses(self) -> tuple[float, ...]:
        """One of so many at each step."""
        return (1 / self.people,) * self.hops

    def question(self, rng: Random) -> Question:
        """Whom the question is about is equally likely."""
        world, inside = self._world(rng)
        who = rng.choice(list(world.place_of))
        toy = next(item for item, holder in world.holder_of.items() if holder == who)
        asked = (who.name, f"the {toy.noun}", f"the {inside[toy].noun}")[self.hops - 1]
        place = world.place_of[who].at
        steps = (f" {who.name} is {place}.", f" {who.name} has the {toy.noun}.", f" {_lies(inside[toy], toy)}")
        answer = "".join(reversed(steps[: self.hops])) if self.steps else f" {place}."
        told = _told(world, inside)
        rng.shuffle(told)
        return Question(f"{' '.join(told)} Where is {asked}?", answer, f" {place}.")

    def _world(self, rng: Random) -> tuple[World, dict[Item, Item]]:
        """Who is where with which toy, and the treasure inside each toy."""
        world, inside = World(), {}
        names, places = rng.sample(names_of(), self.people), rng.sample(OUTDOORS, self.people)
        toys, treasures = rng.sample(TOYS, self.people), rng.sample(TREASURES, self.people)
        for name, place, toy, treasure in zip(names, places, toys, treasures, strict=True):
            who, held = Character(name, "n", "child"), Item(toy, toy.adjectives[0])
            world.place_of[who] = place
            world.take_over(who, held)
            inside[held] = Item(treasure, treasure.adjectives[0])
        return world, inside


def _told(world: World, inside: dict[Item, Item]) -> list[str]:
    return [
        *(f"{who.name} is {place.at}." for who, place in world.place_of.items()),
        *(f"{who.name} has the {item.noun}." for item, who in world.holder_of.items()),
        *(_lies(treasure, toy) for toy, treasure in inside.items()),
    ]


def _lies(treasure: Item, toy: Item) -> str:
    return f"The {treasure.noun} is inside the {toy.noun}."
