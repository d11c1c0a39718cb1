"""What goes wrong: animals in trouble, scary places, and what rolls or flies into them.

Texts are phrasings (see `template`): `{who}` is the one in trouble, `{helpers}` are those who help.
"""

from dataclasses import dataclass

from linnet.stories.entities import Location
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
from linnet.stories.vocabulary.things import BY_NOUN


@dataclass(frozen=True)
class Predicament:
    """An animal in trouble: its species and look, where it may be met, what is seen, and how it is helped."""

    species: str
    look: str
    places: tuple[Location, ...]
    seen: tuple[str, ...]
    helped: tuple[str, ...]


PREDICAMENTS: dict[str, Predicament] = {
    "stuck in a tree": Predicament(
        "kitten",
        "tiny",
        (PARK, GARDEN, YARD, HILL, FARM),
        ("{who} sat high up in a tree and could not get down.",),
        ("{helpers} climbed up and carried {who.him} down.",),
    ),
    "on its back": Predicament(
        "turtle",
        "green",
        (BEACH, POND, RIVER),
        ("{who} lay on its back and could not get up.",),
        ("{helpers} turned {who.him} over.", "{helpers} put {who.him} back on its feet."),
    ),
    "hurt wing": Predicament(
        "bird",
        "little",
        (FOREST, GARDEN, PARK, HILL, BEACH),
        ("{who} sat on the ground with a hurt wing.",),
        (
            "{helpers} put a soft cloth around its wing. Soon the bird could fly again.",
            "{helpers} gave {who.him} water and kept {who.him} warm. Soon the bird could fly again.",
        ),
    ),
    "lost its mother": Predicament(
        "duckling",
        "yellow",
        (POND, RIVER, FARM),
        ("{who} cried because it could not find its mother.",),
        (
            "{helpers} walked with {who.him} along the path until they saw the mother duck.",
            "{helpers} called and called, and at last the mother duck came.",
        ),
    ),
    "stuck in a jar": Predicament(
        "mouse",
        "gray",
        (PARK, FARM, GARDEN, PLAYGROUND),
        ("{who} was stuck in a glass jar.",),
        ("{helpers} held the jar and pulled {who.np} out.",),
    ),
    "caught in a net": Predicament(
        "hedgehog",
        "small",
        (FOREST, GARDEN, YARD, BEACH),
        ("{who} was caught in an old net.",),
        ("{helpers} pulled the net away.", "{helpers} cut the net, and the hedgehog was free."),
    ),
    "under a stone": Predicament(
        "frog",
        "green",
        (POND, RIVER, GARDEN),
        ("{who} could not move because its leg was under a stone.",),
        ("{helpers} pushed the stone away.", "{helpers} lifted the heavy stone."),
    ),
    "thorn in its paw": Predicament(
        "puppy",
        "brown",
        (PARK, HILL, FARM, FOREST),
        ("{who} had a thorn in its paw and could not walk.",),
        ("{helpers} pulled the thorn out.",),
    ),
}


@dataclass(frozen=True)
class Fear:
    """A scary spot, the way into it, and what turns out to be there."""

    where: str
    places: tuple[Location, ...]
    inside: tuple[str, ...]


FEARS: dict[str, Fear] = {
    "cave": Fear("the dark cave", (FOREST, HILL, BEACH), ("only a sleepy bat", "only a little spider")),
    "shed": Fear("the dark shed", (YARD, GARDEN), ("only a gray cat", "only a tiny mouse")),
    "barn": Fear("the old barn", (FARM,), ("only a sleepy cow", "only a small mouse")),
    "bushes": Fear("the dark bushes", (PARK, PLAYGROUND), ("only a little rabbit", "only a small bird")),
    "tunnel": Fear("the long tunnel", (RIVER, PLAYGROUND, PARK), ("only a green frog", "only some leaves")),
    "reeds": Fear("the tall reeds", (POND,), ("only a fat duck", "only a green frog")),
}

ROLLING = tuple(BY_NOUN[noun] for noun in ("ball", "toy car", "toy truck", "wagon", "marble", "toy train"))
BLOWN = tuple(BY_NOUN[noun] for noun in ("kite", "hat", "paper plane", "scarf", "umbrella", "feather"))
