"""Ways to end a story: a lesson, a last game, the way home, a good night."""

from linnet.stories.entities import Characters
from linnet.stories.events import Befriend, Go, Learn, MakeUp, Sleep, TimePasses
from linnet.stories.stage import Stage
from linnet.stories.vocabulary.places import HOME, OUTDOORS

_PLAYS = (
    "{who} played until the sun went down.",
    "{who} played and laughed all day.",
    "{who} had a lot of fun that day.",
)
_GOODBYES = (
    "Then {who} went home with a smile.",
    "When the sun went down, {who} walked home.",
    "In the evening, {who} went home, tired and happy.",
)
_NIGHTS = (
    "That night, {hero} fell asleep with a smile.",
    "That night, {hero} slept very well.",
    "That night, {hero} thought of the day and fell asleep with a smile.",
)
_DAYS = ("It was a very good day.", "It was the best day ever.", "What a day it was!", "It had been a wonderful day.")


_LESSONS = ("{{who}} learned that {0}.", "That day, {{who}} learned that {0}.", "Now {{who}} knew that {0}.")
_HABITS = ("From that day on, {{who}} always {0}.", "After that, {{who}} always {0}.")


def close(stage: Stage, who: Characters, lessons: tuple[str, ...] = (), habits: tuple[str, ...] = ()) -> None:
    """End the story of `who` (the hero first): mostly with a lesson or a new habit, then often a last picture."""
    moral = bool(lessons or habits) and stage.chance(0.7)
    if moral:
        is_habit = bool(habits) and (not lessons or stage.chance(0.5))
        lesson = stage.pick(habits if is_habit else lessons)
        stage.tell(Learn(who, lesson), *(form.format(lesson) for form in (_HABITS if is_habit else _LESSONS)))
    if not moral or stage.chance(0.4):
        _last_picture(stage, who)


def _last_picture(stage: Stage, who: Characters) -> None:
    picture = stage.pick(("play", "home", "night", "day", "friends"))
    if picture == "play" and len(who) > 1 and stage.world.weather == "sunny":
        stage.do(who, "play", *_PLAYS)
    elif picture == "home" and stage.world.place_of[who[0]] in OUTDOORS:
        stage.tell(Go(who, HOME), *(_GOODBYES if stage.world.weather == "sunny" else _GOODBYES[:1]))
    elif picture == "night":
        _sleep(stage, who)
    elif picture == "friends" and len(who) > 1 and _can_befriend(stage, who):
        stage.tell(Befriend(who), "{who} stayed friends forever.", "And {who} were the best of friends.")
    else:
        stage.do(who[:1], "look back", *_DAYS)


def _can_befriend(stage: Stage, who: Characters) -> bool:
    told = any(isinstance(event, Befriend | MakeUp) for event in stage.events)
    return not told and all(one.relation != "parent" for one in who)


def _sleep(stage: Stage, who: Characters) -> None:
    hero = who[0]
    if stage.world.place_of[hero] != HOME:
        stage.know(Go((hero,), HOME))
    if stage.world.time < 3:
        stage.know(TimePasses("night"))
    stage.tell(Sleep((hero,)), *_NIGHTS)
