"""The told events of a story as plain sentences, for questions about it and for retelling it."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from linnet.stories.corpus import Story
from linnet.stories.entities import Character, Characters, Item
from linnet.stories.events import (
    Break,
    Build,
    Collapse,
    Eat,
    Fail,
    Find,
    Give,
    Go,
    Halve,
    Lend,
    Lose,
    Make,
    MakeUp,
    Mend,
    Own,
    Plant,
    Quarrel,
    Rescue,
    Return,
    Snatch,
    StoryEvent,
    Teach,
    Trade,
    Win,
)
from linnet.stories.language import capitalized, indefinite, listed, with_article


class Sentence(NamedTuple):
    """What an event says, with "the ball" for an item and without the full stop."""

    text: str
    event: StoryEvent


def named(who: Character) -> str:
    """`Lily`, `Mom`, `the bird`."""
    return who.name or f"the {who.species}"


def _group(who: Characters) -> str:
    return listed([named(one) for one in who])


Teller = Callable[[Any], str]

_TELLERS: dict[type[StoryEvent], Teller] = {
    Break: lambda e: f"the {e.item.noun} broke",
    Build: lambda e: f"{_group(e.who)} built {with_article(e.structure)}",
    Collapse: lambda e: f"the {e.structure} fell down",
    Eat: lambda e: f"{_group(e.who)} ate the {e.item.noun}",
    Fail: lambda e: f"{named(e.who)} tried to {e.skill} but could not",
    Find: lambda e: f"{named(e.who)} found the {e.item.noun} {e.spot}",
    Give: lambda e: f"{named(e.giver)} gave the {e.item.noun} to {named(e.receiver)}",
    Go: lambda e: f"{_group(e.who)} went {e.place.to}",
    Halve: lambda e: f"{named(e.giver)} shared the {e.item.noun} with {named(e.receiver)}",
    Lend: lambda e: f"{named(e.giver)} lent the {e.item.noun} to {named(e.receiver)}",
    Lose: lambda e: f"{named(e.who)} lost the {e.item.noun}",
    Make: lambda e: f"{_group(e.who)} made the {e.item.noun}",
    MakeUp: lambda e: f"{named(e.who)} and {named(e.other)} made up",
    Mend: lambda e: f"{_group(e.who)} fixed the {e.item.noun}",
    Own: lambda e: f"{named(e.who)} had the {e.item.noun}",
    Plant: lambda e: f"{_group(e.who)} planted the {e.item.noun}",
    Quarrel: lambda e: f"{named(e.who)} and {named(e.other)} had a quarrel",
    Rescue: lambda e: f"{_group(e.helpers)} helped {named(e.who)}",
    Return: lambda e: f"{named(e.giver)} gave the {e.item.noun} back to {named(e.receiver)}",
    Snatch: lambda e: f"{named(e.who)} took the {e.item.noun} from {named(e.other)}",
    Teach: lambda e: f"{named(e.teacher)} taught {named(e.who)} to {e.skill}",
    Trade: lambda e: f"{named(e.who)} traded the {e.item.noun} for the {e.other_item.noun}",
    Win: lambda e: f"{_group(e.who)} won the race",
}


def sentences_of(story: Story, only_deeds: bool = False) -> list[Sentence]:
    """The events that the story tells and that a short sentence can repeat, in order; none twice.

    only_deeds: without those that the story tells more than once, and what somebody had from the start.
    """
    told = [event for event in story.told if type(event) in _TELLERS]
    texts = [capitalized(_TELLERS[type(event)](event)) for event in told]
    found: dict[str, Sentence] = {}
    for text, event in zip(texts, told, strict=True):
        if not only_deeds or (texts.count(text) == 1 and not isinstance(event, Own)):
            found.setdefault(text, Sentence(text, event))
    return list(found.values())


def told_again(sentences: list[Sentence]) -> list[str]:
    """Sentences in a row, each with its full stop; the first that names an item says "a red ball"."""
    found, known = list[str](), set[str]()
    for sentence in sentences:
        text = sentence.text
        for item in (value for value in vars(sentence.event).values() if isinstance(value, Item)):
            if item.noun not in known:
                known.add(item.noun)
                text = re.sub(rf"\bthe {item.noun}\b", indefinite(item), text, count=1)
                text = re.sub(rf"^The {item.noun}\b", capitalized(indefinite(item)), text)
        found.append(f"{text}.")
    return found


def items_of(story: Story) -> list[Item]:
    """The items of the told events, each once, in order."""
    found: dict[str, Item] = {}
    for event in story.told:
        for value in vars(event).values():
            if isinstance(value, Item):
                found.setdefault(value.noun, value)
    return list(found.values())


def introduction(hero: Character) -> str:
    """`a little girl named Lily`."""
    return with_article(f"{hero.look} {hero.species} named {hero.name}")
