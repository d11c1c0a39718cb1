"""A few people and things to tell of."""

from linnet.stories.entities import Character, Item, Thing, Verb

LILY = Character("Lily", "f", "girl")
BEN = Character("Ben", "m", "boy", relation="friend", anchor=LILY)
MIA = Character("Mia", "f", "girl", relation="friend", anchor=LILY)
MOM = Character("Mom", "f", "mom", "", "parent", LILY)
BALL = Item(Thing("ball", ("red",), Verb("kick", "kicked")), "red")
HAT = Item(Thing("hat", ("old",)), "old")
BERRIES = Item(Thing("berries", ("sweet",), number="many"), "sweet")
