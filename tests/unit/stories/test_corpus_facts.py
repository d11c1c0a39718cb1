"""The facts of the stories: replayed by a second, much smaller model of the world, and compared with the text.

The replay knows events by their names and fields only and keeps names in dictionaries; it shares no code with
`linnet.stories.world`, so a mistake there shows here.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.stories import Split, Story, stories, story
from linnet.stories.entities import Character, Item, Location
from linnet.stories.events import StoryEvent

WITHOUT_RULE = {"Do", "Meet", "Comfort", "Want", "Learn", "TimePasses", "WeatherTurns"}
"""Events after which everybody has what he had, where he was."""
SOLITARY = {"Enter", "Feel", "Learn", "Befriend", "Want"}
"""Events whose characters need not be in one place."""


@pytest.fixture(scope="module")
def sample() -> list[Story]:
    return [*islice(stories(seed=21), 1200), *islice(stories(seed=22, split="validation"), 500)]


def flat(value: object) -> object:
    """A field of an event as plain text."""
    if isinstance(value, Character):
        return value.name or value.species
    if isinstance(value, Item | Location):
        return value.noun
    return tuple(flat(one) for one in value) if isinstance(value, tuple) else value


class Replay:
    """Where everybody is, what everybody holds and owns, where things lie."""

    def __init__(self) -> None:
        self.place: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.owner: dict[str, str] = {}
        self.lies: dict[str, tuple[str, str]] = {}
        self.state: dict[str, set[str]] = {"lost": set(), "broken": set(), "asleep": set(), "trouble": set()}
        self.built: set[str] = set()
        self.skills: set[tuple[str, str]] = set()
        self.quarrel: set[frozenset[str]] = set()
        self.racing: set[str] = set()

    def step(self, event: StoryEvent) -> None:
        name = type(event).__name__
        fields = {field: flat(value) for field, value in vars(event).items()}
        people = {str(flat(one)) for value in vars(event).values() for one in characters_in(value)}
        if name != "Enter":
            assert people <= self.place.keys(), event
        assert not people & self.state["asleep"], event
        if name not in SOLITARY:
            assert len({self.place[one] for one in people}) <= 1, event
        if name not in WITHOUT_RULE:
            getattr(self, f"on_{name.lower()}")(**fields)
        assert not self.holder.keys() & self.lies.keys()

    def move(self, item: str, giver: str, receiver: str) -> None:
        assert self.holder[item] == giver
        self.holder[item] = receiver

    def new(self, who: str, item: str) -> None:
        assert item not in self.holder
        assert item not in self.lies
        self.holder[item] = self.owner[item] = who

    def on_feel(self, who: tuple[str, ...], feeling: str, because: str, item: str | None) -> None:
        if because in ("lost", "broken"):
            assert item in self.state[because]
        if because == "back":
            assert item in self.holder

    def on_say(self, speaker: str, hearer: str | None, act: str, item: str | None) -> None:
        holder = self.holder.get(item or "")
        if act in ("found it", "offer it"):
            assert holder == speaker
        if act == "ask for it":
            assert holder == hearer
        if act == "lost it":
            assert item in self.state["lost"]
        if act in ("mine", "miss it"):
            assert self.owner[item or ""] == speaker

    def on_enter(self, who: tuple[str, ...], place: str) -> None:
        assert not set(who) & self.place.keys()
        self.place.update(dict.fromkeys(who, place))

    def on_go(self, who: tuple[str, ...], place: str) -> None:
        assert all(self.place[one] != place for one in who)
        assert not set(who) & self.state["trouble"]
        self.place.update(dict.fromkeys(who, place))

    def on_own(self, who: str, item: str) -> None:
        self.new(who, item)

    def on_get(self, who: str, item: str) -> None:
        self.new(who, item)

    def on_make(self, who: tuple[str, ...], item: str) -> None:
        self.new(who[0], item)

    def on_lie(self, item: str, place: str, spot: str) -> None:
        assert item not in self.holder
        self.lies[item] = (place, spot)

    def on_drop(self, who: str, item: str, spot: str) -> None:
        assert self.holder.pop(item) == who
        self.lies[item] = (self.place[who], spot)

    def on_lose(self, who: str, item: str, spot: str) -> None:
        self.on_drop(who, item, spot)
        self.state["lost"].add(item)

    def on_search(self, who: tuple[str, ...], item: str, spot: str) -> None:
        assert item in self.state["lost"]
        assert self.lies[item] != (self.place[who[0]], spot)

    def on_find(self, who: str, item: str, spot: str) -> None:
        assert self.lies.pop(item) == (self.place[who], spot)
        self.state["lost"].discard(item)
        self.holder[item] = who
        self.owner.setdefault(item, who)

    def on_give(self, giver: str, receiver: str, item: str) -> None:
        assert self.owner[item] == giver
        self.move(item, giver, receiver)
        self.owner[item] = receiver

    def on_lend(self, giver: str, receiver: str, item: str) -> None:
        assert self.owner[item] == giver
        self.move(item, giver, receiver)

    def on_return(self, giver: str, receiver: str, item: str) -> None:
        assert self.owner[item] == receiver
        self.move(item, giver, receiver)

    def on_snatch(self, who: str, other: str, item: str) -> None:
        self.move(item, other, who)

    def on_trade(self, who: str, other: str, item: str, other_item: str) -> None:
        assert (self.owner[item], self.owner[other_item]) == (who, other)
        self.move(item, who, other)
        self.move(other_item, other, who)
        self.owner |= {item: other, other_item: who}

    def on_eat(self, who: tuple[str, ...], item: str) -> None:
        assert self.holder.pop(item) in who

    def on_halve(self, giver: str, receiver: str, item: str) -> None:
        assert self.holder.pop(item) == giver

    def on_plant(self, who: tuple[str, ...], item: str) -> None:
        assert self.holder.pop(item) in who

    def on_playwith(self, who: tuple[str, ...], item: str) -> None:
        assert self.holder[item] in who
        assert item not in self.state["broken"]

    def on_break(self, who: str, item: str) -> None:
        assert item in self.holder or item in self.lies
        self.state["broken"].add(item)

    def on_mend(self, who: tuple[str, ...], item: str) -> None:
        assert self.holder[item] in who
        self.state["broken"].remove(item)

    def on_sleep(self, who: tuple[str, ...]) -> None:
        self.state["asleep"].update(who)

    def on_nextday(self) -> None:
        self.state["asleep"].clear()

    def on_trouble(self, who: str, trouble: str) -> None:
        self.state["trouble"].add(who)

    def on_rescue(self, helpers: tuple[str, ...], who: str) -> None:
        self.state["trouble"].remove(who)

    def on_build(self, who: tuple[str, ...], structure: str) -> None:
        assert structure not in self.built
        self.built.add(structure)

    def on_collapse(self, structure: str) -> None:
        self.built.remove(structure)

    def on_fail(self, who: str, skill: str) -> None:
        assert (who, skill) not in self.skills

    def on_master(self, who: str, skill: str) -> None:
        assert (who, skill) not in self.skills
        self.skills.add((who, skill))

    def on_teach(self, teacher: str, who: str, skill: str) -> None:
        assert (teacher, skill) in self.skills

    def on_quarrel(self, who: str, other: str) -> None:
        self.quarrel.add(frozenset((who, other)))

    def on_makeup(self, who: str, other: str) -> None:
        self.quarrel.remove(frozenset((who, other)))

    def on_befriend(self, who: tuple[str, ...]) -> None:
        assert not any(pair & set(who) for pair in self.quarrel)

    def on_startrace(self, who: tuple[str, ...]) -> None:
        assert not self.racing
        self.racing = set(who)

    def on_stumble(self, who: str) -> None:
        assert who in self.racing

    def on_win(self, who: tuple[str, ...]) -> None:
        assert set(who) <= self.racing
        self.racing = set()


def characters_in(value: object) -> Iterator[Character]:
    if isinstance(value, Character):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from characters_in(one)


def replay(one: Story) -> Replay:
    world = Replay()
    for event in one.events:
        world.step(event)
    return world


def of_type(one: Story, *names: str) -> list[dict[str, object]]:
    """The events of some types, as plain text."""
    return [
        {field: flat(value) for field, value in vars(event).items()}
        for event in one.events
        if type(event).__name__ in names
    ]


def test_the_facts_of_many_stories_replay(sample: list[Story]) -> None:
    for one in sample:
        replay(one)


@given(seed=st.integers(0, 2**40), index=st.integers(0, 2**40), split=st.sampled_from(["train", "validation"]))
@settings(max_examples=50, deadline=None)
def test_the_facts_of_any_story_replay(seed: int, index: int, split: Split) -> None:
    replay(story(seed, index, split))


def test_the_replay_finds_a_missing_event(sample: list[Story]) -> None:
    """Without the event that a later one rests on, the replay must fail."""
    basis = {
        "lost_and_found": "Lose",
        "borrowed": "Lend",
        "gift": "Make",
        "missing_pet": "Enter",
        "broken_toy": "Break",
    }
    for plot, name in basis.items():
        one = next(one for one in sample if one.plot == plot)
        events = tuple(event for event in one.events if type(event).__name__ != name)
        assert len(events) < len(one.events)
        world = Replay()
        with pytest.raises((AssertionError, KeyError)):
            for event in events:
                world.step(event)


def test_every_type_of_event_occurs(sample: list[Story]) -> None:
    occurring = {type(event) for one in sample for event in one.events}
    assert occurring == set(StoryEvent.__subclasses__())


def test_a_lost_thing_is_lost_once_and_found_once(sample: list[Story]) -> None:
    seen = 0
    for one in sample:
        lost = Counter(str(event["item"]) for event in of_type(one, "Lose"))
        found = Counter(str(event["item"]) for event in of_type(one, "Find"))
        assert all(found[item] == count == 1 for item, count in lost.items())
        seen += len(lost)
    assert seen > 100


GAVE_TO = re.compile(r"(\w+) gave (?:the|a|an|some) ([\w ]+?)(?: back)? to (\w+)[.,]")
GAVE_WHAT = re.compile(r"(\w+) gave ([A-Z]\w+) (?:the|a|an|some) ([\w ]+?)(?: to keep)?\.")


def test_what_the_text_says_was_given_was_given(sample: list[Story]) -> None:
    seen = 0
    for one in sample:
        names = {who.name for who in one.cast}
        handed = {
            (event["giver"], event["receiver"], event["item"]) for event in of_type(one, "Give", "Return", "Lend")
        }
        handed |= {(event["who"], event["other"], event["item"]) for event in of_type(one, "Trade")}
        told = [(giver, receiver, thing) for giver, thing, receiver in GAVE_TO.findall(one.text)]
        told += [claim for claim in GAVE_WHAT.findall(one.text) if not claim[2].endswith(("hug", "tea"))]
        for giver, receiver, thing in told:
            if {giver, receiver} <= names:
                seen += 1
                assert any((giver, receiver) == act[:2] and thing.endswith(str(act[2])) for act in handed), told
    assert seen > 200


def test_what_the_text_says_was_found_was_found_there(sample: list[Story]) -> None:
    seen = 0
    for one in sample:
        finds = [f"{event['item']} {event['spot']}" for event in of_type(one, "Find")]
        for sentence in re.findall(r"found (?:the|a|an) ([^.!?]+)", one.text):
            if not sentence.startswith(("good spot", "lot of")):
                seen += 1
                assert any(sentence.endswith(find) for find in finds), (sentence, finds)
    assert seen > 50


def test_people_go_only_where_the_events_take_them(sample: list[Story]) -> None:
    everywhere = {event["place"] for one in sample for event in of_type(one, "Go")}
    seen = 0
    for one in sample:
        visited = {event["place"] for event in of_type(one, "Go")} | {one.signature[1]}
        for place in re.findall(r"(?:went|walked|ran)(?: out| back)? to the (\w+)", one.text):
            if place in everywhere:
                seen += 1
                assert place in visited
    assert seen > 1000


def test_only_those_who_speak_are_said_to_speak(sample: list[Story]) -> None:
    for one in sample:
        speakers = {event["speaker"] for event in of_type(one, "Say")}
        for name in re.findall(r'" (?:said|asked|shouted|called) ([A-Z]\w+)\.', one.text):
            assert name in speakers
