"""Plots about losing and finding: a lost toy, somebody else's toy, a missing pet."""

from linnet.stories.casting import cast_pet
from linnet.stories.endings import close
from linnet.stories.entities import Character, Item
from linnet.stories.events import (
    Befriend,
    Enter,
    Feel,
    Find,
    Go,
    Lose,
    Meet,
    Own,
    PlayWith,
    Return,
    Say,
    Search,
)
from linnet.stories.openings import begin, introduce
from linnet.stories.stage import Stage, combine, plot
from linnet.stories.vocabulary.people import PETS
from linnet.stories.vocabulary.places import HOME, OUTDOORS, PUBLIC
from linnet.stories.vocabulary.things import TOYS


@plot(combine(OUTDOORS, TOYS))
def lost_and_found(stage: Stage) -> None:
    """A toy is lost in play, searched for where it is not, and found where it is."""
    hero, toy = stage.hero(), stage.item()
    begin(stage, (hero,), toy)
    if stage.chance(0.6):
        stage.tell(PlayWith((hero,), toy))
    spot, *wrong = stage.spots(3)
    stage.tell(Lose(hero, toy, spot))
    stage.tell(Feel((hero,), stage.pick(("sad", "worried")), stage.pick(("", "lost")), toy))
    stage.paragraph()
    if stage.chance(0.3):
        _search_alone(stage, hero, toy, spot, wrong)
    else:
        _search_with_helper(stage, hero, toy, spot, wrong)


def _search_alone(stage: Stage, hero: Character, toy: Item, spot: str, wrong: list[str]) -> None:
    stage.do((hero,), "think", "But {who} did not give up.", "{who} stopped and thought hard.")
    for place in wrong:
        stage.tell(Search((hero,), toy, place))
    stage.tell(Find(hero, toy, spot))
    stage.tell(Feel((hero,), "happy", stage.pick(("", "back")), toy))
    stage.paragraph()
    stage.tell(
        Go((hero,), HOME),
        "{who} held {toy} tight and went home.",
        "{who} took {toy} home and put {toy.it} in a safe place.",
    )
    close(stage, (hero,), ("it is good to keep looking",), ("looked after {who.own} things",))


def _search_with_helper(stage: Stage, hero: Character, toy: Item, spot: str, wrong: list[str]) -> None:
    helper = stage.friend(hero) if stage.chance(0.7) else stage.parent(hero)
    stage.know(Enter((helper,), stage.place))
    stage.tell(Meet((hero,), helper))
    if stage.chance(0.5):
        stage.say(helper, hero, "ask what is wrong")
    stage.say(hero, helper, "lost it", item=toy)
    stage.say(helper, hero, "promise help")
    for place in wrong[: stage.pick((1, 2))]:
        stage.tell(Search((hero, helper), toy, place))
    if stage.chance(0.6):
        stage.tell(Find(helper, toy, spot))
        stage.say(helper, hero, "found it", item=toy)
        stage.tell(Return(helper, hero, toy))
    else:
        stage.tell(Find(hero, toy, spot))
    stage.paragraph()
    stage.say(hero, helper, "thank")
    if stage.chance(0.5):
        stage.tell(Feel((hero,), "happy", "back", toy))
    close(stage, (hero, helper), ("it is good to have help", "two can find more than one"))


@plot(combine(PUBLIC, TOYS))
def honest_finder(stage: Stage) -> None:
    """Somebody else's toy is found, and given back although one would like to keep it."""
    hero, toy = stage.hero(), stage.item()
    owner = stage.friend(hero, stranger=True)
    stage.roles["toy"] = toy
    spot = stage.pick(stage.place.spots)
    begin(stage, (hero,))
    stage.know(Enter((owner,), stage.place))
    stage.know(Own(owner, toy))
    stage.know(Lose(owner, toy, spot))
    stage.tell(Find(hero, toy, spot), "There {who} found {item.a} {spot}.", "{who} saw {item.a} {spot}.")
    stage.do(
        (hero,),
        "wonder",
        "{who} looked around, but nobody was near.",
        "It was so nice that {who} wanted to keep it.",
    )
    if stage.chance(0.5):
        stage.tell(PlayWith((hero,), toy), "{who} {item.used} {item.it} for a while.")
    stage.paragraph()
    _meet_owner(stage, hero, owner, toy)


def _meet_owner(stage: Stage, hero: Character, owner: Character, toy: Item) -> None:
    stage.tell(
        Meet((hero,), owner),
        "Then {who} heard someone cry. It was {other.np}.",
        "Then {other} came by. {other} looked very sad.",
    )
    stage.say(owner, hero, "miss it", "I lost my {item.noun}.", "Have you seen my {item.noun}?", item=toy)
    if stage.chance(0.5):
        stage.do((hero,), "decide", "{who} wanted to keep {toy}, but it was not right.")
    stage.say(hero, owner, "found it", "Is this your {item.noun}?", "I found your {item.noun}. Here it is.", item=toy)
    stage.tell(Return(hero, owner, toy))
    stage.paragraph()
    stage.tell(Feel((owner,), "happy"))
    stage.say(owner, hero, "thank stranger", "Thank you! You are very kind.", "Oh, thank you! You made me so happy.")
    if stage.chance(0.6):
        stage.tell(
            Say(owner, hero, "ask to play"),
            'Then {speaker} asked, "Do you want to play with me?"',
            'Then {speaker} asked, "Can we play together?"',
        )
        stage.tell(PlayWith((hero, owner), toy), "{who} {item.used} {item} together.")
        stage.tell(Befriend((hero, owner)))
    else:
        close(stage, (hero,), ("it is good to be honest", "it feels good to give a lost thing back"))


@plot(combine(OUTDOORS, topics=PETS))
def missing_pet(stage: Stage) -> None:
    """A pet has run away; parent and child look for it and bring it home."""
    hero = stage.hero(child=True)
    pet = stage.join("pet", cast_pet(stage.rng, hero, stage.setting.topic, stage.names))
    introduce(stage, hero)
    stage.tell(Enter((pet,), HOME), "{hero} had {pet.intro}.", "{hero} loved {hero.own} {pet.species}, {pet.name}.")
    stage.know(Go((pet,), stage.place))
    stage.do(
        (hero,),
        "miss",
        "One morning, the door was open, and {pet.name} was gone!",
        "One day, {who} called {pet.name}, but {pet.name} did not come.",
    )
    stage.tell(Feel((hero,), stage.pick(("sad", "worried"))))
    stage.paragraph()
    parent = stage.parent(hero)
    stage.know(Enter((parent,), HOME))
    stage.say(hero, parent, "report", "{pet.name} is gone! What can we do?", "I cannot find {pet.name}!")
    stage.say(parent, hero, "promise help", "Do not worry. We will look together.", "Let's go and look, {hearer.name}.")
    stage.do(
        (hero, parent),
        "search",
        "{who} looked in every room, but {pet.name} was not in the house.",
        "{who} looked behind the house and next to the gate. No {pet.species}!",
    )
    stage.tell(Go((hero, parent), stage.place), "Then {who} went {place.to}.", "So {who} ran {place.to}.")
    _find_pet(stage, hero, parent, pet)


def _find_pet(stage: Stage, hero: Character, parent: Character, pet: Character) -> None:
    if stage.chance(0.5):
        stage.tell(
            Say(hero, None, "call"),
            '"{pet.name}! Where are you?" {speaker} called.',
            '"{pet.name}! {pet.name}!" called {speaker.np}.',
        )
    spot = stage.pick(stage.place.spots)
    stage.tell(
        Meet((hero,), pet),
        f"There was {{pet.name}}, fast asleep {spot}!",
        f"At last, {{who}} found {{pet.name}} {spot}.",
        f"Something moved {spot}. It was {{pet.name}}!",
    )
    stage.paragraph()
    stage.do(
        (hero,),
        "hold",
        "{who} held {pet.name} tight and laughed.",
        "{who} gave {pet.name} a big hug.",
    )
    stage.say(hero, pet, "greet pet", "I missed you so much!", "Do not run away again!", "I am so glad to see you!")
    stage.tell(Go((hero, parent, pet), HOME), "Then they all went home.", "They took {pet.name} home.")
    close(stage, (hero,), ("a pet needs good care",), ("closed the door", "kept the door shut"))
