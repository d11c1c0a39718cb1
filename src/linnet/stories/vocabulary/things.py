"""Kinds of thing, grouped by what they are good for in a plot."""

from linnet.stories.entities import Thing, Verb


def _toy(noun: str, adjectives: str, base: str, past: str) -> Thing:
    return Thing(noun, tuple(adjectives.split()), Verb(base, past))


def _food(noun: str, adjectives: str) -> Thing:
    return Thing(noun, tuple(adjectives.split()), Verb("eat", "ate"))


def _foods(noun: str, adjectives: str) -> Thing:
    return Thing(noun, tuple(adjectives.split()), Verb("eat", "ate"), number="many")


TOYS = (
    _toy("ball", "red blue big yellow orange", "kick", "kicked"),
    _toy("kite", "red blue long yellow", "fly", "flew"),
    _toy("doll", "pretty little old new", "play with", "played with"),
    _toy("teddy bear", "soft brown big old", "hug", "hugged"),
    _toy("toy car", "red green fast new", "push", "pushed"),
    _toy("toy boat", "white blue small wooden", "play with", "played with"),
    _toy("toy train", "long black green new", "pull", "pulled"),
    _toy("toy truck", "big yellow green strong", "push", "pushed"),
    _toy("drum", "big red loud new", "play", "played"),
    _toy("whistle", "shiny silver small new", "blow", "blew"),
    _toy("horn", "shiny gold old loud", "blow", "blew"),
    _toy("flute", "little wooden old silver", "play", "played"),
    _toy("bell", "small gold shiny pretty", "ring", "rang"),
    _toy("robot", "shiny gray new funny", "play with", "played with"),
    _toy("book", "thick old new green", "read", "read"),
    _toy("paper plane", "white big blue fast", "throw", "threw"),
    _toy("wagon", "red old small wooden", "pull", "pulled"),
    _toy("hat", "warm funny orange green", "wear", "wore"),
    _toy("scarf", "long soft warm purple", "wear", "wore"),
    _toy("umbrella", "yellow purple big pink", "carry", "carried"),
)
"""What a child owns, plays with, loses, lends and trades."""

BREAKABLE_TOYS = tuple(
    toy
    for toy in TOYS
    if toy.noun in {"kite", "doll", "toy car", "toy boat", "toy train", "toy truck", "drum", "robot", "wagon"}
)

TREASURES = (
    _toy("shell", "pink white smooth pretty", "look at", "looked at"),
    _toy("stone", "round smooth shiny gray", "look at", "looked at"),
    _toy("feather", "long white soft blue", "look at", "looked at"),
    _toy("acorn", "round brown small shiny", "look at", "looked at"),
    _toy("flower", "pink yellow pretty purple", "smell", "smelled"),
    _toy("coin", "shiny gold old silver", "look at", "looked at"),
    _toy("marble", "round green blue shiny", "roll", "rolled"),
    _toy("key", "old tiny gold silver", "look at", "looked at"),
)
"""Small things that lie about and make presents and prizes."""

SNACKS = (
    _food("apple", "red green sweet big"),
    _food("orange", "sweet big round juicy"),
    _food("pear", "green sweet yellow juicy"),
    _food("sandwich", "big tasty long fresh"),
    _food("muffin", "warm sweet big tasty"),
    _food("cookie", "big sweet round warm"),
    _food("banana", "yellow sweet long big"),
    _food("carrot", "orange long fresh big"),
)
"""Food for one, which can be broken in two."""

TREATS = (
    _foods("cookies", "sweet warm tasty round"),
    _foods("berries", "red sweet blue juicy"),
    _foods("grapes", "green sweet purple juicy"),
    _foods("nuts", "brown tasty fresh big"),
    _foods("plums", "purple sweet juicy ripe"),
    _foods("pancakes", "warm sweet round tasty"),
)
"""Food in plenty."""

BIG_FOODS = (
    _food("cake", "big sweet round yellow"),
    _food("pie", "warm sweet big apple"),
    Thing("bread", ("warm", "fresh", "soft"), Verb("eat", "ate"), number="mass"),
    Thing("soup", ("hot", "warm", "tasty"), Verb("eat", "ate"), number="mass"),
)

FRAGILE = (
    _toy("vase", "blue tall pretty white", "look at", "looked at"),
    _toy("cup", "white blue pretty little", "use", "used"),
    _toy("plate", "white round big yellow", "use", "used"),
    _toy("lamp", "tall old green pretty", "use", "used"),
    _toy("bowl", "blue big round white", "use", "used"),
    _toy("teapot", "round old white pretty", "use", "used"),
    _toy("clock", "old round brown big", "look at", "looked at"),
    _toy("jar", "tall round glass green", "use", "used"),
)
"""What stands in a house and should not be hit by a ball."""

COMFORTS = (
    _toy("blanket", "warm soft blue old", "hold", "held"),
    _toy("pillow", "soft big white warm", "hold", "held"),
    _toy("lantern", "small bright old yellow", "hold", "held"),
    _toy("doll", "pretty little old new", "play with", "played with"),
    _toy("toy rabbit", "soft white little", "hold", "held"),
    _toy("teddy bear", "soft brown big old", "hug", "hugged"),
    _toy("scarf", "long soft warm purple", "wear", "wore"),
)


BY_NOUN = {thing.noun: thing for thing in (*TOYS, *TREASURES)}
"""Toys and treasures by their nouns."""
