"""Plots about courage: going into a scary place, a noise in the night."""

from linnet.stories.endings import close
from linnet.stories.entities import Character, Item
from linnet.stories.events import Comfort, Drop, Enter, Feel, Find, Own, Sleep, TimePasses
from linnet.stories.openings import begin, introduce
from linnet.stories.stage import Setting, Stage, combine, plot
from linnet.stories.vocabulary.places import HOME
from linnet.stories.vocabulary.situations import NOISES
from linnet.stories.vocabulary.things import COMFORTS
from linnet.stories.vocabulary.troubles import BLOWN, FEARS, ROLLING, Fear


def _scares() -> list[Setting]:
    return [
        setting for name, fear in FEARS.items() for setting in combine(fear.places, (*ROLLING, *BLOWN), topics=(name,))
    ]


@plot(_scares())
def brave(stage: Stage) -> None:
    """A toy has gone into a scary place; the hero fetches it."""
    fear = FEARS[stage.setting.topic]
    hero, toy = stage.hero(), stage.item()
    helper = stage.friend(hero)
    stage.roles["toy"] = toy
    begin(stage, (hero, helper), toy)
    moved = "rolled" if toy.thing in ROLLING else "flew"
    start = "Suddenly" if toy.thing in ROLLING else "Then the wind blew, and"
    stage.tell(
        Drop(hero, toy, f"in {fear.where}"),
        f"Then {{item}} {moved} away, right into {fear.where}.",
        f"{start} {{item}} {moved} into {fear.where}!",
    )
    stage.tell(
        Feel((hero,), "scared"),
        "{who.np} felt cold with fear.",
        "It was so dark there that {who} {who.was} afraid to go in.",
        "{who} looked at the dark and was scared.",
    )
    stage.say(
        hero,
        helper,
        "admit fear",
        "I cannot go in there.",
        "I want my {toy.noun}, but I am afraid.",
        "What if there is a monster?",
    )
    stage.paragraph()
    _go_in(stage, hero, helper, toy, fear)
    stage.paragraph()
    _come_out(stage, hero, helper)


def _go_in(stage: Stage, hero: Character, helper: Character, toy: Item, fear: Fear) -> None:
    stage.say(
        helper,
        hero,
        "encourage",
        "You can do it, {hearer.name}. I will wait right here.",
        "I will hold your hand.",
        "Take a deep breath. I will be right behind you.",
    )
    stage.do(
        (hero,),
        "take heart",
        "{who} took a deep breath and went in, step by step.",
        "{who} closed {who.own} eyes and counted to three. Then {who.pro} went in.",
    )
    stage.do(
        (hero,),
        "look",
        f"Something moved! But it was {stage.pick(fear.inside)}.",
        f"What was that sound? It was {stage.pick(fear.inside)}!",
    )
    stage.tell(
        Find(hero, toy, f"in {fear.where}"),
        "{who} laughed, took {item} and ran out again.",
        "And there {item.was} {item}! {who} took it and came back with a smile.",
    )


def _come_out(stage: Stage, hero: Character, helper: Character) -> None:
    if stage.chance(0.5):
        stage.say(
            hero,
            helper,
            "rejoice",
            "I did it! It was not so bad.",
            "I was not scared at all!",
            "I am not afraid anymore!",
        )
    stage.say(helper, hero, "praise", "You are so brave!", "That was very brave, {hearer.name}!")
    stage.tell(Feel((hero,), stage.pick(("proud", "brave"))))
    close(stage, (hero, helper), ("you can be scared and brave at the same time", "the dark is not so bad"))


@plot(combine((HOME,), COMFORTS, topics=NOISES))
def noise_at_night(stage: Stage) -> None:
    """A sound in the night turns out to be harmless."""
    sound, source = NOISES[stage.setting.topic]
    hero, comfort = stage.hero(), stage.item()
    stage.roles["comfort"] = comfort
    introduce(stage, hero)
    stage.tell(Own(hero, comfort))
    stage.tell(
        TimePasses("night"),
        "One night, {hero} lay in bed and could not sleep.",
        "It was night, and the house was dark and still. {hero} was in bed.",
    )
    stage.do((hero,), "hear", f'Then there was a sound. "{sound}"', f'"{sound}" What was that?')
    stage.tell(
        Feel((hero,), "scared"),
        "{who} was scared and held {comfort} tight.",
        "{who} was afraid and hid under the bed covers.",
    )
    stage.paragraph()
    if stage.chance(0.6):
        _call_parent(stage, hero, source)
    else:
        _look_alone(stage, hero, comfort, source)
    stage.paragraph()
    stage.tell(Feel((hero,), "calm"), "{who} laughed and was not afraid anymore.", "Now {who} felt safe.")
    stage.tell(
        Sleep((hero,)),
        "Soon {who} was fast asleep.",
        "{who} closed {who.own} eyes and slept until morning.",
        "Then {who} fell asleep and had sweet dreams.",
    )


def _call_parent(stage: Stage, hero: Character, source: str) -> None:
    parent = stage.parent(hero)
    stage.know(Enter((parent,), HOME))
    stage.say(hero, parent, "call", "{hearer.name}! There is a monster!", "{hearer.name}! I heard something!")
    stage.do(
        (parent,), "come", "{who.np} came with a light and looked around.", "{who.np} came in and turned on the light."
    )
    stage.say(parent, hero, "explain", f"Look, it is only {source}.", f"There is no monster. It is just {source}.")
    if stage.chance(0.5):
        stage.tell(Comfort(parent, hero))


def _look_alone(stage: Stage, hero: Character, comfort: Item, source: str) -> None:
    stage.say(hero, None, "take heart", "I am big. I will go and look.", "I want to know what it is.")
    stage.do(
        (hero,),
        "get up",
        f"With the {comfort.noun} in one hand, {{who}} got up and looked.",
        "Step by step, {who} went to look.",
    )
    stage.do((hero,), "see", f"It was only {source}!", f"And what did {{who}} see? It was just {source}!")
