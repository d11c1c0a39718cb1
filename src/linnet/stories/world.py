"""The world of one story: who is where, who holds and owns what, what is lost or broken, how everyone feels.

The world knows no English. Events (`events`) check their preconditions with the `must_...` methods and then change it;
an event that cannot happen raises `InconsistencyError`, so a plot with an impossible story fails instead of telling it.
"""

from linnet.stories.entities import Character, Item, Location

DAY = ("morning", "afternoon", "evening", "night")


class InconsistencyError(AssertionError):
    """An event was told that cannot happen in the world as it is."""


class World:
    """The mutable state of one story; empty at first."""

    def __init__(self) -> None:
        self.place_of: dict[Character, Location] = {}
        self.holder_of: dict[Item, Character] = {}
        self.owner_of: dict[Item, Character] = {}
        self.spot_of: dict[Item, tuple[Location, str]] = {}
        self.feeling_of: dict[Character, str] = {}
        self.trouble_of: dict[Character, str] = {}
        self.rivals_of: dict[Character, Character] = {}
        self.lost: set[Item] = set()
        self.broken: set[Item] = set()
        self.gone: set[Item] = set()
        self.asleep: set[Character] = set()
        self.skills: set[tuple[Character, str]] = set()
        self.standing: set[str] = set()
        self.racers: tuple[Character, ...] = ()
        self.time = 0
        self.weather = "sunny"

    def must_be_awake(self, *who: Character) -> None:
        """Everyone has entered the story and is not asleep."""
        for character in who:
            if character not in self.place_of:
                raise InconsistencyError(f"{character.label} has not entered the story")
            if character in self.asleep:
                raise InconsistencyError(f"{character.label} is asleep")

    def must_be_together(self, *who: Character) -> None:
        """Everyone is awake and in the same place."""
        self.must_be_awake(*who)
        place = self.place_of[who[0]]
        for character in who[1:]:
            if self.place_of[character] != place:
                raise InconsistencyError(f"{character.label} is {self.place_of[character].at}, not {place.at}")

    def must_hold(self, who: Character, item: Item) -> None:
        """`who` is awake and has the item in hand."""
        self.must_be_awake(who)
        if self.holder_of.get(item) != who:
            raise InconsistencyError(f"{who.label} does not hold the {item.noun}")

    def must_be_new(self, item: Item) -> None:
        """The item is nowhere yet: neither held nor lying about nor used up."""
        if item in self.holder_of or item in self.spot_of or item in self.gone:
            raise InconsistencyError(f"there is already a {item.noun}")

    def must_lie_at(self, item: Item, place: Location, spot: str) -> None:
        """The item lies at that spot of that place."""
        if self.spot_of.get(item) != (place, spot):
            raise InconsistencyError(f"the {item.noun} is not {spot} {place.at}")

    def must_be_whole(self, item: Item) -> None:
        """The item is not broken."""
        if item in self.broken:
            raise InconsistencyError(f"the {item.noun} is broken")

    def lay_down(self, item: Item, place: Location, spot: str) -> None:
        """The item leaves its holder and lies at the spot."""
        self.holder_of.pop(item, None)
        self.spot_of[item] = (place, spot)

    def pick_up(self, who: Character, item: Item) -> None:
        """The item comes into the hands of `who`."""
        self.spot_of.pop(item, None)
        self.holder_of[item] = who

    def take_over(self, who: Character, item: Item) -> None:
        """The item comes into the hands of `who`, who owns it from now on."""
        self.owner_of[item] = who
        self.pick_up(who, item)

    def use_up(self, item: Item) -> None:
        """The item is no more (eaten, planted)."""
        self.holder_of.pop(item, None)
        self.spot_of.pop(item, None)
        self.gone.add(item)
