"""Events of the heart: feelings with their causes, wishes, quarrels, friendship, and what was learned."""

from collections.abc import Callable
from dataclasses import dataclass

from linnet.stories.entities import Character, Characters, Item
from linnet.stories.events.base import StoryEvent
from linnet.stories.world import InconsistencyError, World


@dataclass(frozen=True)
class Feel(StoryEvent):
    """`who` feel so; `because`, where given, is a cause that must hold (see `CAUSES`)."""

    who: Characters
    feeling: str
    because: str = ""
    item: Item | None = None

    def _happen(self, world: World) -> None:
        world.must_be_awake(*self.who)
        if self.because and not CAUSES[self.because](self, world):
            raise InconsistencyError(f"no cause to feel {self.feeling}: {self.because}")
        for character in self.who:
            world.feeling_of[character] = self.feeling


CAUSES: dict[str, Callable[[Feel, World], bool]] = {
    "lost": lambda feel, world: feel.item in world.lost,
    "broken": lambda feel, world: feel.item in world.broken,
    "back": lambda feel, world: feel.item in world.holder_of and feel.item not in world.lost,
    "rain": lambda feel, world: world.weather == "rainy",
    "alone": lambda feel, world: sum(place == world.place_of[feel.who[0]] for place in world.place_of.values()) == 1,
}
"""What each cause asks of the world."""


@dataclass(frozen=True)
class Want(StoryEvent):
    """`who` would like to have the item, which is somebody else's or nobody's."""

    who: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        if world.holder_of.get(self.item) == self.who:
            raise InconsistencyError(f"{self.who.label} has the {self.item.noun} already")


@dataclass(frozen=True)
class Comfort(StoryEvent):
    """`who` comforts `other`, who is not happy."""

    who: Character
    other: Character

    def _happen(self, world: World) -> None:
        world.must_be_together(self.who, self.other)
        if world.feeling_of.get(self.other, "happy") in ("happy", "proud", "calm"):
            raise InconsistencyError(f"{self.other.label} needs no comfort")


@dataclass(frozen=True)
class Quarrel(StoryEvent):
    """`who` and `other` are angry with each other."""

    who: Character
    other: Character

    def _happen(self, world: World) -> None:
        world.must_be_together(self.who, self.other)
        if self.who in world.rivals_of:
            raise InconsistencyError("they quarrel already")
        world.rivals_of[self.who] = self.other
        world.rivals_of[self.other] = self.who


@dataclass(frozen=True)
class MakeUp(StoryEvent):
    """The two who quarrelled are friends again."""

    who: Character
    other: Character

    def _happen(self, world: World) -> None:
        world.must_be_together(self.who, self.other)
        if world.rivals_of.get(self.who) != self.other:
            raise InconsistencyError("they have not quarrelled")
        del world.rivals_of[self.who], world.rivals_of[self.other]


@dataclass(frozen=True)
class Befriend(StoryEvent):
    """`who` have become, or are, friends; nobody of them is at odds with another."""

    who: Characters

    def _happen(self, world: World) -> None:
        world.must_be_awake(*self.who)
        if any(character in world.rivals_of for character in self.who):
            raise InconsistencyError("they quarrel")


@dataclass(frozen=True)
class Learn(StoryEvent):
    """What `who` take from the story."""

    who: Characters
    lesson: str

    def _happen(self, world: World) -> None:
        world.must_be_awake(*self.who)
