"""Plots about food: sharing it, eating too much of it, a picnic."""

from linnet.stories.endings import close
from linnet.stories.entities import Character, Item
from linnet.stories.events import Eat, Enter, Feel, Get, Give, Go, Halve, Meet, NextDay, WeatherTurns
from linnet.stories.openings import begin, introduce
from linnet.stories.stage import Stage, combine, plot
from linnet.stories.vocabulary.places import HOME, OUTDOORS, PUBLIC
from linnet.stories.vocabulary.things import BIG_FOODS, SNACKS, TREATS


@plot(combine(OUTDOORS, SNACKS))
def sharing(stage: Stage) -> None:
    """Somebody hungry comes by, and the food is shared."""
    hero, snack = stage.hero(), stage.item()
    friend = stage.friend(hero, stranger=stage.chance(0.3))
    begin(stage, (hero,), snack)
    stage.do((hero,), "sit down", "{who} sat down to eat {toy.it}.", "{who} wanted to eat {toy.it} in the sun.")
    stage.know(Enter((friend,), stage.place))
    stage.tell(Meet((hero,), friend))
    stage.tell(Feel((friend,), "hungry"))
    stage.say(
        friend,
        hero,
        "tell hunger",
        "I forgot to bring food.",
        "That {item.noun} looks so good. I have nothing to eat.",
        "Can I have a bite?",
        item=snack,
    )
    stage.paragraph()
    if stage.chance(0.5):
        _share_after_doubt(stage, hero, friend)
    stage.say(hero, friend, "offer it", "You can have half of my {item.noun}.", "Here, let's share!", item=snack)
    stage.tell(Halve(hero, friend, snack))
    stage.say(friend, hero, "thank", "Thank you! This is so good.", "Yum! Thank you!")
    _repay(stage, hero, friend)


def _share_after_doubt(stage: Stage, hero: Character, friend: Character) -> None:
    stage.do(
        (hero,),
        "doubt",
        "At first, {who} wanted to eat it all alone. But {friend.name} looked so sad.",
        "{who} did not want to share at first. Then {who} saw how sad {friend.name} was.",
    )


def _repay(stage: Stage, hero: Character, friend: Character) -> None:
    stage.paragraph()
    if stage.chance(0.4):
        stage.tell(NextDay(), "The next day, {friend.name} came back with a surprise.")
        treat = Item(stage.pick(TREATS), "sweet")
        stage.know(Get(friend, treat))
        stage.tell(Give(friend, hero, treat), "{giver} gave {receiver.him} some sweet {item.noun}.")
    else:
        stage.tell(Feel((hero, friend), "happy"))
    close(
        stage, (hero, friend), ("it is good to share", "food tastes better with a friend"), ("shared {who.own} food",)
    )


@plot(combine((*OUTDOORS, HOME), TREATS))
def too_much(stage: Stage) -> None:
    """A bowl of treats is emptied against good advice."""
    hero, treat = stage.hero(), stage.item()
    parent = stage.parent(hero)
    begin(stage, (hero, parent))
    stage.know(Get(parent, treat))
    stage.tell(Give(parent, hero, treat), "{giver} gave {receiver.him} a big bowl of {item.full}.")
    stage.say(parent, hero, "warn", "Do not eat them all at once.", "Please do not eat too many.")
    stage.say(hero, parent, "agree", "I will not.", "All right.")
    stage.paragraph()
    stage.roles["treat"] = treat
    stage.do((hero,), "eat", "But {treat} were so good! {who} ate one, and then one more, and then one more.")
    stage.tell(Eat((hero,), treat), "Soon the bowl was empty.", "{who} ate and ate until the bowl was empty.")
    stage.tell(Feel((hero,), "sick"), "Then {who.his} tummy began to hurt.", "Then {who} felt sick.")
    stage.say(hero, parent, "complain", "My tummy hurts. I ate too much.", "I ate them all. I do not feel good.")
    _recover(stage, hero, parent)


def _recover(stage: Stage, hero: Character, parent: Character) -> None:
    stage.do(
        (parent,),
        "care",
        "{who} was not mad and gave {hero.him} some warm tea.",
        "{who} told {hero.him} to lie down and rest.",
        "{who} rubbed {hero.his} tummy.",
    )
    stage.say(parent, hero, "advise", "Next time, eat only a few.", "Next time, save some for later.")
    stage.paragraph()
    stage.tell(Feel((hero,), "calm"), "Soon {who} felt much better.", "After a nap, {who} felt much better.")
    close(stage, (hero,), ("too much is not good", "it is good to listen to {parent.name}"), ("saved some for later",))


MISHAPS: dict[str, tuple[str, ...]] = {
    "ants": ("Then {who} saw a line of ants. The ants wanted to eat too!",),
    "duck": ('Then a fat duck came and said, "Quack!" It wanted to eat too!',),
    "wind": ("Then the wind blew, and the blanket flew up into the air!",),
    "dog": ("Then a big dog ran up and sat down on the blanket!",),
    "cups": ("But {who} had no cups for the juice!",),
}
"""What can happen at a picnic, besides rain."""
RAIN = "rain"

REMEDIES: dict[str, tuple[str, ...]] = {
    "ants": ("{who} put some crumbs far away, and the ants went there.", "{who} moved the blanket to a better spot."),
    "duck": ("{who} gave it some bread, and it was happy.", "{who} laughed and gave the duck some crumbs."),
    "wind": ("{who} ran after the blanket and put stones on it.",),
    RAIN: ("{who} ran under a big tree and ate there.", "{who} held the blanket over their heads and laughed."),
    "dog": ("{who} laughed and petted the dog. It wagged its tail.", "{who} threw a stick, and the dog ran after it."),
    "cups": ("So {who} drank from the bottle and laughed.", "So {who} made cups from big leaves."),
}
"""How the friends deal with it."""


@plot(combine(PUBLIC, (*BIG_FOODS[:3], *SNACKS[3:6]), TREATS, topics=REMEDIES))
def picnic(stage: Stage) -> None:
    """Two pack food, go out, and deal with a mishap."""
    hero, food, treat = stage.hero(), stage.item(0), stage.item(1)
    friend = stage.friend(hero) if stage.chance(0.7) else stage.parent(hero)
    party = (hero, friend)
    introduce(stage, hero)
    stage.know(Enter((friend,), HOME))
    stage.know(Get(hero, food))
    stage.know(Get(friend, treat))
    stage.roles |= {"food": food, "treat": treat, "companion": friend}
    stage.say(hero, friend, "propose", "Let's have a picnic {scene.at}!", "It is so warm today. Can we have a picnic?")
    if stage.chance(0.4):
        stage.tell(Feel((hero,), "excited"))
    stage.do(party, "pack", "{hero.name} packed {food.a}, and {companion.np} packed {treat.a}.")
    stage.tell(Go(party, stage.place), "Then {who} went {place.to}.", "{who} walked {place.to} with a big basket.")
    stage.paragraph()
    spot = stage.pick(stage.place.spots)
    stage.do(
        party,
        "spread",
        "{who} put a blanket on the ground and sat down.",
        f"{{who}} found a good spot {spot} and sat down on a blanket.",
    )
    _mishap(stage, party)
    stage.paragraph()
    stage.know(Eat(party, food))
    stage.tell(Eat(party, treat), "{who} ate {food} and {treat}.", "{who} ate until nothing was left.")
    stage.tell(Feel(party, "happy"))
    close(stage, party, ("a picnic is always fun", "a little bad luck can be funny"))


def _mishap(stage: Stage, party: tuple[Character, Character]) -> None:
    mishap = stage.setting.topic
    if mishap == RAIN:
        stage.tell(WeatherTurns("rainy"), "Then it began to rain!", "But then dark clouds came, and it began to rain.")
    else:
        stage.do(party, mishap, *MISHAPS[mishap])
    if stage.chance(0.5):
        stage.say(party[0], party[1], "exclaim", "Oh no! What can we do?", "Oh no!", "Oh dear! Look!")
    stage.do(party, f"deal with {mishap}", *REMEDIES[mishap])
