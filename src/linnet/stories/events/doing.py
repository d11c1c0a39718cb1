"""Events of doing: playing, racing, learning, building, being in trouble and being helped."""

from dataclasses import dataclass

from linnet.stories.entities import Character, Characters, Item
from linnet.stories.events.base import StoryEvent
from linnet.stories.world import InconsistencyError, World


@dataclass(frozen=True)
class Do(StoryEvent):
    """`who` do something together that changes nothing that the world keeps (`deed` names it)."""

    who: Characters
    deed: str

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)


@dataclass(frozen=True)
class PlayWith(StoryEvent):
    """`who`, one of whom holds the item, play with it."""

    who: Characters
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        world.must_be_whole(self.item)
        if world.holder_of.get(self.item) not in self.who:
            raise InconsistencyError(f"nobody of them has the {self.item.noun}")


@dataclass(frozen=True)
class StartRace(StoryEvent):
    """`who` begin to race each other."""

    who: Characters

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        if world.racers or len(self.who) < 2:
            raise InconsistencyError("a race needs two who do not race yet")
        world.racers = self.who


@dataclass(frozen=True)
class Stumble(StoryEvent):
    """A racer falls."""

    who: Character

    def _happen(self, world: World) -> None:
        if self.who not in world.racers:
            raise InconsistencyError(f"{self.who.label} is not in a race")


@dataclass(frozen=True)
class Win(StoryEvent):
    """The race ends; `who` (one racer, or both together) come first."""

    who: Characters

    def _happen(self, world: World) -> None:
        if not all(character in world.racers for character in self.who):
            raise InconsistencyError("only a racer can win")
        world.racers = ()


@dataclass(frozen=True)
class Fail(StoryEvent):
    """`who` tries the skill, which he or she does not have yet, in vain."""

    who: Character
    skill: str

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        if (self.who, self.skill) in world.skills:
            raise InconsistencyError(f"{self.who.label} can {self.skill} already")


@dataclass(frozen=True)
class Master(StoryEvent):
    """`who` can do it (has learned it, or could from the start)."""

    who: Character
    skill: str

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        if (self.who, self.skill) in world.skills:
            raise InconsistencyError(f"{self.who.label} can {self.skill} already")
        world.skills.add((self.who, self.skill))


@dataclass(frozen=True)
class Teach(StoryEvent):
    """`teacher`, who can do it, shows it to `who`, who cannot."""

    teacher: Character
    who: Character
    skill: str

    def _happen(self, world: World) -> None:
        world.must_be_together(self.teacher, self.who)
        if (self.teacher, self.skill) not in world.skills or (self.who, self.skill) in world.skills:
            raise InconsistencyError(f"{self.teacher.label} cannot teach {self.who.label} to {self.skill}")


@dataclass(frozen=True)
class Build(StoryEvent):
    """`who` build something that then stands."""

    who: Characters
    structure: str

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        if self.structure in world.standing:
            raise InconsistencyError(f"the {self.structure} stands already")
        world.standing.add(self.structure)


@dataclass(frozen=True)
class Collapse(StoryEvent):
    """What was built falls down."""

    structure: str

    def _happen(self, world: World) -> None:
        if self.structure not in world.standing:
            raise InconsistencyError(f"no {self.structure} stands")
        world.standing.remove(self.structure)


@dataclass(frozen=True)
class Trouble(StoryEvent):
    """`who` gets or is in trouble (stuck, hurt, lost) and cannot go anywhere."""

    who: Character
    trouble: str

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        if self.who in world.trouble_of:
            raise InconsistencyError(f"{self.who.label} is in trouble already")
        world.trouble_of[self.who] = self.trouble


@dataclass(frozen=True)
class Rescue(StoryEvent):
    """`helpers` free `who` of the trouble."""

    helpers: Characters
    who: Character

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.helpers, self.who)
        if self.who not in world.trouble_of:
            raise InconsistencyError(f"{self.who.label} is in no trouble")
        del world.trouble_of[self.who]


@dataclass(frozen=True)
class Plant(StoryEvent):
    """`who` put the item, which one of them holds, into the ground."""

    who: Characters
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        if world.holder_of.get(self.item) not in self.who:
            raise InconsistencyError(f"nobody of them has the {self.item.noun}")
        world.use_up(self.item)
