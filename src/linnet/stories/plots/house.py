"""Plots at home: a rainy day, and telling the truth about something broken."""

from linnet.stories.endings import close
from linnet.stories.entities import Character, Item
from linnet.stories.events import Break, Comfort, Drop, Enter, Feel, Go, Own, PlayWith, WeatherTurns
from linnet.stories.openings import introduce
from linnet.stories.stage import Stage, combine, plot
from linnet.stories.vocabulary.places import HOME, OUTDOORS
from linnet.stories.vocabulary.situations import INDOOR_GAMES
from linnet.stories.vocabulary.things import FRAGILE
from linnet.stories.vocabulary.troubles import BLOWN, ROLLING


@plot(combine(OUTDOORS, topics=INDOOR_GAMES))
def rainy_day(stage: Stage) -> None:
    """Rain spoils a plan, and a game inside saves the day."""
    hero = stage.hero()
    companion = stage.friend(hero) if stage.chance(0.5) else stage.parent(hero)
    both = (hero, companion)
    stage.roles["companion"] = companion
    introduce(stage, hero)
    stage.know(Enter((companion,), HOME))
    stage.do((hero,), "wish", "One day, {who} wanted to go {scene.to}.", "{who} wanted to play {scene.at} all day.")
    stage.tell(WeatherTurns("rainy"), "But then dark clouds came, and it began to rain.", "But it rained and rained.")
    stage.tell(Feel((hero,), stage.pick(("sad", "bored")), stage.pick(("", "rain"))))
    stage.paragraph()
    _play_inside(stage, both)
    stage.paragraph()
    if stage.chance(0.6):
        _after_the_rain(stage, both)
    else:
        stage.do(
            both,
            "forget the rain",
            "{who} had so much fun that they forgot the rain.",
            "It rained all day, but {who} did not mind.",
        )
    close(stage, both, ("a rainy day can be fun too", "you can have fun anywhere"))


def _play_inside(stage: Stage, both: tuple[Character, Character]) -> None:
    hero, companion = both
    game, how_it_goes = INDOOR_GAMES[stage.setting.topic]
    stage.say(hero, companion, "complain", "I want to go out!", "Why does it have to rain?", "There is nothing to do.")
    stage.say(companion, hero, "propose", f"We can {game}!", f"Let's {game}!", f"Do you want to {game}?")
    if stage.chance(0.5):
        stage.say(hero, companion, "agree", "That is a good idea!", "Yes, let's do that!")
    stage.do(both, "play inside", how_it_goes)
    stage.do(
        both, "enjoy", "{who} laughed a lot.", "It was warm and cozy in the house.", "Soon {hero.name} was happy again."
    )


def _after_the_rain(stage: Stage, both: tuple[Character, Character]) -> None:
    stage.tell(WeatherTurns("sunny"), "Then the rain stopped, and the sun came out.", "At last, the rain stopped.")
    if stage.chance(0.5):
        stage.do(both, "see a rainbow", "{who} looked out and saw a big rainbow in the sky.")
    stage.tell(
        Go(both, stage.place),
        "So {who} went {place.to} and jumped in the puddles.",
        "{who} put on boots and ran {place.to}.",
    )


@plot(combine((HOME,), FRAGILE, (*ROLLING, *BLOWN[:3])))
def truth(stage: Stage) -> None:
    """Something is broken by accident; the hero tells the truth."""
    hero, fragile, toy = stage.hero(), stage.item(0), stage.item(1)
    parent = stage.parent(hero)
    stage.roles |= {"toy": toy, "fragile": fragile}
    introduce(stage, hero)
    stage.know(Enter((parent,), HOME))
    stage.know(Own(parent, fragile))
    stage.know(Drop(parent, fragile, "on the table"))
    stage.know(Own(hero, toy))
    stage.tell(PlayWith((hero,), toy), "One day, {who} {item.used} {item.a} in the house.")
    stage.tell(
        Break(hero, fragile),
        "{toy} hit {item.a} on the table. Crash! {item} fell down and broke.",
        "Crash! {toy} hit {item.a}, and {item} broke.",
    )
    stage.tell(
        Feel((hero,), "scared"),
        "It was {parent.his} {fragile.noun}! {who} was scared.",
        "{who} was afraid. {parent.np} loved that {fragile.noun}!",
    )
    stage.paragraph()
    _hide_or_tell(stage, hero, parent)
    _confess(stage, hero, parent, fragile)


def _hide_or_tell(stage: Stage, hero: Character, parent: Character) -> None:
    if stage.chance(0.5):
        stage.do(
            (hero,),
            "think of hiding",
            "{who} wanted to hide {fragile}. But that did not feel right.",
            '{who} thought, "I can say that the cat did it." But that was not true.',
        )
    stage.do((parent,), "come", "Then {parent.np} came in.", "{parent.np} heard the noise and came in.")
    stage.say(parent, hero, "ask", "What was that?", "What happened here?")


def _confess(stage: Stage, hero: Character, parent: Character, fragile: Item) -> None:
    stage.say(
        hero, parent, "confess", "I broke your {fragile.noun}. I am so sorry.", "It was me. I broke the {fragile.noun}."
    )
    stage.do(
        (parent,),
        "listen",
        "{parent.np} looked at the broken {fragile.noun} and then at {hero.name}.",
        "{parent.np} was quiet for a moment.",
    )
    stage.say(
        parent,
        hero,
        "forgive",
        "Thank you for telling the truth.",
        "I am a little sad, but I am glad you told me the truth.",
        "It was brave to tell me.",
    )
    stage.tell(Comfort(parent, hero))
    stage.paragraph()
    stage.do(
        (hero, parent),
        "clean up",
        "Then {who} cleaned up the floor together.",
        "{who} picked up the pieces and put them in a box.",
    )
    stage.do((hero,), "promise", "{who} promised to play with {toy} outside.", "{who} felt much better.")
    close(stage, (hero,), ("it is best to tell the truth", "the truth makes the heart feel light"), ("told the truth",))
