"""Who and what a story is about: characters, places, kinds of thing, and the one item of a story.

All are frozen values; what changes during a story (who is where, who holds what) lives in `world.World`. An entity
hashes by its name alone, which is unique within a story and keeps the look-ups of the world cheap.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Gender = Literal["f", "m", "n"]
Relation = Literal["hero", "friend", "stranger", "parent", "pet"]
Number = Literal["one", "many", "mass"]


class Pronouns(NamedTuple):
    """The forms of a personal pronoun that stories use."""

    subject: str
    object: str
    possessive: str


PRONOUNS: dict[str, Pronouns] = {
    "f": Pronouns("she", "her", "her"),
    "m": Pronouns("he", "him", "his"),
    "n": Pronouns("it", "it", "its"),
    "many": Pronouns("they", "them", "their"),
}


@dataclass(frozen=True)
class Character:
    """A person or an animal: `species` is "girl", "boy", "rabbit", "mom" and so on, `look` an adjective for it.

    `anchor` is the character through whom this one is first presented ("her friend Ben", "his mom").
    A character without a name of its own (a stranger in trouble) has an empty `name` and is "the bird".
    """

    name: str
    gender: Gender
    species: str
    look: str = "little"
    relation: Relation = "hero"
    anchor: "Character | None" = None

    def __hash__(self) -> int:
        return hash(self.name or self.species)

    @property
    def label(self) -> str:
        """The word that stands for the character in facts: the name, or the species of a nameless one."""
        return self.name or self.species

    @property
    def is_child(self) -> bool:
        """Whether it is a girl or a boy, not an animal or a parent."""
        return self.species in ("girl", "boy")


@dataclass(frozen=True)
class Verb:
    """What one does, in the two forms that stories use: `base` ("fly") and `past` ("flew")."""

    base: str
    past: str


@dataclass(frozen=True)
class Thing:
    """A kind of thing: its noun, the adjectives that suit it, and what one does with it."""

    noun: str
    adjectives: tuple[str, ...]
    use: Verb = Verb("hold", "held")
    number: Number = "one"

    def __hash__(self) -> int:
        return hash(self.noun)


@dataclass(frozen=True)
class Item:
    """The one thing of its kind in a story: "a red ball"."""

    thing: Thing
    adjective: str

    def __hash__(self) -> int:
        return hash(self.thing.noun)

    @property
    def noun(self) -> str:
        """The word that stands for the item in facts; no two items of a story share it."""
        return self.thing.noun


@dataclass(frozen=True)
class Location:
    """A place: `the` ("the park"), `at` ("in the park"), `to` ("to the park"), its hiding spots and activities."""

    noun: str
    the: str
    at: str
    to: str
    spots: tuple[str, ...] = ()
    activities: tuple[Verb, ...] = ()

    def __hash__(self) -> int:
        return hash(self.noun)


Characters = tuple[Character, ...]
