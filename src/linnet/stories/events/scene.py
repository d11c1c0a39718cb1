"""Events of place and time: entering, going, meeting, sleeping; the hour and the weather."""

from dataclasses import dataclass

from linnet.stories.entities import Character, Characters, Location
from linnet.stories.events.base import StoryEvent
from linnet.stories.world import DAY, InconsistencyError, World


@dataclass(frozen=True)
class Enter(StoryEvent):
    """`who` comes into the story, at `place`."""

    who: Characters
    place: Location

    def _happen(self, world: World) -> None:
        for character in self.who:
            if character in world.place_of:
                raise InconsistencyError(f"{character.label} is in the story already")
            world.place_of[character] = self.place


@dataclass(frozen=True)
class Go(StoryEvent):
    """`who` go together to another place, with whatever they hold."""

    who: Characters
    place: Location

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        if world.place_of[self.who[0]] == self.place:
            raise InconsistencyError(f"{self.who[0].label} is already {self.place.at}")
        for character in self.who:
            if character in world.trouble_of:
                raise InconsistencyError(f"{character.label} is in trouble and cannot go")
            world.place_of[character] = self.place


@dataclass(frozen=True)
class Meet(StoryEvent):
    """`who` sees `other` in the same place."""

    who: Characters
    other: Character

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who, self.other)


@dataclass(frozen=True)
class Sleep(StoryEvent):
    """`who` falls asleep where he or she is."""

    who: Characters

    def _happen(self, world: World) -> None:
        world.must_be_awake(*self.who)
        world.asleep.update(self.who)


@dataclass(frozen=True)
class TimePasses(StoryEvent):
    """It becomes `time`, later on the same day."""

    time: str

    def _happen(self, world: World) -> None:
        later = DAY.index(self.time)
        if later <= world.time:
            raise InconsistencyError(f"it is already {DAY[world.time]}")
        world.time = later


@dataclass(frozen=True)
class NextDay(StoryEvent):
    """A new morning."""

    def _happen(self, world: World) -> None:
        world.time = 0
        world.asleep.clear()


@dataclass(frozen=True)
class WeatherTurns(StoryEvent):
    """The weather changes."""

    weather: str

    def _happen(self, world: World) -> None:
        if world.weather == self.weather:
            raise InconsistencyError(f"it is {self.weather} already")
        world.weather = self.weather
