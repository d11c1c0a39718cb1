"""The stage on which a plot is told: it holds the world, the narrator, the cast and the dice of one story."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from linnet.stories.casting import ALL_NAMES, cast_friend, cast_hero, cast_parent
from linnet.stories.entities import Character, Characters, Item, Location
from linnet.stories.events import Do, Event, Say
from linnet.stories.narrator import Narrator
from linnet.stories.phrases import phrasings_for
from linnet.stories.phrases.speech import spoken
from linnet.stories.setting import Setting
from linnet.stories.world import World

T = TypeVar("T")


class Stage:
    """What a plot works with. `tell` is the heart: the event happens in the world, is recorded, and is written."""

    def __init__(self, rng: Random, setting: Setting, names: int = ALL_NAMES) -> None:
        self.rng = rng
        self.names = names
        self.setting = setting
        self.place: Location = setting.place
        self.world = World()
        self.events: list[Event] = []
        self.cast: list[Character] = []
        self.roles: dict[str, object] = {"scene": setting.place, "activity": rng.choice(setting.place.activities)}
        self._narrator = Narrator(rng)
        self._used: set[str] = set()

    @property
    def text(self) -> str:
        """The story so far."""
        return self._narrator.text

    def know(self, event: Event) -> None:
        """The event happens, untold."""
        event.happen(self.world)
        self.events.append(event)

    def tell(self, event: Event, *phrasings: str) -> None:
        """The event happens and is told in one of `phrasings`, by default those of its type."""
        self.know(event)
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
