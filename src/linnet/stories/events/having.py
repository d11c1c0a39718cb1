"""Events of having: who holds, owns, loses, finds, makes, gives, eats, breaks what."""

from dataclasses import dataclass

from linnet.stories.entities import Character, Characters, Item, Location
from linnet.stories.events.base import StoryEvent
from linnet.stories.world import InconsistencyError, World


@dataclass(frozen=True)
class Own(StoryEvent):
    """`who` has the item, as his or her own, when the story begins."""

    who: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        world.must_be_new(self.item)
        world.take_over(self.who, self.item)


@dataclass(frozen=True)
class Lie(StoryEvent):
    """The item is at a spot before anybody knows of it."""

    item: Item
    place: Location
    spot: str

    def _happen(self, world: World) -> None:
        world.must_be_new(self.item)
        world.lay_down(self.item, self.place, self.spot)


@dataclass(frozen=True)
class Get(StoryEvent):
    """`who` comes by a new item (picks a flower, buys an apple, takes a cake from the kitchen)."""

    who: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        world.must_be_new(self.item)
        world.take_over(self.who, self.item)


@dataclass(frozen=True)
class Make(StoryEvent):
    """`who` make a new item; the first of them holds it."""

    who: Characters
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        world.must_be_new(self.item)
        world.take_over(self.who[0], self.item)


@dataclass(frozen=True)
class Lose(StoryEvent):
    """The item slips from `who` to a spot of the place; nobody knows where."""

    who: Character
    item: Item
    spot: str

    def _happen(self, world: World) -> None:
        world.must_hold(self.who, self.item)
        world.lay_down(self.item, world.place_of[self.who], self.spot)
        world.lost.add(self.item)


@dataclass(frozen=True)
class Drop(StoryEvent):
    """The item leaves the hands of `who` for a spot that he or she knows: put there, or rolled away."""

    who: Character
    item: Item
    spot: str

    def _happen(self, world: World) -> None:
        world.must_hold(self.who, self.item)
        world.lay_down(self.item, world.place_of[self.who], self.spot)


@dataclass(frozen=True)
class Search(StoryEvent):
    """`who` look for the item at a spot where it is not."""

    who: Characters
    item: Item
    spot: str

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        if world.spot_of.get(self.item) == (world.place_of[self.who[0]], self.spot):
            raise InconsistencyError(f"the {self.item.noun} is {self.spot}")


@dataclass(frozen=True)
class Find(StoryEvent):
    """`who` finds the item at the spot where it lies, and takes it."""

    who: Character
    item: Item
    spot: str

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        world.must_lie_at(self.item, world.place_of[self.who], self.spot)
        world.lost.discard(self.item)
        world.owner_of.setdefault(self.item, self.who)
        world.pick_up(self.who, self.item)


@dataclass(frozen=True)
class Give(StoryEvent):
    """`giver` gives the item away for good."""

    giver: Character
    receiver: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_hold(self.giver, self.item)
        world.must_be_together(self.giver, self.receiver)
        if world.owner_of.get(self.item) != self.giver:
            raise InconsistencyError(f"the {self.item.noun} is not {self.giver.label}'s to give")
        world.take_over(self.receiver, self.item)


@dataclass(frozen=True)
class Lend(StoryEvent):
    """`giver` lets `receiver` have the item for a while."""

    giver: Character
    receiver: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_hold(self.giver, self.item)
        world.must_be_together(self.giver, self.receiver)
        world.pick_up(self.receiver, self.item)


@dataclass(frozen=True)
class Return(StoryEvent):
    """`giver` hands the item back to `receiver`, whose own it is."""

    giver: Character
    receiver: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_hold(self.giver, self.item)
        world.must_be_together(self.giver, self.receiver)
        if world.owner_of.get(self.item) != self.receiver:
            raise InconsistencyError(f"the {self.item.noun} is not {self.receiver.label}'s")
        world.pick_up(self.receiver, self.item)


@dataclass(frozen=True)
class Trade(StoryEvent):
    """`who` gives `item` to `other` and gets `other_item` for it."""

    who: Character
    other: Character
    item: Item
    other_item: Item

    def _happen(self, world: World) -> None:
        world.must_hold(self.who, self.item)
        world.must_hold(self.other, self.other_item)
        world.must_be_together(self.who, self.other)
        for new_owner, item in ((self.other, self.item), (self.who, self.other_item)):
            world.take_over(new_owner, item)


@dataclass(frozen=True)
class Snatch(StoryEvent):
    """`who` takes the item out of `other`'s hands."""

    who: Character
    other: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_hold(self.other, self.item)
        world.must_be_together(self.who, self.other)
        world.pick_up(self.who, self.item)


@dataclass(frozen=True)
class Eat(StoryEvent):
    """`who`, one of whom holds the food, eat all of it."""

    who: Characters
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        holder = world.holder_of.get(self.item)
        if holder not in self.who:
            raise InconsistencyError(
                f"nobody of {[character.label for character in self.who]} has the {self.item.noun}"
            )
        world.use_up(self.item)


@dataclass(frozen=True)
class Halve(StoryEvent):
    """`giver` breaks the food in two and both eat it."""

    giver: Character
    receiver: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_hold(self.giver, self.item)
        world.must_be_together(self.giver, self.receiver)
        world.use_up(self.item)


@dataclass(frozen=True)
class Break(StoryEvent):
    """The item breaks while `who` is with it."""

    who: Character
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_awake(self.who)
        world.must_be_whole(self.item)
        if self.item not in world.holder_of and self.item not in world.spot_of:
            raise InconsistencyError(f"there is no {self.item.noun}")
        world.broken.add(self.item)


@dataclass(frozen=True)
class Mend(StoryEvent):
    """`who`, one of whom holds the broken item, make it whole again."""

    who: Characters
    item: Item

    def _happen(self, world: World) -> None:
        world.must_be_together(*self.who)
        if self.item not in world.broken or world.holder_of.get(self.item) not in self.who:
            raise InconsistencyError(f"they hold no broken {self.item.noun}")
        world.broken.remove(self.item)
