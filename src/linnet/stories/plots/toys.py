"""Plots about toys between friends: broken and mended, borrowed and returned, quarrelled over, traded."""

from linnet.stories.endings import close
from linnet.stories.entities import Character, Item
from linnet.stories.events import (
    Break,
    Comfort,
    Enter,
    Feel,
    Go,
    Lend,
    MakeUp,
    Meet,
    Mend,
    NextDay,
    Own,
    PlayWith,
    Quarrel,
    Return,
    Snatch,
    Trade,
    Want,
)
from linnet.stories.openings import begin
from linnet.stories.stage import Stage, combine, plot
from linnet.stories.vocabulary.places import HOME, OUTDOORS, PUBLIC
from linnet.stories.vocabulary.things import BREAKABLE_TOYS, TOYS

_MEETINGS = ("There {who} met {other.him}.", "There {who} saw {other.him}.", "Soon {other} came too.")


@plot(combine(OUTDOORS, BREAKABLE_TOYS))
def broken_toy(stage: Stage) -> None:
    """A toy breaks and is mended with the help of a parent or a friend."""
    hero, toy = stage.hero(), stage.item()
    stage.roles["toy"] = toy
    begin(stage, (hero,), toy)
    stage.tell(PlayWith((hero,), toy))
    stage.tell(Break(hero, toy))
    stage.tell(Feel((hero,), "sad", stage.pick(("", "broken")), toy))
    stage.paragraph()
    if stage.chance(0.5):
        helper = stage.parent(hero)
        stage.know(Enter((helper,), HOME))
        stage.tell(
            Go((hero,), HOME),
            "{who} took {toy} home to {parent.him}.",
            "{who} ran home to {parent.him}.",
        )
    else:
        helper = stage.friend(hero)
        stage.know(Enter((helper,), stage.place))
        stage.tell(Meet((hero,), helper))
    _mend_together(stage, hero, helper, toy)


def _mend_together(stage: Stage, hero: Character, helper: Character, toy: Item) -> None:
    if stage.chance(0.6):
        stage.say(helper, hero, "ask what is wrong")
    stage.say(hero, helper, "broke it", item=toy)
    if stage.chance(0.4):
        stage.tell(Comfort(helper, hero))
    stage.say(helper, hero, "offer help", "Do not cry. We can fix it.", "I think we can fix it.", "I can help you.")
    stage.tell(Mend((hero, helper), toy))
    if stage.chance(0.6):
        stage.say(helper, hero, "whole again", item=toy)
    stage.paragraph()
    stage.say(hero, helper, "thank")
    if stage.chance(0.5):
        stage.tell(PlayWith((hero, helper), toy), "Soon {who} {item.used} {item} again.")
    stage.tell(Feel((hero,), "happy"))
    close(stage, (hero,), ("broken things can be fixed", "it is good to ask for help"))


@plot(combine(PUBLIC, TOYS))
def borrowed(stage: Stage) -> None:
    """A toy is lent on a promise, and the promise is kept."""
    hero, toy = stage.hero(), stage.item()
    stage.roles["toy"] = toy
    friend = stage.friend(hero)
    begin(stage, (hero,))
    stage.know(Enter((friend,), stage.place))
    stage.tell(Meet((hero,), friend), *_MEETINGS)
    stage.tell(Own(friend, toy), "{who} had {item.a}.", "{who} had brought {item.a}.")
    stage.paragraph()
    stage.say(
        hero, friend, "ask for it", "Can I borrow your {item.noun}?", "May I take your {item.noun} home?", item=toy
    )
    stage.say(friend, hero, "allow", "Yes, but please bring it back tomorrow.", "Yes. But please be careful with it.")
    stage.tell(Lend(friend, hero, toy))
    stage.say(hero, friend, "promise", "I will bring it back. I promise.", "I will be very careful.")
    _have_at_home(stage, hero, friend, toy)


def _have_at_home(stage: Stage, hero: Character, friend: Character, toy: Item) -> None:
    stage.tell(Go((hero,), HOME), "Then {who} went home.", "{who} ran home with {toy}.")
    stage.tell(
        PlayWith((hero,), toy), "{who} {item.used} {item} all evening.", "{who} {item.used} {item.it} until bedtime."
    )
    stage.paragraph()
    stage.know(NextDay())
    if stage.chance(0.5):
        stage.do((hero,), "wish", "The next day, {who} did not want to give {toy} back. But a promise is a promise.")
    else:
        stage.do((hero,), "remember", "The next day, {who} almost forgot {toy}. Then {who} remembered the promise.")
    stage.tell(Go((hero,), stage.place), "So {who} went back {place.to}.")
    stage.tell(Return(hero, friend, toy))
    stage.say(friend, hero, "thank", "Thank you for bringing it back.", "You kept your promise!")
    close(
        stage,
        (hero, friend),
        ("it is important to keep a promise", "friends can trust each other"),
        ("kept {who.own} promises",),
    )


@plot(combine(OUTDOORS, TOYS))
def quarrel(stage: Stage) -> None:
    """Two want the same toy, quarrel, and make up."""
    hero, toy = stage.hero(), stage.item()
    stage.roles["toy"] = toy
    friend = stage.friend(hero)
    begin(stage, (hero, friend), toy)
    stage.tell(PlayWith((hero,), toy))
    stage.tell(Want(friend, toy))
    stage.say(friend, hero, "ask for it", "Give me the {item.noun}!", "It is my turn now!", item=toy)
    stage.say(hero, friend, "mine", "No! It is my {item.noun}!", "No, it is mine!", item=toy)
    if stage.chance(0.6):
        stage.tell(Snatch(friend, hero, toy))
    stage.tell(Quarrel(hero, friend))
    stage.paragraph()
    stage.do(
        (hero,),
        "turn away",
        "{who} sat down alone. It was no fun without {friend.name}.",
        "{who} turned away and did not talk to {friend.name}.",
    )
    _make_up(stage, hero, friend, toy)


def _make_up(stage: Stage, hero: Character, friend: Character, toy: Item) -> None:
    stage.tell(Feel((friend,), "sorry"), "{who.np} felt bad.", "{who.np} felt very sorry.")
    stage.say(
        friend,
        hero,
        "apologize",
        "I am sorry, {hearer.name}. I did not want to make you sad.",
        "I am sorry, {hearer.name}. I was not nice.",
    )
    if stage.world.holder_of[toy] == friend:
        stage.tell(Return(friend, hero, toy), "{giver} gave {item} back.", "Then {giver} held out {item}.")
    stage.say(hero, friend, "forgive", "I am sorry too. We can take turns.", "It is okay. Let's play together.")
    stage.tell(MakeUp(hero, friend))
    stage.paragraph()
    stage.tell(
        PlayWith((hero, friend), toy),
        "First {hero.name} {item.used} {item}, and then it was {friend.name}'s turn.",
        "{who} {item.used} {item} together.",
    )
    close(
        stage, (hero, friend), ("it is better to take turns", "friends are more important than things"), ("took turns",)
    )


@plot(combine(PUBLIC, TOYS, TOYS))
def trade(stage: Stage) -> None:
    """One wants what the other has: they trade (and perhaps trade back), or play with both things."""
    hero, mine, other = stage.hero(), stage.item(0), stage.item(1)
    friend = stage.friend(hero)
    stage.roles |= {"mine": mine, "theirs": other}
    begin(stage, (hero,), mine)
    stage.know(Enter((friend,), stage.place))
    stage.tell(Meet((hero,), friend), *_MEETINGS)
    stage.tell(Own(friend, other), "{who} had {item.a}.", "{who} had brought {item.a}.")
    stage.tell(Want(hero, other))
    if stage.chance(0.3):
        stage.tell(Feel((hero,), "jealous"))
    stage.paragraph()
    stage.say(
        hero,
        friend,
        "ask for it",
        "I like your {item.noun}. Can we trade?",
        "Will you trade your {item.noun} for my {mine.noun}?",
        item=other,
    )
    if stage.chance(0.7):
        _swap(stage, hero, friend, mine, other)
    else:
        _play_with_both(stage, hero, friend, mine, other)


def _swap(stage: Stage, hero: Character, friend: Character, mine: Item, other: Item) -> None:
    stage.say(friend, hero, "agree to trade", "Yes! I like your {mine.noun} too.", "All right, let's trade.")
    stage.tell(Trade(hero, friend, mine, other))
    stage.tell(PlayWith((hero,), other))
    stage.paragraph()
    if stage.chance(0.5):
        _swap_back(stage, hero, friend, mine, other)
        return
    stage.tell(Feel((hero, friend), "happy"))
    close(stage, (hero, friend), ("it is fun to trade", "friends can make each other happy"))


def _swap_back(stage: Stage, hero: Character, friend: Character, mine: Item, other: Item) -> None:
    stage.do(
        (hero,),
        "miss",
        "But soon {who} began to miss {who.own} {mine.noun}.",
        "But then {who} thought of {who.own} {mine.noun} and was sad.",
    )
    stage.say(
        hero,
        friend,
        "ask for it",
        "I miss my {item.noun}. Can we trade back?",
        "Can I have my {item.noun} again?",
        item=mine,
    )
    stage.say(friend, hero, "agree", "Of course! I miss my {theirs.noun} too.", "Yes. I like my {theirs.noun} best.")
    stage.tell(
        Trade(friend, hero, mine, other),
        "So they traded back. Now {hero.name} had {mine}, and {friend.name} had {theirs}.",
    )
    close(stage, (hero, friend), ("your own things can be the best", "it is good to have a friend"))


def _play_with_both(stage: Stage, hero: Character, friend: Character, mine: Item, other: Item) -> None:
    stage.say(
        friend,
        hero,
        "refuse",
        "No, I love my {theirs.noun}. But we can play together.",
        "I want to keep my {theirs.noun}. But you can play with me!",
    )
    stage.do((hero,), "think", "{who} thought for a moment and smiled.", "{who} liked that even more.")
    stage.tell(PlayWith((hero, friend), other), "First, {who} {item.used} {item}.")
    stage.tell(PlayWith((hero, friend), mine), "Then {who} {item.used} {item}.")
    stage.tell(Feel((hero, friend), "happy"))
    close(stage, (hero, friend), ("it is fun to play together", "it is good to share"))
