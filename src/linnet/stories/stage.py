"""The setting of a plot and its split between training and validation, and the stage on which a plot is told.

A stage holds the world, the narrator, the cast and the random numbers of one story.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Literal, TypeVar

from linnet.stories.casting import ALL_NAMES, cast_friend, cast_hero, cast_parent
from linnet.stories.entities import Character, Characters, Item, Location, Thing
from linnet.stories.events import Do, Say, StoryEvent
from linnet.stories.narrator import Narrator
from linnet.stories.phrases import phrasings_for
from linnet.stories.phrases.speech import spoken
from linnet.stories.world import World

T = TypeVar("T")

Split = Literal["train", "validation"]
Signature = tuple[str, ...]
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Setting:
    """The subject of a plot: a place, things, and a topic (a skill, a fear, a mishap)."""

    place: Location
    things: tuple[Thing, ...] = ()
    topic: str = ""


def combine(
    places: Iterable[Location],
    *things: Iterable[Thing],
    topics: Iterable[str] = ("",),
) -> tuple[Setting, ...]:
    """Return every combination of a place, one of each group of things, and a topic; no thing twice in a setting."""
    choices = product(places, topics, product(*things))
    return tuple(Setting(place, chosen, topic) for place, topic, chosen in choices if len({*chosen}) == len(chosen))


def split_of(signature: Signature) -> Split:
    """Return the split of a signature, by a stable hash of its text."""
    digest = hashlib.sha256("|".join(signature).encode()).digest()
    return "validation" if int.from_bytes(digest[:4]) < VALIDATION_SHARE * 2**32 else "train"


class Stage:
    """The interface of a plot. `tell` makes an event happen in the world, records it, and writes it."""

    def __init__(self, rng: Random, setting: Setting, names: int = ALL_NAMES) -> None:
        self.rng = rng
        self.names = names
        self.setting = setting
        self.place: Location = setting.place
        self.world = World()
        self.events: list[StoryEvent] = []
        self.told: list[StoryEvent] = []
        self.cast: list[Character] = []
        self.roles: dict[str, object] = {"scene": setting.place, "activity": rng.choice(setting.place.activities)}
        self._narrator = Narrator(rng)
        self._used: set[str] = set()

    @property
    def text(self) -> str:
        """The story so far."""
        return self._narrator.text

    def know(self, event: StoryEvent) -> None:
        """The event happens, untold."""
        event.happen(self.world)
        self.events.append(event)

    def tell(self, event: StoryEvent, *phrasings: str) -> None:
        """The event happens and is told in one of `phrasings`, by default those of its type."""
        self.know(event)
        self.told.append(event)
        phrasing = self._fresh(phrasings or phrasings_for(event))
        self._narrator.write(phrasing, vars(event), self.roles)

    def do(self, who: Characters, deed: str, *phrasings: str) -> None:
        """`who` do something that changes nothing: the `Do` event, told in one of `phrasings`."""
        self.tell(Do(who, deed), *phrasings)

    def say(
        self, speaker: Character, hearer: Character | None, act: str, *lines: str, item: Item | None = None
    ) -> None:
        """`speaker` says one of `lines` (by default those of the act) to `hearer`."""
        event = Say(speaker, hearer, act, item)
        self.tell(event, *(spoken(lines, act, hearer is not None) if lines else ()))

    def paragraph(self) -> None:
        """Begin a new paragraph."""
        self._narrator.paragraph()

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.rng.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, all equally likely."""
        return self.rng.choice(options)

    def spots(self, count: int) -> list[str]:
        """Different hiding spots of the place."""
        return self.rng.sample(self.place.spots, count)

    def item(self, number: int = 0) -> Item:
        """One concrete item of the setting's thing of that number."""
        thing = self.setting.things[number]
        return Item(thing, self.rng.choice(thing.adjectives))

    def hero(self, child: bool | None = None, not_species: tuple[str, ...] = ()) -> Character:
        """Cast the main character, as the role `hero`."""
        return self.join("hero", cast_hero(self.rng, child, not_species, self.names))

    def friend(self, hero: Character, stranger: bool = False, not_species: tuple[str, ...] = ()) -> Character:
        """Cast a second character, as the role `friend`; a stranger is not introduced as a friend."""
        return self.join("friend", cast_friend(self.rng, hero, stranger, not_species, self.names))

    def parent(self, child: Character) -> Character:
        """Cast a parent or grandparent of `child`, as the role `parent`."""
        return self.join("parent", cast_parent(self.rng, child))

    def join(self, role: str, character: Character) -> Character:
        """Add a character to the cast; phrasings may name it by the role."""
        self.cast.append(character)
        self.roles[role] = character
        return character

    def _fresh(self, phrasings: tuple[str, ...]) -> str:
        """A phrasing not used yet in this story, if there is one, that does not set quotation on quotation."""
        if self._narrator.ends_in_quotation:
            phrasings = tuple(phrasing for phrasing in phrasings if phrasing[0] != '"') or phrasings
        start = self.rng.randrange(len(phrasings))
        turned = phrasings[start:] + phrasings[:start]
        chosen = next((phrasing for phrasing in turned if phrasing not in self._used), turned[0])
        self._used.add(chosen)
        return chosen


@dataclass(frozen=True)
class StoryPlot:
    """A kind of story: its name, all of its settings, and the function that tells it on a stage."""

    name: str
    settings: tuple[Setting, ...]
    tell: Callable[[Stage], None]

    def signature(self, setting: Setting) -> Signature:
        """(plot, place, things..., topic), which must not occur in both splits."""
        return (self.name, setting.place.noun, *(thing.noun for thing in setting.things), setting.topic)

    def settings_of(self, split: Split) -> tuple[Setting, ...]:
        """Return the settings whose signatures belong to the split."""
        return tuple(setting for setting in self.settings if split_of(self.signature(setting)) == split)


def plot(settings: Iterable[Setting]) -> Callable[[Callable[[Stage], None]], StoryPlot]:
    """Make a plot of a function; the plot takes the function's name."""
    return lambda tell: StoryPlot(tell.__name__, tuple(settings), tell)
