"""What plots turn on: skills, noises, buildings, presents, seeds and games.

Texts are phrasings (see `template`): `{who}` is the one who learns, builds or plays.
"""

from dataclasses import dataclass

from linnet.stories.entities import Location, Thing, Verb
from linnet.stories.vocabulary.places import (
    BEACH,
    FARM,
    FOREST,
    GARDEN,
    HILL,
    PARK,
    PLAYGROUND,
    POND,
    RIVER,
    YARD,
)


@dataclass(frozen=True)
class Skill:
    """Something to learn: where, how one fails, what the teacher says, how it looks when one can do it."""

    verb: Verb
    places: tuple[Location, ...]
    fails: tuple[str, ...]
    tips: tuple[str, ...]
    success: tuple[str, ...]
    not_species: tuple[str, ...] = ()


SKILLS: dict[str, Skill] = {
    "ride a bike": Skill(
        Verb("ride a bike", "rode a bike"),
        (PARK, YARD, PLAYGROUND, HILL),
        ("The bike shook, and {who} fell.", "{who} went two feet and fell into the grass."),
        ("Look ahead, not down.", "Keep your feet moving."),
        ("{who} rode all the way to the gate!", "{who} rode around and around!"),
        ("duck", "frog", "turtle", "owl"),
    ),
    "swim": Skill(
        Verb("swim", "swam"),
        (BEACH, POND, RIVER),
        ("{who} kicked and splashed but went under.", "Water got into {who.his} nose."),
        ("Kick your legs, slow and strong.", "Do not be afraid. I will hold you."),
        ("{who} kicked and kicked, and then {who.pro} was swimming!",),
        ("duck", "frog", "turtle", "owl"),
    ),
    "climb a tree": Skill(
        Verb("climb a tree", "climbed a tree"),
        (PARK, GARDEN, FOREST, HILL, YARD),
        ("{who} slid back down.", "{who} could not reach the first branch."),
        ("Put one foot here and hold on tight.", "Go slow, one branch at a time."),
        ("{who} climbed up to the big branch and waved!",),
        ("squirrel", "cat", "bear", "owl", "duck", "turtle", "frog"),
    ),
    "whistle": Skill(
        Verb("whistle", "whistled"),
        (PARK, HILL, FARM, GARDEN, RIVER),
        ("{who} blew and blew, but there was no sound.", "Only air came out."),
        ("Make a small round mouth.", "Blow very softly."),
        ("A clear sound came out, like a bird!",),
        ("duck", "owl"),
    ),
    "skip stones": Skill(
        Verb("skip stones", "skipped stones"),
        (BEACH, POND, RIVER),
        ("The stone fell into the water with a plop.", "The stone went straight down."),
        ("Find a flat stone and throw it low.", "Turn your arm to the side."),
        ("The stone jumped one, two, three times!",),
    ),
    "catch a ball": Skill(
        Verb("catch a ball", "caught a ball"),
        (PARK, YARD, PLAYGROUND, BEACH),
        ("The ball fell to the ground.", "The ball hit {who.him} on the nose."),
        ("Keep your eyes on the ball.", "Hold your arms out and wait."),
        ("{who} put out both arms and caught the ball!",),
    ),
    "jump rope": Skill(
        Verb("jump rope", "jumped rope"),
        (YARD, PLAYGROUND, PARK),
        ("The rope hit {who.his} feet.", "{who} jumped too late."),
        ("Count to three and jump.", "Listen to the rope and jump high."),
        ("{who} jumped ten times and did not stop!",),
    ),
    "fly a kite": Skill(
        Verb("fly a kite", "flew a kite"),
        (HILL, BEACH, PARK),
        ("The kite fell down on the grass.", "{who} ran and ran, but the kite did not go up."),
        ("Wait for the wind, then run.", "Hold the string tight and let it go slowly."),
        ("Up, up went the kite, high in the sky!",),
    ),
    "dance": Skill(
        Verb("dance", "danced"),
        (PARK, GARDEN, FARM, YARD),
        ("{who} fell over.", "{who} turned the wrong way."),
        ("Listen to the music and move slowly.", "One step left, one step right."),
        ("{who} turned around and around and did not fall!",),
    ),
    "stand on one leg": Skill(
        Verb("stand on one leg", "stood on one leg"),
        (POND, GARDEN, PLAYGROUND, FOREST),
        ("{who} fell to one side.", "{who} shook and fell into the grass."),
        ("Look at one thing and do not move.", "Hold your arms out wide."),
        ("{who} stood as still as a tree!",),
        ("duck", "owl"),
    ),
}

NOISES: dict[str, tuple[str, str]] = {
    "owl": ("Hoo, hoo!", "an owl in the tree"),
    "cat": ("Scratch, scratch!", "the cat at the door"),
    "branch": ("Tap, tap, tap!", "a branch at the window"),
    "clock": ("Tick, tock!", "the old clock on the wall"),
    "mouse": ("Squeak, squeak!", "a little mouse under the bed"),
    "wind": ("Whoosh!", "the wind in the trees"),
    "water": ("Drip, drip!", "water in the sink"),
    "frog": ("Croak, croak!", "a frog in the garden"),
    "rain": ("Plip, plop!", "the rain on the roof"),
    "dog": ("Woof, woof!", "the dog next door"),
    "door": ("Creak, creak!", "the door of the closet"),
}
"""A sound in the night and what makes it."""


@dataclass(frozen=True)
class Structure:
    """Something to build together: where, of what, what may happen to it, and how it is enjoyed."""

    places: tuple[Location, ...]
    work: tuple[str, ...]
    mishaps: tuple[str, ...]
    joy: tuple[str, ...]
    ruin: str = "fell down"


STRUCTURES: dict[str, Structure] = {
    "sand castle": Structure(
        (BEACH, PLAYGROUND),
        ("{who} filled a bucket with wet sand.", "{who} dug deep and made tall walls."),
        ("a big dog ran over it", "the walls were too dry"),
        ("{who} put a feather on top and cheered.",),
    ),
    "tree house": Structure(
        (FOREST, GARDEN, YARD, PARK, FARM),
        ("{who} carried wood up the tree.", "{who} used old wood and long ropes."),
        ("a strong wind came", "the wood was too thin"),
        ("{who} climbed up and looked out over the trees.",),
    ),
    "tower": Structure(
        (YARD, GARDEN, PLAYGROUND, PARK, FARM),
        ("{who} put one box on top of the other.", "{who} found a lot of old boxes."),
        ("a cat jumped on it", "it was too tall"),
        ("{who} stood next to it and felt very tall.",),
    ),
    "fort": Structure(
        (YARD, FOREST, PARK, HILL),
        ("{who} looked for long sticks.", "{who} put sticks and leaves together."),
        ("a strong wind came", "one stick was too short"),
        ("{who} sat inside and ate some cookies.",),
    ),
    "bridge": Structure(
        (RIVER, POND, FOREST),
        ("{who} put big stones into the water.", "{who} carried wood to the water."),
        ("the water was too fast", "one stone was too round"),
        ("{who} walked over it, and their feet stayed dry.",),
    ),
    "boat": Structure(
        (RIVER, POND, BEACH),
        ("{who} tied some wood together with rope.", "{who} made a sail from an old sheet."),
        ("a big wave came", "the rope was too thin"),
        ("{who} sat in it and sailed over the water.",),
        ruin="fell apart",
    ),
}


@dataclass(frozen=True)
class Craft:
    """A present to make: the thing, how one makes it, and what adorns it."""

    thing: Thing
    verb: Verb


def _craft(noun: str, adjectives: str, base: str, past: str) -> Craft:
    return Craft(Thing(noun, tuple(adjectives.split())), Verb(base, past))


CRAFTS: dict[str, Craft] = {
    craft.thing.noun: craft
    for craft in (
        _craft("card", "big pretty blue", "make", "made"),
        _craft("crown", "gold paper pretty", "make", "made"),
        _craft("necklace", "long pretty red", "make", "made"),
        _craft("box", "wooden small pretty", "build", "built"),
        _craft("picture", "big pretty", "paint", "painted"),
        _craft("mask", "funny paper green", "make", "made"),
        _craft("basket", "small round brown", "make", "made"),
    )
}

TREASURE_PLACES: dict[str, tuple[Location, ...]] = {
    "shell": (BEACH,),
    "stone": (RIVER, HILL, BEACH),
    "feather": (POND, FOREST, PARK, FARM),
    "flower": (GARDEN, HILL, PARK, YARD),
    "acorn": (FOREST, PARK),
}

SEEDS: dict[str, tuple[str, str]] = {
    "sunflower": ("a tall sunflower", "It looked like a little sun."),
    "carrot": ("a big carrot", "It was sweet and crunchy."),
    "pumpkin": ("an orange pumpkin", "It was as big as a chair."),
    "tomato": ("a red tomato", "It was round and juicy."),
    "bean": ("a long green bean", "It was as long as an arm."),
    "rose": ("a pink rose", "It smelled sweet."),
    "melon": ("a round melon", "It was sweet and full of juice."),
}
"""What grows from a seed, and how it is."""

INDOOR_GAMES: dict[str, tuple[str, str]] = {
    "fort": ("build a fort", "{who} built a fort with chairs and pillows."),
    "painting": ("paint a picture", "{who} painted a big picture of the sun."),
    "baking": ("bake cookies", "{who} baked cookies, and the house smelled sweet."),
    "boats": ("make paper boats", "{who} made paper boats and let them float in the sink."),
    "hiding": ("play hide and seek", "{who} played hide and seek in every room."),
    "music": ("play music", "{who} played music on pots and pans."),
    "dressing up": ("dress up", "{who} put on big hats and played king and queen."),
    "reading": ("read a story", "{who} read a funny story under a blanket."),
    "puppets": ("make puppets", "{who} made puppets from old socks."),
}
"""What to do inside, and how it goes."""

GOALS = ("the big tree", "the red gate", "the old bridge", "the tall fence", "the big rock")
"""Where a race ends."""
