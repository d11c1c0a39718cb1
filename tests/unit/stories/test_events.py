"""Events change the world, and refuse what cannot happen."""

import pytest
from small_cast import BALL, BEN, BERRIES, HAT, LILY, MIA, MOM

from linnet.stories.events import (
    Befriend,
    Break,
    Build,
    Collapse,
    Comfort,
    Drop,
    Eat,
    Enter,
    Fail,
    Feel,
    Find,
    Get,
    Give,
    Go,
    Halve,
    Lend,
    Lie,
    Lose,
    MakeUp,
    Master,
    Mend,
    NextDay,
    Own,
    Plant,
    PlayWith,
    Quarrel,
    Rescue,
    Return,
    Say,
    Search,
    Sleep,
    Snatch,
    StartRace,
    StoryEvent,
    Stumble,
    Teach,
    TimePasses,
    Trade,
    Trouble,
    Want,
    WeatherTurns,
    Win,
)
from linnet.stories.vocabulary.places import HOME, PARK, POND
from linnet.stories.world import InconsistencyError, World


def world_after(*events: StoryEvent) -> World:
    """Lily, Ben and Mia are in the park, Mom is at home; Lily has the ball, Ben the hat; then `events`."""
    world = World()
    for event in (Enter((LILY, BEN, MIA), PARK), Enter((MOM,), HOME), Own(LILY, BALL), Own(BEN, HAT), *events):
        event.happen(world)
    return world


IMPOSSIBLE: dict[str, tuple[list[StoryEvent], StoryEvent]] = {
    "enter twice": ([], Enter((LILY,), HOME)),
    "go where one is": ([], Go((LILY,), PARK)),
    "go together from two places": ([], Go((LILY, MOM), POND)),
    "go while in trouble": ([Trouble(LILY, "stuck")], Go((LILY,), POND)),
    "act asleep": ([Sleep((LILY,))], Give(LILY, BEN, BALL)),
    "go back in time": ([TimePasses("evening")], TimePasses("afternoon")),
    "the weather it is": ([], WeatherTurns("sunny")),
    "own a thing that is there": ([], Own(BEN, BALL)),
    "get a thing that is there": ([], Get(BEN, BALL)),
    "get what was eaten": ([Eat((LILY,), BALL)], Get(BEN, BALL)),
    "lie where it is held": ([], Lie(BALL, PARK, "here")),
    "lose what another has": ([], Lose(BEN, BALL, "here")),
    "drop what one does not have": ([], Drop(BEN, BALL, "here")),
    "give what one does not have": ([], Give(BEN, LILY, BALL)),
    "give to somebody elsewhere": ([], Give(LILY, MOM, BALL)),
    "give what is borrowed": ([Lend(LILY, BEN, BALL)], Give(BEN, MIA, BALL)),
    "lend what one does not have": ([], Lend(BEN, LILY, BALL)),
    "return what is not the other's": ([], Return(LILY, BEN, BALL)),
    "return from far away": ([Lend(LILY, BEN, BALL), Go((BEN,), HOME)], Return(BEN, LILY, BALL)),
    "trade what is not there": ([Eat((BEN,), HAT)], Trade(LILY, BEN, BALL, HAT)),
    "snatch from empty hands": ([], Snatch(LILY, MIA, HAT)),
    "find it elsewhere": ([Lose(LILY, BALL, "here")], Find(LILY, BALL, "there")),
    "find it in another place": ([Lose(LILY, BALL, "here")], Find(MOM, BALL, "here")),
    "find it twice": ([Lose(LILY, BALL, "here"), Find(BEN, BALL, "here")], Find(LILY, BALL, "here")),
    "search in vain where it is": ([Lose(LILY, BALL, "here")], Search((LILY,), BALL, "here")),
    "eat what nobody has": ([], Eat((MIA,), BALL)),
    "share what one does not have": ([], Halve(MIA, LILY, BALL)),
    "plant what nobody has": ([], Plant((MIA,), BALL)),
    "play with what nobody has": ([], PlayWith((MIA,), BALL)),
    "play with a broken thing": ([Break(LILY, BALL)], PlayWith((LILY,), BALL)),
    "break it twice": ([Break(LILY, BALL)], Break(LILY, BALL)),
    "break what is not there": ([], Break(LILY, BERRIES)),
    "mend what is whole": ([], Mend((LILY,), BALL)),
    "mend what one does not hold": ([Break(LILY, BALL)], Mend((BEN,), BALL)),
    "want what one has": ([], Want(LILY, BALL)),
    "be sad for a loss that was none": ([], Feel((LILY,), "sad", "lost", BALL)),
    "be sad for a break that was none": ([], Feel((LILY,), "sad", "broken", BALL)),
    "be glad that it is back before it is": ([Lose(LILY, BALL, "here")], Feel((LILY,), "happy", "back", BALL)),
    "be sad for rain in the sun": ([], Feel((LILY,), "sad", "rain")),
    "comfort the happy": ([Feel((LILY,), "happy")], Comfort(BEN, LILY)),
    "quarrel twice": ([Quarrel(LILY, BEN)], Quarrel(LILY, BEN)),
    "make up without a quarrel": ([], MakeUp(LILY, BEN)),
    "be friends in a quarrel": ([Quarrel(LILY, BEN)], Befriend((LILY, BEN))),
    "race alone": ([], StartRace((LILY,))),
    "stumble outside a race": ([], Stumble(LILY)),
    "win without running": ([StartRace((LILY, BEN))], Win((MIA,))),
    "win twice": ([StartRace((LILY, BEN)), Win((BEN,))], Win((LILY,))),
    "learn twice": ([Master(LILY, "swim")], Master(LILY, "swim")),
    "fail what one can do": ([Master(LILY, "swim")], Fail(LILY, "swim")),
    "teach what one cannot do": ([], Teach(BEN, LILY, "swim")),
    "build it twice": ([Build((LILY,), "fort")], Build((BEN,), "fort")),
    "fall down before it stands": ([], Collapse("fort")),
    "be in trouble twice": ([Trouble(LILY, "stuck")], Trouble(LILY, "hurt")),
    "rescue somebody who is well": ([], Rescue((BEN,), LILY)),
    "speak to somebody elsewhere": ([], Say(LILY, MOM, "greet")),
    "say one lost what one has": ([], Say(LILY, BEN, "lost it", BALL)),
    "say one found what one has not": ([], Say(BEN, LILY, "found it", BALL)),
    "offer what one has not": ([], Say(BEN, LILY, "offer it", BALL)),
    "call another's thing one's own": ([], Say(BEN, LILY, "mine", BALL)),
    "ask somebody for what another has": ([], Say(BEN, MIA, "ask for it", BALL)),
    "call a whole thing broken": ([], Say(LILY, BEN, "broke it", BALL)),
    "call a broken thing whole": ([Break(LILY, BALL)], Say(LILY, BEN, "whole again", BALL)),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_event_refuses_what_cannot_happen(case: str) -> None:
    before, event = IMPOSSIBLE[case]
    world = world_after(*before)
    with pytest.raises(InconsistencyError) as failure:
        event.happen(world)
    assert type(event).__name__ in failure.value.__notes__[0]


def test_events_change_the_world() -> None:
    world = world_after(Lose(LILY, BALL, "here"), Find(BEN, BALL, "here"))
    assert (world.holder_of[BALL], world.owner_of[BALL], world.lost) == (BEN, LILY, set())
    Return(BEN, LILY, BALL).happen(world)
    Trade(LILY, BEN, BALL, HAT).happen(world)
    assert (world.owner_of[BALL], world.holder_of[HAT]) == (BEN, LILY)
    Give(LILY, MIA, HAT).happen(world)
    assert (world.owner_of[HAT], world.holder_of[HAT]) == (MIA, MIA)
    Sleep((LILY,)).happen(world)
    NextDay().happen(world)
    Go((LILY,), HOME).happen(world)
    assert world.place_of == {LILY: HOME, BEN: PARK, MIA: PARK, MOM: HOME}
