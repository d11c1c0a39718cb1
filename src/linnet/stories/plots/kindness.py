"""Plots about kindness: helping a stranger in trouble, a new friend, visiting a sick friend."""

from linnet.stories.casting import nameless
from linnet.stories.endings import close
from linnet.stories.entities import Character, Item
from linnet.stories.events import (
    Befriend,
    Eat,
    Enter,
    Feel,
    Get,
    Give,
    Go,
    Meet,
    NextDay,
    PlayWith,
    Rescue,
    Trouble,
)
from linnet.stories.openings import begin, introduce
from linnet.stories.stage import Setting, Stage, combine, plot
from linnet.stories.vocabulary.places import HOME, PUBLIC, house_of
from linnet.stories.vocabulary.things import BIG_FOODS, COMFORTS, TOYS, TREASURES, TREATS
from linnet.stories.vocabulary.troubles import PREDICAMENTS


def _rescues() -> list[Setting]:
    return [
        setting
        for name, predicament in PREDICAMENTS.items()
        for setting in combine(predicament.places, TREASURES, topics=(name,))
    ]


@plot(_rescues())
def helping_stranger(stage: Stage) -> None:
    """An animal in trouble is helped and gives thanks."""
    predicament = PREDICAMENTS[stage.setting.topic]
    other_kinds = (predicament.species,)
    hero = stage.hero(not_species=other_kinds)
    helpers = (hero, stage.friend(hero, not_species=other_kinds)) if stage.chance(0.4) else (hero,)
    animal = stage.join("animal", nameless(predicament.species, predicament.look, hero))
    begin(stage, helpers)
    stage.know(Enter((animal,), stage.place))
    stage.tell(
        Meet(helpers, animal),
        "There {who} heard a small cry. It was {other.np}.",
        "On the way, {who} saw {other.np}.",
        "Then {who} saw {other.np}.",
    )
    stage.tell(Trouble(animal, stage.setting.topic), *predicament.seen)
    stage.say(animal, hero, "call for help", "Help! Please help me!", "Can you help me?")
    stage.paragraph()
    if stage.chance(0.5):
        stage.tell(Feel((hero,), "worried"), "{who} felt sorry for {animal.np}.", "{who} wanted to help right away.")
    stage.say(hero, animal, "promise help", "Do not be afraid. I will help you.", "Wait! I will help you.")
    stage.tell(Rescue(helpers, animal), *predicament.helped)
    stage.paragraph()
    stage.say(animal, hero, "thank stranger", "Thank you! You are so kind.", "Thank you for your help!")
    _reward(stage, hero, animal)
    close(stage, (hero,), ("it is good to help others", "a kind act makes a friend"), ("helped others",))


def _reward(stage: Stage, hero: Character, animal: Character) -> None:
    treasure = stage.item()
    stage.know(Get(animal, treasure))
    stage.tell(
        Give(animal, hero, treasure),
        "To say thank you, {giver.np} gave {receiver.him} {item.a}.",
        "Then {giver.np} gave {receiver.him} {item.a} to keep.",
    )
    stage.tell(Feel((hero,), "happy"))


@plot(combine(PUBLIC, TOYS))
def new_friend(stage: Stage) -> None:
    """A shy newcomer is asked to play."""
    hero, toy = stage.hero(), stage.item()
    friend = stage.friend(hero, stranger=True)
    begin(stage, (hero,), toy)
    stage.know(Enter((friend,), stage.place))
    stage.tell(
        Meet((hero,), friend),
        "There {who} saw {other.intro}.",
        "{who} saw {other.intro} who sat all alone.",
    )
    if stage.chance(0.5):
        stage.tell(Feel((friend,), stage.pick(("shy", "lonely"))))
    else:
        stage.tell(
            Feel((friend,), "lonely"),
            "{who} was new and had no friends yet.",
            "{who} had no one to play with and looked at the ground.",
        )
    stage.paragraph()
    _ask_to_play(stage, hero, friend, toy)
    stage.paragraph()
    stage.tell(Feel((friend,), "happy"), "{who} was not shy anymore.", "Now {who} was not alone anymore.")
    stage.tell(Befriend((hero, friend)))
    close(stage, (hero, friend), ("it is easy to make a friend", "a new friend is a great thing"))


def _ask_to_play(stage: Stage, hero: Character, friend: Character, toy: Item) -> None:
    stage.say(hero, friend, "greet stranger")
    stage.say(friend, hero, "tell name")
    stage.say(
        hero,
        friend,
        "offer it",
        "Do you want to play with my {item.noun}?",
        "I have {item.a}. We can play together!",
        item=toy,
    )
    stage.do((friend,), "nod", "{who} smiled and said yes.", "{who} looked up and smiled.")
    stage.tell(
        PlayWith((hero, friend), toy),
        "{who} {item.used} {item} together.",
        "All day, {who} {item.used} {item} and laughed.",
    )


@plot(combine((HOME,), (*BIG_FOODS, *TREATS), (*COMFORTS, *TREASURES)))
def sick_friend(stage: Stage) -> None:
    """A sick friend is visited with food and a present."""
    hero, food, gift = stage.hero(), stage.item(0), stage.item(1)
    friend = stage.friend(hero)
    house = house_of(friend.name)
    stage.roles |= {"food": food, "gift": gift, "house": house}
    introduce(stage, hero)
    stage.know(Enter((friend,), house))
    stage.tell(
        Feel((friend,), "sick"),
        "One day, {who} was sick and had to stay in bed.",
        "{who} was sick and could not come out to play.",
    )
    stage.tell(Feel((hero,), "sad"), "{who} was sad and wanted to help.", "{who} thought about what to do.")
    stage.know(Get(hero, food))
    stage.tell(Get(hero, gift), "So {who} took {food.a} and {gift.a}.", "{who} put {food.a} and {gift.a} in a basket.")
    stage.tell(Go((hero,), house), "Then {who} walked {house.to}.", "Then {who} went {house.to}.")
    stage.paragraph()
    stage.say(hero, friend, "greet", "Hello, {hearer.name}! How do you feel?", "Hi, {hearer.name}! I came to see you.")
    stage.say(friend, hero, "complain", "My head hurts, and I am so bored.", "I feel hot and tired.")
    _nurse(stage, hero, friend, food, gift)


def _nurse(stage: Stage, hero: Character, friend: Character, food: Item, gift: Item) -> None:
    stage.tell(Give(hero, friend, gift))
    stage.tell(Eat((hero, friend), food))
    if stage.chance(0.5):
        stage.do((hero,), "tell", "{who} told {friend.name} a funny story, and {friend.name} laughed.")
    stage.paragraph()
    stage.tell(Feel((friend,), "calm"), "Soon {who} felt much better.")
    stage.say(friend, hero, "thank")
    if stage.chance(0.5):
        stage.tell(NextDay(), "A few days later, {friend.name} was well, and the two friends could play again.")
    close(stage, (hero, friend), ("a good friend is the best help", "it is good to think of others"))
