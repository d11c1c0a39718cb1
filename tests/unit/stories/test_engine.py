"""The parts of the story generator: phrasings, references, and events that refuse what cannot happen."""

from collections.abc import Callable
from random import Random

import pytest

from linnet.stories.entities import Character, Item, Thing, Verb
from linnet.stories.events import (
    Befriend,
    Break,
    Build,
    Collapse,
    Comfort,
    Drop,
    Eat,
    Enter,
    Event,
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
    Stumble,
    Teach,
    TimePasses,
    Trade,
    Trouble,
    Want,
    WeatherTurns,
    Win,
)
from linnet.stories.language import indefinite, listed
from linnet.stories.narrator import Narrator
from linnet.stories.phrases.speech import spoken
from linnet.stories.setting import combine, split_of
from linnet.stories.template import BREAK, Slot, compiled
from linnet.stories.vocabulary.places import HOME, PARK, POND
from linnet.stories.world import InconsistencyError, World

LILY = Character("Lily", "f", "girl")
BEN = Character("Ben", "m", "boy", relation="friend", anchor=LILY)
MIA = Character("Mia", "f", "girl", relation="friend", anchor=LILY)
MOM = Character("Mom", "f", "mom", "", "parent", LILY)
BALL = Item(Thing("ball", ("red",), Verb("kick", "kicked")), "red")
HAT = Item(Thing("hat", ("old",)), "old")
BERRIES = Item(Thing("berries", ("sweet",), number="many"), "sweet")


def world_after(*events: Event) -> World:
    """Lily, Ben and Mia are in the park, Mom is at home; Lily has the ball, Ben the hat; then `events`."""
    world = World()
    for event in (Enter((LILY, BEN, MIA), PARK), Enter((MOM,), HOME), Own(LILY, BALL), Own(BEN, HAT), *events):
        event.happen(world)
    return world


IMPOSSIBLE: dict[str, tuple[list[Event], Event]] = {
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


def test_a_template_is_cut_into_text_slots_and_sentences() -> None:
    assert compiled('{who} ran. {who.his} hat fell. "{item}!" said {who}.') == (
        Slot("who", "", starts=False, spoken=False),
        " ran. ",
        BREAK,
        Slot("who", "his", starts=True, spoken=False),
        " hat fell. ",
        BREAK,
        '"',
        Slot("item", "", starts=True, spoken=True),
        '!" said ',
        Slot("who", "", starts=False, spoken=False),
        ".",
    )
    assert BREAK not in compiled('"Who is it? Is it {who}?" {who} asked.')
    assert BREAK in compiled('"Go!" And off they ran.')


def write(*phrasings: str, always_pronoun: bool = True) -> str:
    """The text of phrasings about Lily, Ben, Mia, Mom and the things, with a pronoun wherever one is clear."""
    rng = Random(0)
    if always_pronoun:
        rng.random = lambda: 0.49  # type: ignore[method-assign]
    narrator = Narrator(rng)
    roles = {"lily": LILY, "ben": BEN, "mia": MIA, "mom": MOM, "ball": BALL, "berries": BERRIES, "park": PARK}
    for phrasing in phrasings:
        narrator.write(phrasing, {"both": (LILY, BEN), "girls": (LILY, MIA)}, roles)
    return narrator.text


@pytest.mark.parametrize(
    ("phrasings", "text"),
    [
        (["{lily} ran.", "{lily} hid."], "A little girl named Lily ran. She hid."),
        (["{lily} saw {ben.him}.", "{ben} hid."], "A little girl named Lily saw her friend Ben. He hid."),
        (["{lily.name} saw {mia.him}.", "{mia} hid."], "Lily saw her friend Mia. Mia hid."),
        (["{lily.name} saw {mom.him}.", "{lily} hid."], "Lily saw her mom. Lily hid."),
        (["{both} ran.", "{both} hid."], "A little girl named Lily and her friend Ben ran. They hid."),
        (["{both} ran.", "{ben} hid."], "A little girl named Lily and her friend Ben ran. Ben hid."),
        (["{both.title} saw {mia.him}.", "{both} hid."], "Lily and Ben saw Lily's friend Mia. Lily and Ben hid."),
        (["{lily.name} had {ball}.", "{lily} {ball.used} {ball.it}."], "Lily had a red ball. She kicked it."),
        (["{lily.name} ate {berries}.", "{berries} {berries.was} good."],
         "Lily ate some sweet berries. The berries were good."),
        (['"Hi, {ben.name}!" said {lily.np}.', "{ben} hid."], '"Hi, Ben!" said a little girl named Lily. Ben hid.'),
        (["{lily.name} went {park.to}. {lily} was {park.at}."], "Lily went to the park. She was in the park."),
        (["{lily.name} a.", "{lily} b.", "{lily} c.", "{lily} d."], "Lily a. She b. She c. Lily d."),
    ],
)  # fmt: skip
def test_references(phrasings: list[str], text: str) -> None:
    assert write(*phrasings) == text


def test_a_new_paragraph_names_everybody_anew() -> None:
    narrator = Narrator(Random(0))
    narrator.write("{lily.name} ran.", {}, {"lily": LILY})
    narrator.paragraph()
    narrator.paragraph()
    narrator.write("{lily} hid.", {}, {"lily": LILY})
    assert narrator.text == "Lily ran.\nLily hid."


def test_an_unknown_role_or_form_is_an_error() -> None:
    for phrasing in ("{nobody} ran.", "{lily.nothing} ran."):
        with pytest.raises(KeyError):
            write(phrasing)


def test_lines_are_set_into_sentences() -> None:
    statements = spoken(("I see.",), "act", True)
    assert '"I see," said {speaker.np}.' in statements
    assert '{speaker} said, "I see."' in statements
    assert '{speaker} said to {hearer.him}, "I see."' in statements
    assert '{speaker} asked, "Who?"' in spoken(("Who?",), "act", False)
    assert not any("{hearer.him}" in sentence for sentence in spoken(("Hi, {hearer.name}!",), "act", True))


@pytest.mark.parametrize(
    ("function", "argument", "text"),
    [
        (indefinite, HAT, "an old hat"),
        (indefinite, BALL, "a red ball"),
        (indefinite, BERRIES, "some sweet berries"),
        (listed, ["Lily"], "Lily"),
        (listed, ["Lily", "Ben", "Mom"], "Lily, Ben and Mom"),
    ],
)
def test_english(function: Callable[[object], str], argument: object, text: str) -> None:
    assert function(argument) == text


def test_settings_hold_no_thing_twice_and_split_by_their_text_alone() -> None:
    things = (BALL.thing, HAT.thing)
    pairs = combine((PARK, POND), things, things, topics=("a", "b"))
    assert len(pairs) == 2 * 2 * 2
    assert all(setting.things[0] != setting.things[1] for setting in pairs)
    shares = [split_of(("plot", str(number))) for number in range(2000)]
    assert 0.07 < shares.count("validation") / 2000 < 0.13
    assert split_of(("lost_and_found", "park", "ball", "")) == "train"
