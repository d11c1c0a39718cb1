"""Abilities whose items are text: arithmetic, facts of a story world, and a sentence in a long text."""

from collections.abc import Iterator
from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from linnet.evaluation.abilities.contract import Ability, Chance, Question, TextAbility
from linnet.stories import names_of, stories
from linnet.stories.entities import Character, Item, Location
from linnet.stories.events import Enter, Get, Give, Go, StoryEvent
from linnet.stories.vocabulary.places import OUTDOORS
from linnet.stories.vocabulary.things import TOYS, TREASURES
from linnet.stories.world import World

MAX_PEOPLE = min(len(OUTDOORS), len(TREASURES))

SPOTS = tuple(dict.fromkeys(spot for place in OUTDOORS for spot in place.spots))
HIDDEN = "key"
"""The thing that a needle is about; stories that mention one are left out."""

GIVE_SHARE = 0.5
"""Probability that a toy changes hands if two people are at the same place."""
HOLDER_SHARE = 0.5
"""Probability that a question with one hop asks who has a toy instead of where a person is."""


class Arithmetic(TextAbility):
    """`7 + 5 - 3 =` and 9; all intermediate results are 0 to `max_value`, and equally likely."""

    instruction_text: ClassVar[str] = "Add and subtract from left to right."

    kind: Literal["arithmetic"] = "arithmetic"
    max_value: int = Field(20, ge=1, le=10_000)

    @property
    def guesses(self) -> tuple[float, ...]:
        return (1 / (self.max_value + 1),) * 2

    def question(self, rng: Random) -> Question:
        def change(before: int, after: int) -> str:
            return f"+ {after - before}" if after >= before else f"- {before - after}"

        # The results are drawn first; the operands follow from them.
        first, between, last = (rng.randint(0, self.max_value) for _ in range(3))
        second_step = change(between, last)
        steps = f" {between} {second_step} =" if self.steps else ""
        return Question(f"{first} {change(first, between)} {second_step} =", f"{steps} {last}")


class StoryFacts(TextAbility):
    """`people`, each at a different place and with a toy that contains a treasure; where is one of them?

    hops: facts that the answer needs: 1 for a person, 2 for a toy, 3 for a treasure. All facts are stated, in any
    order. Chance: one of the places in the text, and the same for every step.
    """

    instruction_text: ClassVar[str] = "Read who is where, and who has what, then say where it is."

    kind: Literal["facts"] = "facts"
    people: int = Field(4, ge=2, le=MAX_PEOPLE)
    hops: int = Field(2, ge=1, le=3)

    @property
    def guesses(self) -> tuple[float, ...]:
        return (1 / self.people,) * self.hops

    def question(self, rng: Random) -> Question:
        world, treasure_in = World(), dict[Item, Item]()
        names, places = rng.sample(names_of(), self.people), rng.sample(OUTDOORS, self.people)
        toys, treasures = rng.sample(TOYS, self.people), rng.sample(TREASURES, self.people)
        for name, place, toy_noun, treasure in zip(names, places, toys, treasures, strict=True):
            person, held = Character(name, "n", "child"), Item(toy_noun, toy_noun.adjectives[0])
            world.place_of[person] = place
            world.take_over(person, held)
            treasure_in[held] = Item(treasure, treasure.adjectives[0])

        who = rng.choice(list(world.place_of))
        toy = next(item for item, holder in world.holder_of.items() if holder == who)
        asked = (who.name, f"the {toy.noun}", f"the {treasure_in[toy].noun}")[self.hops - 1]
        place_text = world.place_of[who].at
        steps = (f" {who.name} is {place_text}.", f" {who.name} has the {toy.noun}.",
                 f" The {treasure_in[toy].noun} is inside the {toy.noun}.")  # fmt: skip
        answer = "".join(reversed(steps[: self.hops])) if self.steps else f" {place_text}."
        facts = [
            *(f"{person.name} is {place.at}." for person, place in world.place_of.items()),
            *(f"{person.name} has the {item.noun}." for item, person in world.holder_of.items()),
            *(f"The {treasure.noun} is inside the {item.noun}." for item, treasure in treasure_in.items()),
        ]
        rng.shuffle(facts)
        return Question(f"{' '.join(facts)} Where is {asked}?", answer, f" {place_text}.")


class Whereabouts(TextAbility):
    """`people`, each at a different place and with a toy, then `moves`: a person goes to another of the places, or
    gives a toy to a person at the same place.

    hops: facts that the answer needs. 1: where a person is, or who has a toy, equally often. 2: where a toy is. Later
    statements replace earlier ones (after Weston et al., arXiv 1502.05698, tasks 1 to 3). Chance: one of the people, or
    places, in the text; the moves treat all alike, so each is equally likely.
    """

    instruction_text: ClassVar[str] = (
        "Read who went where and who gave what to whom, then say where it is, or who has it."
    )

    kind: Literal["whereabouts"] = "whereabouts"
    people: int = Field(3, ge=2, le=MAX_PEOPLE)
    moves: int = Field(4, ge=0, le=64)
    hops: int = Field(2, ge=1, le=2)

    @property
    def guesses(self) -> tuple[float, ...]:
        return (1 / self.people,) * self.hops

    def question(self, rng: Random) -> Question:
        world, lines = World(), list[str]()
        places = rng.sample(OUTDOORS, self.people)
        people = [Character(name, "n", "child") for name in rng.sample(names_of(), self.people)]
        toys = [Item(toy, toy.adjectives[0]) for toy in rng.sample(TOYS, self.people)]
        for who, place, toy in zip(people, places, toys, strict=True):
            Enter((who,), place).happen(world)
            Get(who, toy).happen(world)
            lines.append(f"{who.name} is {place.at} with the {toy.noun}.")
        for _ in range(self.moves):
            move, line = _draw_move(rng, world, places)
            move.happen(world)
            lines.append(line)

        toy = rng.choice(list(world.holder_of))
        holder = world.holder_of[toy]
        held = f" The {toy.noun} is held by {holder.name}."
        if self.hops == 2:
            place_text = world.place_of[holder].at
            asked = f"Where is the {toy.noun}?"
            steps, final = f"{held} {holder.name} is {place_text}.", f" {place_text}."
        elif rng.random() < HOLDER_SHARE:
            asked, steps, final = f"Who has the {toy.noun}?", held, f" {holder.name}."
        else:
            who = rng.choice(list(world.place_of))
            place_text = world.place_of[who].at
            asked, steps, final = f"Where is {who.name}?", f" {who.name} is {place_text}.", f" {place_text}."
        return Question(" ".join([*lines, asked]), steps if self.steps else final, final)


def _draw_move(rng: Random, world: World, places: list[Location]) -> tuple[StoryEvent, str]:
    """The next event, and the sentence that states it."""
    gifts = [
        (giver, other, toy)
        for toy, giver in world.holder_of.items()
        for other in world.place_of
        if other != giver and world.place_of[other] == world.place_of[giver]
    ]
    if gifts and rng.random() < GIVE_SHARE:
        giver, receiver, toy = rng.choice(gifts)
        return Give(giver, receiver, toy), f"{giver.name} gave the {toy.noun} to {receiver.name}."
    who = rng.choice(list(world.place_of))
    place = rng.choice([place for place in places if place != world.place_of[who]])
    return Go((who,), place), f"{who.name} went {place.to}."


class Needle(Ability):
    """One line of stories of at least `words` words says where a key is, all lines equally likely; then it is asked.

    Chance: one of the spots that exist.
    """

    kind: Literal["needle"] = "needle"
    words: int = Field(200, ge=1, le=1 << 14)

    @property
    def chance(self) -> Chance:
        return Chance(None, 1 / len(SPOTS))

    def draw(self, rng: Random) -> Question:
        lines = list(_story_lines(rng.getrandbits(48), self.words))
        spot = rng.choice(SPOTS)
        lines.insert(rng.randint(0, len(lines)), f"The silver {HIDDEN} is {spot}.")
        return Question("\n".join([*lines, f"Where is the silver {HIDDEN}? It is"]), f" {spot}.")


def _story_lines(seed: int, words: int) -> Iterator[str]:
    """Lines of stories with at least `words` words together."""
    for story in stories(seed):
        if HIDDEN in story.text.lower():
            continue
        for line in story.text.split("\n"):
            if words <= 0:
                return
            words -= len(line.split())
            yield line
