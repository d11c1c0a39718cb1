"""The few rules of English that the stories need: a or an, lists of names, capitals."""

from linnet.stories.entities import Item

_VOWELS = frozenset("aeiouAEIOU")


def with_article(phrase: str) -> str:
    """The phrase with "a" or "an". No word of the vocabulary has a spelling at odds with its sound (test)."""
    return f"an {phrase}" if phrase[0] in _VOWELS else f"a {phrase}"


def indefinite(item: Item) -> str:
    """A new item: "a red ball", "an old hat", "some sweet berries"."""
    phrase = f"{item.adjective} {item.noun}"
    return with_article(phrase) if item.thing.number == "one" else f"some {phrase}"


def capitalized(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def listed(names: list[str]) -> str:
    """Names in a row: "Lily", "Lily and Ben", "Lily, Ben and Mom"."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def possessive(name: str) -> str:
    """The possessive of a name: "Lily's"; a name in s takes 's too ("Gus's")."""
    return f"{name}'s"
