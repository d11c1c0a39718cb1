"""A story world in which things change hands: who is where and who holds what, after all that has happened."""

from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from linnet.evaluation.abilities.facts import MOST_PEOPLE
from linnet.evaluation.abilities.item import Question
from linnet.evaluation.abilities.questions import TextAbility
from linnet.stories import names_of
from linnet.stories.entities import Character, Item, Location
from linnet.stories.events import Enter, Event, Get, Give, Go
from linnet.stories.vocabulary.places import OUTDOORS
from linnet.stories.vocabulary.things import TOYS
from linnet.stories.world import World

GIVING = 0.5
"""How often something is given away where that can be."""
HELD = 0.5
"""How often one fact is who has something, and not where somebody is."""


class Whereabouts(TextAbility):
    """`people`, each at another place and with a toy; then so many `moves`: somebody goes to another of the places, or
    gives a toy to somebody who is there.

    hops: facts that it takes: 1: where somebody is, or who has a toy, as often; 2: where a toy is. What was said before
    does not count any more (after Weston et al., arXiv 1502.05698, tasks 1 to 3). Chance: one of the people, or places,
    that are told: whose they are is drawn, and what happens treats all alike, so each is equally likely.
    """

    told: ClassVar[str] = "Read who went where and who gave what to whom, then say where it is, or who has it."

    kind: Literal["whereabouts"] = "whereabouts"
    people: int = Field(3, ge=2, le=MOST_PEOPLE)
    moves: int = Field(4, ge=0, le=64)
    hops: int = Field(2, ge=1, le=2)

    @property
    def guesses(self) -> tuple[float, ...]:
        """One of so many at each step."""
        return (1 / self.people,) * self.hops

    def question(self, rng: Random) -> Question:
        """Whom or what the question is about is equally likely."""
        world, lines = self._happened(rng)
        toy = rng.choice(list(world.holder_of))
        holder = world.holder_of[toy]
        held = f" The {toy.noun} is held by {holder.name}."
        if self.hops == 2:
            place = world.place_of[holder].at
            asked, steps, final = f"Where is the {toy.noun}?", f"{held} {holder.name} is {place}.", f" {place}."
        elif rng.random() < HELD:
            asked, steps, final = f"Who has the {toy.noun}?", held, f" {holder.name}."
        else:
            who = rng.choice(list(world.place_of))
            place = world.place_of[who].at
            asked, steps, final = f"Where is {who.name}?", f" {who.name} is {place}.", f" {place}."
        return Question(" ".join([*lines, asked]), steps if self.steps else final, final)

    def _happened(self, rng: Random) -> tuple[World, list[str]]:
        """The world as it is in the end, and what is told of it."""
        world, lines = World(), list[str]()
        places = rng.sample(OUTDOORS, self.people)
        people = [Character(name, "n", "child") for name in rng.sample(names_of(), self.people)]
        toys = [Item(toy, toy.adjectives[0]) for toy in rng.sample(TOYS, self.people)]
        for who, place, toy in zip(people, places, toys, strict=True):
            Enter((who,), place).happen(world)
            Get(who, toy).happen(world)
            lines.append(f"{who.name} is {place.at} with the {toy.noun}.")
        for _ in range(self.moves):
            move, line = _move(rng, world, places)
            move.happen(world)
            lines.append(line)
        return world, lines


def _move(rng: Random, world: World, places: list[Location]) -> tuple[Event, str]:
    """What happens next, and how it is told."""
    gifts = [
        (giver, other, toy)
        for toy, giver in world.holder_of.items()
        for other in world.place_of
        if other != giver and world.place_of[other] == world.place_of[giver]
    ]
    if gifts and rng.random() < GIVING:
        giver, receiver, toy = rng.choice(gifts)
        return Give(giver, receiver, toy), f"{giver.name} gave the {toy.noun} to {receiver.name}."
    who = rng.choice(list(world.place_of))
    place = rng.choice([place for place in places if place != world.place_of[who]])
    return Go((who,), place), f"{who.name} went {place.to}."
