"""Events of talking. What is said must fit the world where the act of speech claims something."""

from collections.abc import Callable
from dataclasses import dataclass

from linnet.stories.entities import Character, Item
from linnet.stories.events.base import StoryEvent
from linnet.stories.world import InconsistencyError, World


@dataclass(frozen=True)
class Say(StoryEvent):
    """`speaker` says something to `hearer` (to nobody: None). `act` names it, `item` is what it is about."""

    speaker: Character
    hearer: Character | None
    act: str
    item: Item | None = None

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.speaker)
        if self.hearer is not None:
            world.must_be_together(self.speaker, self.hearer)
        claim = CLAIMS.get(self.act)
        if claim is not None and not claim(self, world):
            raise InconsistencyError(f"{self.speaker.label} cannot truly say: {self.act}")


CLAIMS: dict[str, Callable[[Say, World], bool]] = {
    "lost it": lambda say, world: say.item in world.lost,
    "found it": lambda say, world: say.item is not None and world.holder_of.get(say.item) == say.speaker,
    "offer it": lambda say, world: say.item is not None and world.holder_of.get(say.item) == say.speaker,
    "mine": lambda say, world: say.item is not None and world.owner_of.get(say.item) == say.speaker,
    "ask for it": lambda say, world: say.item is not None and world.holder_of.get(say.item) == say.hearer,
    "broke it": lambda say, world: say.item in world.broken,
    "whole again": lambda say, world: say.item not in world.broken,
}
"""What the acts that claim something ask of the world."""
