"""Places: where they are said to be, where a thing can hide in them, and what one does there."""

from linnet.stories.entities import Location, Verb


def _place(noun: str, preposition: str, spots: tuple[str, ...], *activities: tuple[str, str]) -> Location:
    the = f"the {noun}"
    verbs = tuple(Verb(base, past) for base, past in activities)
    return Location(noun, the, f"{preposition} {the}", f"to {the}", spots, verbs)


PARK = _place(
    "park",
    "in",
    ("under the bench", "behind the big tree", "near the swings", "in the tall grass"),
    ("play on the swings", "played on the swings"),
    ("run on the grass", "ran on the grass"),
    ("feed the birds", "fed the birds"),
)
GARDEN = _place(
    "garden",
    "in",
    ("under the bush", "behind the flowers", "next to the gate", "near the apple tree"),
    ("smell the flowers", "smelled the flowers"),
    ("chase butterflies", "chased butterflies"),
    ("water the plants", "watered the plants"),
)
BEACH = _place(
    "beach",
    "at",
    ("behind the rocks", "next to the old boat", "in the warm sand", "under the towel"),
    ("jump over the waves", "jumped over the waves"),
    ("look for shells", "looked for shells"),
    ("dig in the sand", "dug in the sand"),
)
FOREST = _place(
    "forest",
    "in",
    ("under the leaves", "behind the old log", "next to the mushrooms", "near the tall tree"),
    ("climb the trees", "climbed the trees"),
    ("pick berries", "picked berries"),
    ("listen to the birds", "listened to the birds"),
)
POND = _place(
    "pond",
    "by",
    ("in the tall grass", "behind the rock", "under the bridge", "next to the little boat"),
    ("feed the ducks", "fed the ducks"),
    ("watch the fish", "watched the fish"),
    ("throw stones into the water", "threw stones into the water"),
)
PLAYGROUND = _place(
    "playground",
    "at",
    ("under the slide", "behind the swings", "in the sand", "next to the fence"),
    ("go down the slide", "went down the slide"),
    ("swing up high", "swung up high"),
    ("play tag", "played tag"),
)
FARM = _place(
    "farm",
    "at",
    ("behind the barn", "under the cart", "in the hay", "next to the gate"),
    ("feed the hens", "fed the hens"),
    ("pet the cows", "petted the cows"),
    ("jump in the hay", "jumped in the hay"),
)
HILL = _place(
    "hill",
    "on",
    ("behind the rock", "under the old tree", "in the long grass", "near the path"),
    ("roll in the grass", "rolled in the grass"),
    ("watch the clouds", "watched the clouds"),
    ("pick flowers", "picked flowers"),
)
RIVER = _place(
    "river",
    "by",
    ("under the bridge", "behind the stones", "near the path", "next to the old tree"),
    ("watch the boats", "watched the boats"),
    ("splash in the water", "splashed in the water"),
    ("look for stones", "looked for stones"),
)
YARD = _place(
    "yard",
    "in",
    ("under the steps", "behind the fence", "next to the tree", "near the shed"),
    ("jump rope", "jumped rope"),
    ("run around the tree", "ran around the tree"),
    ("play in the sun", "played in the sun"),
)

OUTDOORS = (PARK, GARDEN, BEACH, FOREST, POND, PLAYGROUND, FARM, HILL, RIVER, YARD)
PUBLIC = tuple(place for place in OUTDOORS if place not in (GARDEN, YARD))
"""Places away from home, where one can meet a stranger."""

HOME = Location(
    "home",
    "the house",
    "at home",
    "home",
    ("under the bed", "behind the door", "in the kitchen", "under the table"),
    (Verb("draw pictures", "drew pictures"), Verb("play games", "played games"), Verb("read books", "read books")),
)


def house_of(name: str) -> Location:
    """The home of a character other than the hero."""
    return Location(f"{name}'s house", f"{name}'s house", f"at {name}'s house", f"to {name}'s house")
