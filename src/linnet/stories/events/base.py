"""What an event is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from linnet.stories.world import InconsistencyError, World


@dataclass(frozen=True)
class StoryEvent(ABC):
    """One fact of a story. Its fields say who and what; `phrases` says how it may be told."""

    def happen(self, world: World) -> None:
        """Change `world` accordingly. `InconsistencyError`, with a note that names the event, if it cannot happen."""
        try:
            self._happen(world)
        except InconsistencyError as error:
            error.add_note(f"in {self}")
            raise

    @abstractmethod
    def _happen(self, world: World) -> None:
        """Check that the event can happen in `world` and change the world."""
