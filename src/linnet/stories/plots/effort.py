"""Plots about trying hard: learning to do something, a race, building together."""

from linnet.stories.endings import close
from linnet.stories.entities import Character, Characters, Item
from linnet.stories.events import (
    Build,
    Collapse,
    Eat,
    Enter,
    Fail,
    Feel,
    Get,
    Give,
    Halve,
    Master,
    Meet,
    StartRace,
    Stumble,
    Teach,
    Win,
)
from linnet.stories.openings import begin
from linnet.stories.stage import Setting, Stage, combine, plot
from linnet.stories.vocabulary.places import PUBLIC
from linnet.stories.vocabulary.situations import GOALS, SKILLS, STRUCTURES, Skill, Structure
from linnet.stories.vocabulary.things import SNACKS


def _lessons() -> list[Setting]:
    return [
        Setting(place, topic=f"{name}, {obstacle}")
        for name, skill in SKILLS.items()
        for place in skill.places
        for obstacle in ("laughter", "fall", "sleep")
    ]


@plot(_lessons())
def learning(stage: Stage) -> None:
    """A skill is tried in vain, shown by a teacher, and learned."""
    name, obstacle = stage.setting.topic.split(", ")
    skill = SKILLS[name]
    hero = stage.hero(not_species=skill.not_species)
    teacher = stage.friend(hero) if stage.chance(0.5) else stage.parent(hero)
    stage.roles["verb"] = skill.verb
    begin(stage, (hero,))
    stage.do(
        (hero,), "wish", "{who} wanted to learn to {verb.base}.", "More than anything, {who} wanted to {verb.base}."
    )
    stage.tell(Fail(hero, name), *(f"But it was hard. {fail}" for fail in skill.fails))
    _setback(stage, hero, obstacle)
    stage.paragraph()
    stage.know(Enter((teacher,), stage.place))
    stage.know(Master(teacher, name))
    stage.tell(Meet((hero,), teacher), "Just then, {other} came by.", "Then {other.np} saw it and came over.")
    stage.tell(
        Teach(teacher, hero, name),
        "{teacher} showed {who.him} how to {verb.base}.",
        "{teacher} knew how to {verb.base} and wanted to help.",
    )
    stage.say(teacher, hero, "advise", *skill.tips)
    _succeed(stage, hero, teacher, name, skill)


def _setback(stage: Stage, hero: Character, obstacle: str) -> None:
    if obstacle == "laughter":
        stage.do(
            (hero,), "be laughed at", "Some others saw it and laughed.", "A bird in the tree laughed at {who.him}."
        )
        stage.tell(Feel((hero,), "sad"))
    elif obstacle == "fall":
        stage.do(
            (hero,),
            "try again",
            "{who} tried again, but it did not work.",
            "{who} tried three times, and three times it went wrong.",
        )
        stage.tell(Feel((hero,), "sad"), "{who} wanted to give up.")
    else:
        stage.do((hero,), "try all day", "{who} tried all day long.", "{who} tried and tried.")
        stage.tell(Feel((hero,), "tired"))


def _succeed(stage: Stage, hero: Character, teacher: Character, name: str, skill: Skill) -> None:
    stage.tell(Fail(hero, name), "{who} tried again and almost did it.", "The next try was better.")
    if stage.chance(0.5):
        stage.say(teacher, hero, "encourage")
    stage.tell(
        Master(hero, name),
        *(f"{start} {text}" for text in skill.success for start in ("And then it worked!", "One more try!")),
    )
    stage.paragraph()
    stage.say(hero, teacher, "rejoice")
    stage.say(teacher, hero, "praise")
    stage.tell(Feel((hero,), "proud"))
    close(
        stage,
        (hero,),
        ("you must try again and again", "it takes time to learn new things"),
        ("tried again when things were hard",),
    )


@plot(combine(PUBLIC, SNACKS, topics=GOALS))
def race(stage: Stage) -> None:
    """Two race for a prize."""
    hero, prize = stage.hero(), stage.item()
    rival = stage.friend(hero)
    judge = stage.parent(hero)
    stage.roles |= {"goal": stage.setting.topic, "prize": prize}
    begin(stage, (hero, rival))
    stage.know(Enter((judge,), stage.place))
    stage.tell(Meet((hero,), judge), "{other.np} came to watch.", "{other.np} was there too.")
    stage.know(Get(judge, prize))
    stage.say(
        judge,
        hero,
        "announce",
        "Who can run to {goal} first? The winner gets {prize.a}!",
        "Let's have a race to {goal}! The prize is {prize.a}.",
    )
    if stage.chance(0.5):
        stage.tell(Feel((hero, rival), "excited"))
    else:
        stage.say(rival, hero, "boast", "I am the fastest of all!", "I will win!", "You cannot catch me!")
    stage.tell(StartRace((hero, rival)))
    stage.paragraph()
    course = stage.pick((_help_up, _slow_and_steady, _good_loser))
    winners = course(stage, hero, rival)
    _award(stage, hero, rival, judge, winners, prize)


def _help_up(stage: Stage, hero: Character, rival: Character) -> Characters:
    stage.tell(
        Stumble(rival), "Then {who} fell over a stone and hurt {who.own} knee.", "But {who} fell down and began to cry."
    )
    stage.do(
        (hero,),
        "stop",
        "{who} could run on and win. But {who.pro} stopped and went back.",
        "{who} stopped at once and ran back.",
    )
    stage.say(hero, rival, "offer help", "Are you all right? Take my hand.", "Let me help you up.")
    stage.tell(
        Win((hero, rival)), "Hand in hand, {who} ran to {goal}. They both won!", "Then {who} ran to {goal} together."
    )
    return (hero, rival)


def _slow_and_steady(stage: Stage, hero: Character, rival: Character) -> Characters:
    stage.do(
        (rival,),
        "lead",
        "At first, {who.np} was far ahead. Then {who} got tired and sat down.",
        "{who.np} was so fast! But soon {who} had to stop and rest.",
    )
    stage.do(
        (hero,),
        "keep on",
        "{hero.np} did not stop. Step by step, {hero.pro} came closer.",
        "{hero.np} just kept going.",
    )
    stage.tell(
        Win((hero,)), "{who.np} ran past and was first at {goal}. {who} won!", "And {who.np} got to {goal} first!"
    )
    return (hero,)


def _good_loser(stage: Stage, hero: Character, rival: Character) -> Characters:
    stage.do(
        (hero, rival),
        "run",
        "First {hero.name} was ahead, and then {friend.name}.",
        "They ran side by side for a long time.",
    )
    stage.tell(Win((rival,)), "In the end, {who.np} was first at {goal}.", "But {who.np} got to {goal} first.")
    stage.tell(Feel((hero,), "sad"), "{who.np} was a little sad.", "{who.np} had wanted to win so much.")
    stage.say(hero, rival, "congratulate", "Well done, {hearer.name}! You are very fast.", "Good race, {hearer.name}!")
    return (rival,)


def _award(stage: Stage, hero: Character, rival: Character, judge: Character, winners: Characters, prize: Item) -> None:
    winner = winners[0]
    other = rival if winner == hero else hero
    stage.paragraph()
    stage.tell(
        Give(judge, winner, prize), "{giver.np} gave {receiver.np} {item}.", "{receiver.np} got {item} from {giver.np}."
    )
    if len(winners) == 2 or stage.chance(0.6):
        stage.say(winner, other, "offer it", "Let's share it!", "Half of it is for you.", item=prize)
        stage.tell(Halve(winner, other, prize))
    else:
        stage.tell(Feel((winner,), "proud"))
        stage.tell(Eat((winner,), prize), "{who} ate {item.it} right away.")
    close(stage, (hero, rival), ("friends are more important than winning", "it is fun to run, first or last"))


def _buildings() -> list[Setting]:
    return [
        Setting(place, topic=f"{name}: {mishap}")
        for name, structure in STRUCTURES.items()
        for place in structure.places
        for mishap in structure.mishaps
    ]


@plot(_buildings())
def building(stage: Stage) -> None:
    """Two build something; it falls down, and they build it again."""
    name, mishap = stage.setting.topic.split(": ")
    structure = STRUCTURES[name]
    hero = stage.hero()
    friend = stage.friend(hero)
    builders = (hero, friend)
    begin(stage, builders)
    stage.say(hero, friend, "propose", f"Let's build a {name}!", f"I want to build a big {name}. Will you help me?")
    stage.say(friend, hero, "agree", "Yes, let's do it!", "What a good idea!")
    stage.do(builders, "work", *structure.work)
    stage.tell(Build(builders, name), f"Soon there was a fine {name}.", f"After a long time, the {name} was done.")
    stage.paragraph()
    _fall_down(stage, builders, name, mishap, structure.ruin)
    _build_again(stage, builders, name, structure)


def _fall_down(stage: Stage, builders: Characters, name: str, mishap: str, ruin: str) -> None:
    stage.tell(Collapse(name), f"But {mishap}, and the {name} {ruin}.", f"But {mishap}. Crash! The {name} {ruin}.")
    stage.tell(Feel(builders[:1], stage.pick(("sad", "angry"))))
    stage.say(
        builders[1], builders[0], "cheer up", "Do not be sad. We can build it again.", "Let's try again, {hearer.name}!"
    )


def _build_again(stage: Stage, builders: Characters, name: str, structure: Structure) -> None:
    stage.tell(
        Build(builders, name),
        f"So {{who}} built the {name} again, and this time it was strong.",
        f"So {{who}} worked together and made a new {name}. It was even better!",
    )
    stage.paragraph()
    stage.do(builders, "enjoy", *structure.joy)
    stage.tell(Feel(builders, "proud"))
    close(stage, builders, ("it is good to work together", "you can always try again"), ("worked together",))
