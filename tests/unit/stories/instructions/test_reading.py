"""The reference answers are true: found again from the told events of the story."""

import re
from itertools import pairwise
from random import Random

from linnet.stories.events import Give
from linnet.stories.instructions.example import Draws
from linnet.stories.instructions.reading import order, question, retell
from linnet.stories.instructions.telling import sentences_of


class Remembering(Draws):
    """Keeps the story that an example was made of."""

    def story(self):
        self.last = super().story()
        return self.last


def test_events_are_in_the_order_of_the_story():
    letters = 0
    for number in range(60):
        draws = Remembering(Random(number), "train")
        row = order(draws).to_dict(draws)
        told = [sentence.text for sentence in sentences_of(draws.last, only_deeds=True)]
        text, answer = (message["content"] for message in row["messages"])
        if lines := dict(re.findall(r"^([A-D])\. (.*)\.$", text, re.MULTILINE)):
            letters += 1
            places = [told.index(lines[letter]) for letter in answer.split(", ")]
            assert places == sorted(places) and len(places) == len(lines)
        else:
            assert told.index(answer.removesuffix(".")) < told.index(row["rejected"].removesuffix("."))
    assert 15 < letters < 45


def test_a_retelling_says_what_is_told_in_order():
    for number in range(60):
        draws = Remembering(Random(number), "train")
        answer = retell(draws).messages[-1]["content"]
        told = [sentence.text.upper().split() for sentence in sentences_of(draws.last)]
        places = []
        for sentence in answer.upper().removesuffix(" THE END.").split(". ")[1:]:
            words = sentence.removesuffix(".").split()
            # "a red ball" stands for "the ball": its first and last words are those of the event.
            fits = [place for place, one in enumerate(told) if one[:2] == words[:2] and one[-1] == words[-1]]
            fits = fits or [place for place, one in enumerate(told) if one[-2:] == words[-2:]]
            assert fits, (sentence, told)
            places.append(fits)
        assert all(min(before) < max(after) for before, after in pairwise(places))


def test_questions_about_gifts_name_who_gave():
    asked = 0
    for number in range(80):
        draws = Remembering(Random(number), "train")
        answer = question(draws).messages[-1]["content"]
        if found := re.fullmatch(r"(\w+|The \w+) gave the ([\w ]+) to (\w+|the \w+)\.", answer):
            asked += 1
            gifts = {(e.giver.label, e.item.noun, e.receiver.label) for e in draws.last.events if isinstance(e, Give)}
            assert tuple(part.removeprefix("The ").removeprefix("the ") for part in found.groups()) in gifts
    assert asked > 10
