"""Ways to begin a story: who it is about, what they have, and how they come to the place."""

from linnet.stories.entities import Character, Characters, Item
from linnet.stories.events import Befriend, Enter, Go, Own
from linnet.stories.stage import Stage
from linnet.stories.vocabulary.places import HOME

_DAYS = ("One day,", "One sunny day,", "One warm morning,", "One fine afternoon,", "One Sunday,", "One summer day,")
_ARRIVALS = ("went", "walked", "ran", "went out")
_WEATHERS = ("It was a lovely day.", "The sun was out.", "It was a warm morning.", "The sky was blue.")
_INTRODUCTIONS = (
    "Once upon a time, there was {hero.intro}.",
    "There once was {hero.intro}.",
    "{hero.name} was {hero.kind}.",
    "{hero.intro} lived in a small house.",
    "This is a story about {hero.intro}.",
    "In a little house near {scene} lived {hero.intro}.",
    "{hero.intro} lived near {scene}.",
    "{hero.name} was {hero.kind} who loved to {activity.base} {scene.at}.",
    "{hero.title} loved to {activity.base} {scene.at}.",
)
_PLAIN = 5
"""So many introductions do not speak of the place of the story and what one does there."""
_LIKINGS = (
    "{hero} loved to {activity.base} {scene.at}.",
    "{hero} liked to {activity.base} with {hero.own} friends.",
    "Every day, {hero} went {scene.to} to {activity.base}.",
)
_FOOD = ("{who} had {item.a}.", "{who} had {item.a} for lunch.")
_FRIENDSHIPS = (
    "{who.title} were best friends.",
    "{who.title} were good friends who liked to {activity.base}.",
    "{who.title} did everything together.",
    "Once upon a time, there were two friends named {who.title}.",
)


def begin(stage: Stage, who: Characters, item: Item | None = None) -> None:
    """Bring `who` (the hero first) to the place of the setting; the hero owns `item`. Everything is told."""
    if stage.place is HOME:
        introduce(stage, who[0])
        stage.know(Enter(who[1:], HOME))
    elif stage.chance(0.3):
        _arrive_first(stage, who, item)
    elif len(who) == 2 and who[1].relation == "friend" and stage.chance(0.6):
        stage.know(Enter(who, HOME))
        stage.tell(Befriend(who), *_FRIENDSHIPS)
        _arrive(stage, who, item)
    else:
        _introduce_and_arrive(stage, who, item)


def introduce(stage: Stage, hero: Character) -> None:
    """Present the hero, at home."""
    if stage.place is HOME:
        stage.tell(Enter((hero,), HOME), *_INTRODUCTIONS[:_PLAIN])
    elif stage.chance(0.25):
        stage.tell(Enter((hero,), HOME), *_INTRODUCTIONS[:_PLAIN])
        stage.do((hero,), "like", *_LIKINGS)
    else:
        stage.tell(Enter((hero,), HOME), *_INTRODUCTIONS)


def _arrive_first(stage: Stage, who: Characters, item: Item | None) -> None:
    """The very first sentence finds them on the way; who they are is said in passing."""
    stage.know(Enter(who, HOME))
    if item:
        stage.know(Own(who[0], item))
        stage.roles["toy"] = item
    company = " with {toy.a}" if item else ""
    stage.tell(
        Go(who, stage.place),
        f"{stage.pick(_DAYS)} {{who}} {stage.pick(_ARRIVALS)} {{place.to}}{company}.",
        f"{stage.pick(_WEATHERS)} {{who}} {stage.pick(_ARRIVALS)} {{place.to}}{company}.",
    )


def _introduce_and_arrive(stage: Stage, who: Characters, item: Item | None) -> None:
    introduce(stage, who[0])
    if len(who) > 1:
        stage.know(Enter(who[1:], HOME))
    _arrive(stage, who, item)


def _arrive(stage: Stage, who: Characters, item: Item | None) -> None:
    start = f"{stage.pick(_DAYS)} {{who}}"
    verb = stage.pick(_ARRIVALS)
    if item is None:
        stage.tell(Go(who, stage.place), f"{start} {verb} {{place.to}}.")
        return
    stage.roles["toy"] = item
    if stage.chance(0.6):
        stage.tell(Own(who[0], item), *(_FOOD if item.thing.use.base == "eat" else ()))
    else:
        stage.know(Own(who[0], item))
    stage.tell(
        Go(who, stage.place), f"{start} {verb} {{place.to}} with {{toy}}.", f"{start} took {{toy}} {{place.to}}."
    )
