"""Instructions about stated facts: sums in words, who has what and where, a calculator, corrections, annotation."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

from linnet.stories.entities import PRONOUNS, Character, Gender, Item, Location
from linnet.stories.events import Enter, Get, Give, Go
from linnet.stories.instructions.example import (
    CHILDREN,
    Draws,
    InstructionExample,
    Plain,
    Templates,
    all_of,
    asked,
    mentions,
)
from linnet.stories.language import capitalized
from linnet.stories.vocabulary.people import GIRLS
from linnet.stories.vocabulary.places import OUTDOORS
from linnet.stories.vocabulary.things import TOYS
from linnet.stories.world import World

COUNTED = ("shells", "apples", "marbles", "stickers", "buttons", "pencils", "feathers", "cookies", "stones", "cards")

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
MOST = 20
"""The largest number of the problems in words."""

HOW_MANY = Templates(
    ("{facts} How many {things} does {who} have now?", "{facts} How many {things} are left with {who}?"),
    ("{facts} Count the {things} that {who} has at the end.",),
)
DIRECT = Templates(("Answer with the number only.", "Write just the number."), ("Give nothing but the number.",))
STEPS = Templates(("Think step by step.", "Show every step."), ("Work it out one step after another.",))


class _Problem(NamedTuple):
    """facts: what is told. steps: `7 + 5 = 12.` for each change."""

    facts: str
    steps: list[str]
    who: str
    things: str
    start: int
    result: int
    signature: tuple[str, ...]


def _problem(draws: Draws) -> _Problem:
    """A number of things that changes twice, always from 0 to `MOST`."""
    rng = draws.rng
    while True:
        things = rng.choice(COUNTED)
        numbers = [rng.randint(2, 12)]
        numbers += [rng.randint(0, MOST), rng.randint(0, MOST)]
        if len(set(numbers)) == 3 and draws.owns("arithmetic", things, *numbers):
            break
    who, other = rng.sample(CHILDREN, 2)
    facts, steps = [f"{who} has {numbers[0]} {things}."], list[str]()
    for before, after in pairwise(numbers):
        change = abs(after - before)
        more = (f"{other} gives {who} {change} more.", f"{who} finds {change} more.")
        less = (f"{who} gives {change} to {other}.", f"{who} loses {change} of them.")
        facts.append(rng.choice(more if after > before else less))
        steps.append(f"{before} {'+' if after > before else '-'} {change} = {after}.")
    if facts[1].split()[1:] != facts[2].split()[1:]:
        facts[2] = f"Then {facts[2]}"
    signature = ("arithmetic", things, *map(str, numbers))
    return _Problem(" ".join(facts), steps, who, things, numbers[0], numbers[-1], signature)


def _other_number(rng: Random, number: int) -> int:
    return rng.choice([other for other in range(MOST + 1) if other != number])


def arithmetic(draws: Draws) -> InstructionExample:
    """A sum in words, to be answered with the number alone."""
    one = _problem(draws)
    question = draws.template(HOW_MANY).format(facts=one.facts, things=one.things, who=one.who)
    checker = all_of({"kind": "number", "value": one.result}, {"kind": "length", "unit": "words", "at_most": 3})
    prompt = f"{question} {draws.template(DIRECT)}"
    wrong = str(_other_number(draws.rng, one.result))
    return InstructionExample(
        "arithmetic", asked(prompt, str(one.result)), checker, wrong, 1 / (MOST + 1), one.signature
    )


def steps(draws: Draws) -> InstructionExample:
    """The same sums, worked out step by step."""
    one = _problem(draws)
    question = draws.template(HOW_MANY).format(facts=one.facts, things=one.things, who=one.who)

    def worked(result: int) -> str:
        lines = (
            f"{one.who} has {one.start} {one.things} at first.",
            *one.steps,
            f"{one.who} has {result} {one.things}.",
        )
        return " ".join(lines)

    prompt = f"{question} {draws.template(STEPS)}"
    wrong = worked(_other_number(draws.rng, one.result))
    checker: Plain = {"kind": "number", "value": one.result}
    return InstructionExample("steps", asked(prompt, worked(one.result)), checker, wrong, 1 / (MOST + 1), one.signature)


PEOPLE = 3

LOCATE = Templates(
    ("{facts} {question}", "Read the facts and answer. {facts} {question}"),
    ("{question} These are the facts: {facts}",),
)
HOLDER = Templates(("Who has the {toy}?", "Who has the {toy} now?"), ("In whose hands is the {toy}?",))
WHERE = Templates(("Where is {what}?", "Where is {what} now?"), ("In which place is {what}?",))


class _Scene(NamedTuple):
    """People with toys at different places, and the sentences that say so."""

    world: World
    people: list[Character]
    toys: list[Item]
    places: list[Location]
    lines: list[str]
    signature: tuple[str, ...]


def _scene(draws: Draws, purpose: str) -> _Scene:
    rng = draws.rng
    while True:
        places, things = rng.sample(OUTDOORS, PEOPLE), rng.sample(TOYS, PEOPLE)
        signature = (purpose, *sorted([*(place.noun for place in places), *(thing.noun for thing in things)]))
        if draws.owns(*signature):
            break
    people = [Character(name, _gender(name), "child") for name in rng.sample(CHILDREN, PEOPLE)]
    toys = [Item(thing, thing.adjectives[0]) for thing in things]
    world, lines = World(), list[str]()
    for who, place, toy in zip(people, places, toys, strict=True):
        Enter((who,), place).happen(world)
        Get(who, toy).happen(world)
        lines.append(f"{who.name} is {place.at} with the {toy.noun}.")
    return _Scene(world, people, toys, places, lines, signature)


def _gender(name: str) -> Gender:
    return "f" if name in GIRLS else "m"


def whereabouts(draws: Draws) -> InstructionExample:
    """Who has a toy, or where a person or a toy is, after a few moves."""
    scene, rng = _scene(draws, "whereabouts"), draws.rng
    for _ in range(rng.randint(1, 4)):
        _move(scene, rng)
    holder_of, place_of = scene.world.holder_of, scene.world.place_of
    toy = rng.choice(scene.toys)
    kind = rng.choice(("holder", "person", "toy"))
    if kind == "holder":
        question = draws.template(HOLDER).format(toy=toy.noun)
        right = holder_of[toy].name
        wrong = [one.name for one in scene.people if one.name != right]
        answer, rejected = (f"{name} has the {toy.noun}." for name in (right, wrong[0]))
    else:
        who = rng.choice(scene.people) if kind == "person" else holder_of[toy]
        what = who.name if kind == "person" else f"the {toy.noun}"
        question = draws.template(WHERE).format(what=what)
        right = place_of[who].noun
        wrong = [place.noun for place in scene.places if place.noun != right]
        at = {place.noun: place.at for place in scene.places}
        answer, rejected = (f"{capitalized(what)} is {at[noun]}." for noun in (right, wrong[0]))
    prompt = draws.template(LOCATE).format(facts=" ".join(scene.lines), question=question)
    return InstructionExample(
        "whereabouts", asked(prompt, answer), mentions([right], wrong, 12), rejected, 1 / PEOPLE, scene.signature
    )


def _move(scene: _Scene, rng: Random) -> None:
    """Somebody gives a toy to somebody at the same place, or goes to another of the places."""
    world = scene.world
    gifts = [
        (holder, other, toy)
        for toy, holder in world.holder_of.items()
        for other in scene.people
        if other != holder and world.place_of[other] == world.place_of[holder]
    ]
    if gifts and rng.random() < 0.6:
        giver, receiver, toy = rng.choice(gifts)
        Give(giver, receiver, toy).happen(world)
        scene.lines.append(f"{giver.name} gave the {toy.noun} to {receiver.name}.")
        return
    who = rng.choice(scene.people)
    place = rng.choice([place for place in scene.places if place != world.place_of[who]])
    Go((who,), place).happen(world)
    scene.lines.append(f"{who.name} went {place.to}.")


CORRECTION = Templates(
    (
        "Sorry, I was wrong. {fact} {question}",
        "No, I made a mistake: {fact} {question}",
    ),
    ("Wait, that is not right. In fact, this is true: {fact} {question}",),
)
SHORTER = Templates(("Say it in one word.", "Answer in one word, please."), ("One word is enough.",))


def correction(draws: Draws) -> InstructionExample:
    """A second turn: the user corrects a fact, or wants the same answer in one word."""
    scene, rng = _scene(draws, "correction"), draws.rng
    number = rng.randrange(PEOPLE)
    who, toy, place = scene.people[number], scene.toys[number], scene.places[number]
    by_toy = rng.random() < 0.5
    what = f"the {toy.noun}" if by_toy else who.name
    question = draws.template(WHERE).format(what=what)
    prompt = draws.template(LOCATE).format(facts=" ".join(scene.lines), question=question)
    answer = f"{capitalized(what)} is {place.at}."
    wrong = [one.noun for one in scene.places if one != place]
    if rng.random() < 0.4:
        second, final, rejected = draws.template(SHORTER), f"{capitalized(place.noun)}.", answer
        checker = mentions([place.noun], wrong, 1)
    else:
        new = scene.places[(number + 1) % PEOPLE]
        fact = f"{who.name} is {new.at}."
        second = draws.template(CORRECTION).format(fact=fact, question=question)
        final, rejected = f"{capitalized(what)} is {new.at}.", answer
        checker = mentions([new.noun], [one.noun for one in scene.places if one != new], 12)
    messages = (*asked(prompt, answer), *asked(second, final))
    return InstructionExample("correction", messages, checker, rejected, 1 / PEOPLE, scene.signature)


TOOL = "You have a calculator. To use it, write calculator(12 * 3) and wait for the result."
CALL = "calculator({expression})"
ROUNDS = 2

BOXES = Templates(
    (
        "{who} has {a} boxes with {b} {things} in each. How many {things} is that?",
        "There are {a} bags of {b} {things}. How many {things} does {who} have in all of them?",
    ),
    ("Each of {a} baskets holds {b} {things}. Tell {who} how many {things} there are.",),
)
TOGETHER = Templates(
    (
        "{who} has {a} {things} and gets {b} more. How many {things} does {who} have?",
        "{who} counts {a} {things} on one day and {b} on the next. How many {things} is that?",
    ),
    ("Add the {b} {things} of today to the {a} {things} that {who} had. How many are there?",),
)
LEFT = Templates(
    (
        "{who} has {a} {things} and gives away {b}. How many {things} are left?",
        "Of {a} {things} {who} sells {b}. How many {things} does {who} keep?",
    ),
    ("{who} takes {b} {things} out of {a}. How many {things} stay?",),
)


class _Product(NamedTuple):
    question: str
    expression: str
    swapped: str | None
    value: int
    things: str
    signature: tuple[str, ...]


def _product(draws: Draws) -> _Product:
    """A question about two large numbers, and the expression that answers it."""
    rng = draws.rng
    while True:
        sign, templates = rng.choice((("*", BOXES), ("+", TOGETHER), ("-", LEFT)))
        a, b = (
            (rng.randint(12, 99), rng.randint(3, 99)) if sign == "*" else (rng.randint(200, 999), rng.randint(101, 199))
        )
        things = rng.choice(COUNTED)
        if draws.owns("calculator", sign, things, a, b):
            break
    who = rng.choice(CHILDREN)
    question = draws.template(templates).format(who=who, a=a, b=b, things=things)
    value = {"*": a * b, "+": a + b, "-": a - b}[sign]
    swapped = None if sign == "-" else CALL.format(expression=f"{b} {sign} {a}")
    signature = ("calculator", sign, things, str(a), str(b))
    return _Product(question, CALL.format(expression=f"{a} {sign} {b}"), swapped, value, things, signature)


def _with_tool(question: str) -> tuple[Plain, ...]:
    return {"role": "system", "content": TOOL}, {"role": "user", "content": question}


def calculator_call(draws: Draws) -> InstructionExample:
    """The answer is the call of the tool."""
    one = _product(draws)
    messages = (*_with_tool(one.question), {"role": "assistant", "content": one.expression})
    checker: Plain = {"kind": "one_of", "answers": [one.expression, *([one.swapped] if one.swapped else [])]}
    return InstructionExample("calculator-call", messages, checker, f"It is {one.value + 10}.", 0.0, one.signature)


def calculator(draws: Draws) -> InstructionExample:
    """The call has been answered by the tool; the answer says what the result means."""
    one = _product(draws)
    messages = (
        *_with_tool(one.question),
        {"role": "assistant", "content": one.expression},
        {"role": "tool", "name": "calculator", "content": str(one.value)},
        {"role": "assistant", "content": f"That is {one.value} {one.things}."},
    )
    checker = all_of({"kind": "number", "value": one.value}, {"kind": "contains", "words": [one.things]})
    wrong = f"That is {one.value + 10} {one.things}."
    return InstructionExample("calculator", messages, checker, wrong, 0.0, one.signature)


def calculator_use(draws: Draws) -> InstructionExample:
    """The same conversation, asked from its beginning: the model calls the tool, reads the result and answers."""
    return replace(calculator(draws), type="calculator-use", tool_rounds=ROUNDS)


JSON_FORM = Templates(
    (
        '{text}\n\nWrite the names and ages as JSON, such as {{"Kim": 4}}.',
        "Give each name with the age as a JSON object, name to number.\n\n{text}",
    ),
    ("Text: {text}\n\nOutput one JSON object whose keys are the names and whose values are the ages.",),
)
LINES_FORM = Templates(
    (
        "{text}\n\nList the names and ages, one person a line, in the form name: age.",
        "Write one line for each person, such as Kim: 4.\n\n{text}",
    ),
    ("Text: {text}\n\nFor everybody in it write a line with the name, a colon and the age.",),
)
TAGS_FORM = Templates(
    (
        "{text}\n\nRepeat the text with every name in <name></name> and every age in <age></age>.",
        "Copy this text, and put <name></name> around names and <age></age> around ages.\n\n{text}",
    ),
    ("Text: {text}\n\nMark up the names as <name>...</name> and the ages as <age>...</age> in the text.",),
)


def annotate(draws: Draws) -> InstructionExample:
    """Names and ages of a text in a given format: JSON, lines, or tags in the text."""
    rng = draws.rng
    while True:
        count = rng.choice((1, 2, 2, 3))
        ages, shapes = [rng.randint(3, 12) for _ in range(count)], [rng.randrange(4) for _ in range(count)]
        form = rng.choice(("json", "lines", "tags"))
        if draws.owns("annotate", form, *ages, *shapes):
            break
    names = rng.sample(CHILDREN, count)
    said = [_age_sentence(*each, rng) for each in zip(names, ages, shapes, strict=True)]
    text = " ".join(sentence for sentence, _ in said)
    signature = ("annotate", form, *map(str, (*ages, *shapes)))
    wrong_ages = [ages[0] + 1, *ages[1:]]
    if form == "json":
        answer, rejected = (_json(names, numbers) for numbers in (ages, wrong_ages))
        checker: Plain = {"kind": "json", "fields": dict(zip(names, ages, strict=True)), "exactly": True}
        prompt = draws.template(JSON_FORM).format(text=text)
    elif form == "lines":
        answer, rejected = (
            "\n".join(f"{name}: {age}" for name, age in zip(names, numbers, strict=True))
            for numbers in (ages, wrong_ages)
        )
        checker = {"kind": "exact", "answer": answer}
        prompt = draws.template(LINES_FORM).format(text=text)
    else:
        answer, rejected = " ".join(tagged for _, tagged in said), text
        checker = {"kind": "exact", "answer": answer}
        prompt = draws.template(TAGS_FORM).format(text=text)
    return InstructionExample("annotate", asked(prompt, answer), checker, rejected, 0.0, signature)


def _json(names: list[str], ages: list[int]) -> str:
    return "{" + ", ".join(f'"{name}": {age}' for name, age in zip(names, ages, strict=True)) + "}"


def _age_sentence(name: str, age: int, shape: int, rng: Random) -> tuple[str, str]:
    """A sentence with a name and an age, and the same with tags."""
    pronoun = PRONOUNS[_gender(name)]
    thing = rng.choice(TOYS[:8]).noun
    written = rng.choice((str(age), NUMBER_WORDS[age]))
    sentence = (
        "{name} is {age} years old.",
        "{name} has a {thing} and is {age}.",
        "Today {name} turned {age}, and {subject} got a {thing}.",
        "A child named {name}, who is {age}, lost {possessive} {thing}.",
    )[shape]
    fields = {"thing": thing, "subject": pronoun.subject, "possessive": pronoun.possessive}
    plain = sentence.format(name=name, age=written, **fields)
    tagged = sentence.format(name=f"<name>{name}</name>", age=f"<age>{written}</age>", **fields)
    return plain, tagged
