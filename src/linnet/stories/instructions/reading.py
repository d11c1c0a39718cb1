"""Instructions about a story: questions, questions that it does not answer, the order of events, retelling it."""

from collections.abc import Iterator
from typing import NamedTuple

from linnet.stories.corpus import Story
from linnet.stories.events import Find, Give, Go, Search
from linnet.stories.instructions.example import Draws, InstructionExample, Plain, Templates, all_of, asked, mentions
from linnet.stories.instructions.telling import Sentence, introduction, items_of, named, sentences_of, told_again
from linnet.stories.language import capitalized, with_article
from linnet.stories.vocabulary.people import SPECIES as SPECIES_NAMES
from linnet.stories.vocabulary.places import HOME
from linnet.stories.vocabulary.things import TOYS

READ = Templates(
    ("{story}\n\n{question}", "Read this story.\n\n{story}\n\n{question}", "{question}\n\n{story}"),
    ("Here is a story:\n\n{story}\n\nNow answer: {question}", "Question: {question}\n\nStory: {story}"),
)
HERO = Templates(("Who is the story about?", "What is the name of the main character?"), ("Whose story is this?",))
SPECIES = Templates(
    ("What kind of animal is {who}?", "What animal is {who}?"), ("Which animal is {who} in the story?",)
)
GIVER = Templates(
    ("Who gave the {noun} to {receiver}?", "From whom did {receiver} get the {noun}?"),
    ("Who was it that gave {receiver} the {noun}?",),
)
GIFT = Templates(
    ("What did {giver} give to {receiver}?", "What did {receiver} get from {giver}?"),
    ("Name the thing that {giver} gave to {receiver}.",),
)
FOUND = Templates(
    ("Where did {who} find the {noun}?", "Where was the {noun} when {who} found it?"),
    ("In which spot did {who} find the {noun}?",),
)
WENT = Templates(("Where did {who} go?", "To which place did {who} go?"), ("What place did {who} go to?",))

UNKNOWN = "The story does not say."
"""The reference answer to a question that the story does not answer."""

SAYS_SO = ("does not say", "doesn't say", "not mentioned", "do not know", "don't know", "cannot know", "not told")
"""Phrases of which one must occur in such an answer."""

ABSENT = (
    Templates(
        ("What color is {who}'s {noun}?", "Which color does {who}'s {noun} have?"),
        ("Tell me the color of {who}'s {noun}.",),
    ),
    Templates(
        ("Where did {who} hide the {noun}?", "Where is {who}'s {noun}?"), ("In which spot did {who} put the {noun}?",)
    ),
    Templates(("How old is {who}?", "What is the age of {who}?"), ("How many years old is {who}?",)),
    Templates(
        ("Who gave {who} the {noun}?", "From whom did {who} get the {noun}?"), ("Whose gift to {who} was the {noun}?",)
    ),
)
_INVENTED = ("It is red.", "Under the bed.", "Seven years old.", "A good friend did.")


class _Asked(NamedTuple):
    templates: Templates
    fields: dict[str, str]
    answer: str
    rejected: str
    checker: Plain
    chance: float


def question(draws: Draws) -> InstructionExample:
    """A question whose answer the story tells."""
    while True:  # nearly every story has a hero, a place and an animal, so that others are preferred
        story = draws.story()
        found = list(_questions(story))
        special = [one for one in found if one.templates not in (HERO, SPECIES, WENT)]
        if special or (found and draws.rng.random() < 0.3):
            break
    one = draws.rng.choice(special if special and draws.rng.random() < 0.8 else found)
    text = draws.template(one.templates).format(**one.fields)
    prompt = draws.template(READ).format(story=story.text, question=text)
    return InstructionExample(
        "questions", asked(prompt, one.answer), one.checker, one.rejected, one.chance, story.signature
    )


def _questions(story: Story) -> Iterator[_Asked]:
    hero, others = story.cast[0], [named(one) for one in story.cast[1:]]
    told = story.told
    if others:
        checker = mentions([hero.name], others, 12)
        yield _Asked(HERO, {}, f"It is about {hero.name}.", f"It is about {others[0]}.", checker, 1 / len(story.cast))
    species = sorted({one.species for one in story.cast if not one.is_child and one.relation != "parent"})
    if hero.species in species and f"{hero.species}" in story.text:
        wrong = [kind for kind in species if kind != hero.species] or ["pony"]
        answer = f"{hero.name} is {with_article(hero.species)}."
        rejected = f"{hero.name} is {with_article(wrong[0])}."
        chance = 1 / (len(species) if len(species) > 1 else len(SPECIES_NAMES))
        yield _Asked(SPECIES, {"who": hero.name}, answer, rejected, mentions([hero.species], wrong), chance)
    gifts = [event for event in told if isinstance(event, Give)]
    if len(gifts) == 1:
        yield from _gift(gifts[0], story)
    finds = [event for event in told if isinstance(event, Find)]
    searched = {event.spot for event in told if isinstance(event, Search)}
    if len(finds) == 1 and searched and finds[0].spot in story.text and finds[0].spot not in searched:
        who, noun, spot = named(finds[0].who), finds[0].item.noun, finds[0].spot
        wrong = sorted(searched)
        answer, rejected = (f"{capitalized(who)} found the {noun} {place}." for place in (spot, wrong[0]))
        fields = {"who": who, "noun": noun}
        yield _Asked(FOUND, fields, answer, rejected, mentions([spot], wrong), 1 / (1 + len(wrong)))
    went = [event for event in told if isinstance(event, Go)]
    if len(went) == 1 and went[0].place != HOME and hero in went[0].who and "'" not in went[0].place.noun:
        place = went[0].place
        answer, rejected = f"{hero.name} went {place.to}.", f"{hero.name} went home."
        checker = mentions([place.noun], ["home"], 12)
        yield _Asked(WENT, {"who": hero.name}, answer, rejected, checker, 0.0)


def _gift(gift: Give, story: Story) -> Iterator[_Asked]:
    giver, receiver, noun = named(gift.giver), named(gift.receiver), gift.item.noun
    other_items = [item.noun for item in items_of(story) if item != gift.item]
    answer = f"{capitalized(giver)} gave the {noun} to {receiver}."
    swapped = f"{capitalized(receiver)} gave the {noun} to {giver}."
    begins = {"kind": "order", "words": [giver, receiver]}
    alone = {"kind": "one_of", "answers": [giver, f"it was {giver}"]}
    checker = {"kind": "any", "checkers": [begins, alone]}
    yield _Asked(GIVER, {"receiver": receiver, "noun": noun}, answer, swapped, checker, 1 / len(story.cast))
    if not other_items:
        return
    wrong = f"{capitalized(giver)} gave the {other_items[0]} to {receiver}."
    fields = {"giver": giver, "receiver": receiver}
    yield _Asked(GIFT, fields, answer, wrong, mentions([noun], other_items), 1 / (1 + len(other_items)))


def impossible(draws: Draws) -> InstructionExample:
    """A question that the story does not answer; the answer says so."""
    story = draws.story()
    absent = [toy.noun for toy in TOYS if toy.noun.split()[-1] not in story.text and toy.number == "one"]
    fields = {"who": story.cast[0].name, "noun": draws.rng.choice(absent)}
    number = draws.rng.randrange(len(ABSENT))
    prompt = draws.template(READ).format(story=story.text, question=draws.template(ABSENT[number]).format(**fields))
    says_so = {"kind": "any", "checkers": [{"kind": "contains", "words": [phrase]} for phrase in SAYS_SO]}
    checker = all_of(says_so, {"kind": "length", "unit": "words", "at_most": 25})
    return InstructionExample("impossible", asked(prompt, UNKNOWN), checker, _INVENTED[number], 0.0, story.signature)


ORDER = Templates(
    (
        "{story}\n\nPut these in the order in which they happened:\n{lines}\n\nAnswer with the letters.",
        "Read this story.\n\n{story}\n\nIn which order did this happen? Answer with letters only.\n{lines}",
    ),
    ("Story: {story}\n\nEvents:\n{lines}\n\nWrite the letters of the events from the first to the last.",),
)
EARLIER = Templates(
    (
        "{story}\n\nWhich happened first: {one}, or {other}?",
        "Read this story.\n\n{story}\n\nWhat came first, {one} or {other}?",
    ),
    ("Story: {story}\n\nOne of these happened before the other: {one}; {other}. Which one?",),
)


def order(draws: Draws) -> InstructionExample:
    """The order of events, by letters, or which of two came first."""
    while True:
        story = draws.story()
        told = sentences_of(story, only_deeds=True)
        if len(told) >= 3:
            break
    if draws.rng.random() < 0.5:
        return _letters(draws, story, told)
    one, other = sorted(draws.rng.sample(range(len(told)), 2))
    pair = [told[one], told[other]]
    first, second = (sentence.text for sentence in pair)
    draws.rng.shuffle(pair)
    shown = [_inside(sentence, story) for sentence in pair]
    prompt = draws.template(EARLIER).format(story=story.text, one=shown[0], other=shown[1])
    checker = mentions([first], [second])
    return InstructionExample("order", asked(prompt, f"{first}."), checker, f"{second}.", 1 / 2, story.signature)


def _inside(sentence: Sentence, story: Story) -> str:
    """The sentence within another: only a name keeps its capital."""
    text = sentence.text
    names = tuple(one.name for one in story.cast if one.name)
    return text if text.startswith(names) else text[0].lower() + text[1:]


def _letters(draws: Draws, story: Story, told: list[Sentence]) -> InstructionExample:
    count = min(len(told), draws.rng.choice((3, 3, 4)))
    chosen = [told[number] for number in sorted(draws.rng.sample(range(len(told)), count))]
    letters = list("ABCD"[:count])
    draws.rng.shuffle(letters)
    lines = "\n".join(f"{letter}. {sentence.text}." for letter, sentence in sorted(zip(letters, chosen, strict=True)))
    prompt = draws.template(ORDER).format(story=story.text, lines=lines)
    answer, rejected = ", ".join(letters), ", ".join([*letters[1:], letters[0]])
    ways = 1
    for number in range(2, count + 1):
        ways *= number
    checker = {"kind": "one_of", "answers": [answer, " ".join(letters), "".join(letters)]}
    return InstructionExample("order", asked(prompt, answer), checker, rejected, 1 / ways, story.signature)


RETELL = Templates(
    ("{story}\n\nRetell the story. {rules}", "Read this story.\n\n{story}\n\nTell it again in your own words. {rules}"),
    ("Story: {story}\n\nWrite a shorter version of this story. {rules}",),
)
SENTENCES = Templates(
    ("Use exactly {count} sentences.", "Write {count} sentences."), ("It must have {count} sentences.",)
)
WORDS = Templates(("Use at most {count} words.", "Write no more than {count} words."), ("Stay within {count} words.",))
USE = Templates(
    ('Use the word "{word}".', 'The word "{word}" must occur.'), ('Make sure that it has the word "{word}".',)
)
AVOID = Templates(('Do not use the word "{word}".', 'Avoid the word "{word}".'), ('The word "{word}" must not occur.',))
NAMES = Templates(("Name {names}.", "Use the names of {names}."), ("Mention {names} by name.",))
ENDING = Templates(('End with "The end."', 'The last words must be "The end."'), ('Finish it with "The end."',))
OPENING = Templates(('Begin with "Once".', 'The first word must be "Once".'), ('Start with the word "Once".',))
CAPITALS = Templates(
    ("Write it in capital letters.", "Use capital letters only."), ("Every letter must be a capital.",)
)


def retell(draws: Draws) -> InstructionExample:
    """Retell a story within rules: a length, and words, names, a beginning, an end or capital letters."""
    while True:
        story = draws.story()
        told = sentences_of(story)
        if len(told) >= 3:
            break
    hero, rng = story.cast[0], draws.rng
    avoided = _avoidable(told, story) if rng.random() < 0.3 else None
    usable = [one for one in told if avoided is None or avoided not in one.text.split()]
    if len(usable) < 2:
        avoided, usable = None, told
    count = rng.randint(2, min(4, len(usable)))
    numbers = sorted(rng.sample(range(len(usable)), count))
    parts = [f"Once there was {introduction(hero)}.", *told_again([usable[number] for number in numbers])]
    rules, checkers = list[str](), list[Plain]([{"kind": "contains", "words": [hero.name]}])
    if avoided is not None:
        rules.append(draws.template(AVOID).format(word=avoided))
        checkers.append({"kind": "lacks", "words": [avoided]})
    else:
        parts = _extra_rule(draws, story, [usable[number] for number in numbers], parts, rules, checkers)
    text = " ".join(parts)
    if rng.random() < 0.5:
        rules.insert(0, draws.template(SENTENCES).format(count=len(parts)))
        checkers.append({"kind": "length", "unit": "sentences", "at_least": len(parts), "at_most": len(parts)})
    else:
        most = 5 * -(-len(text.split()) // 5)
        rules.insert(0, draws.template(WORDS).format(count=most))
        checkers.append({"kind": "length", "unit": "words", "at_most": most})
    prompt = draws.template(RETELL).format(story=story.text, rules=" ".join(rules))
    return InstructionExample("retell", asked(prompt, text), all_of(*checkers), story.text, 0.0, story.signature)


def _avoidable(told: list[Sentence], story: Story) -> str | None:
    """A noun of the story that at least two sentences do without."""
    for item in items_of(story):
        without = [one for one in told if item.noun not in one.text.split()]
        if " " not in item.noun and len(without) >= 2 and item.noun in story.text:
            return item.noun
    return None


def _extra_rule(
    draws: Draws, story: Story, chosen: list[Sentence], parts: list[str], rules: list[str], checkers: list[Plain]
) -> list[str]:
    """Add one more rule with its checker; the sentences of the reference follow it."""
    kind = draws.rng.choice(("use", "names", "ending", "opening", "capitals", "none"))
    people = [one.name for one in story.cast if one.name]
    mentioned = [name for name in people if any(name in part for part in parts)]
    if kind == "use":
        nouns = [item.noun for item in items_of(story) if any(item.noun in one.text for one in chosen)]
        if nouns:
            rules.append(draws.template(USE).format(word=nouns[0]))
            checkers.append({"kind": "contains", "words": [nouns[0]]})
    elif kind == "names" and len(mentioned) > 1:
        rules.append(draws.template(NAMES).format(names=" and ".join(mentioned[:2])))
        checkers.append({"kind": "contains", "words": mentioned[:2]})
    elif kind == "ending":
        rules.append(draws.template(ENDING))
        checkers.append({"kind": "ends_with", "text": "The end."})
        return [*parts, "The end."]
    elif kind == "opening":
        rules.append(draws.template(OPENING))
        checkers.append({"kind": "begins_with", "text": "Once"})
    elif kind == "capitals":
        rules.append(draws.template(CAPITALS))
        checkers.append({"kind": "case", "case": "upper"})
        return [part.upper() for part in parts]
    return parts
