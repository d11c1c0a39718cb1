"""The reference answers are true: found again from the text of the prompt."""

import re
from itertools import islice, pairwise

from linnet.data.checkers import last_number
from linnet.data.prompts import prompt_of
from linnet.data.synthesise import preference_pair
from linnet.stories.instructions import examples

MOVE = re.compile(r"(\w+) (?:is (\w+ the \w+) with the ([a-z ]+)|went to the (\w+)|gave the ([a-z ]+) to (\w+))\.")


def prompts(kind, count=80):
    for row in islice(examples(11, "train", [kind]), count):
        yield row, row["messages"][-2]["content"], row["messages"][-1]["content"]


def test_who_has_what_and_where_follows_from_the_moves():
    kinds = set()
    for _, text, answer in prompts("whereabouts"):
        place, holder = {}, {}
        for who, at, first, to, given, receiver in MOVE.findall(text):
            if at:
                place[who], holder[first] = at.split()[-1], who
            elif to:
                place[who] = to
            else:
                assert holder[given] == who and place[who] == place[receiver], text
                holder[given] = receiver
        facts = {f"{who} has the {toy}" for toy, who in holder.items()}
        facts |= {f"{who} is {noun}" for who, noun in place.items()}
        facts |= {f"The {toy} is {place[who]}" for toy, who in holder.items()}
        assert re.sub(r" is \w+ the (\w+)\.", r" is \1", answer).removesuffix(".") in facts, (text, answer)
        kinds.add(answer.split()[1])
    assert "has" in kinds and "is" in kinds


def test_sums_follow_from_the_text_and_every_step_is_right():
    for kind in ("arithmetic", "steps"):
        for _, text, answer in prompts(kind):
            start, *changes = re.findall(r"(has|more|gives|loses|gives \w+|finds)? ?\b(\d+)\b( more)?", text)
            total = int(start[1])
            for _, number, more in changes:
                total += int(number) if more else -int(number)
            assert last_number(answer) == total, text
            steps = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)\.", answer)
            assert len(steps) == (2 if kind == "steps" else 0)
            for a, sign, b, result in steps:
                assert int(a) + int(sign + b) == int(result)
            assert all(before[3] == after[0] for before, after in pairwise(steps))


def test_the_calculator_says_what_the_call_asks():
    for row, text, answer in prompts("calculator"):
        a, sign, b = re.fullmatch(r"calculator\((\d+) ([*+-]) (\d+)\)", row["messages"][2]["content"]).groups()
        result = {"*": int(a) * int(b), "+": int(a) + int(b), "-": int(a) - int(b)}[sign]
        assert int(text) == result == last_number(answer)
        question = row["messages"][1]["content"]
        assert {a, b} <= set(re.findall(r"\d+", question))


def test_a_correction_takes_the_place_that_the_user_says():
    corrected = 0
    for row, text, answer in prompts("correction"):
        if fact := re.search(r"is (\w+ the \w+)\. ", text):
            corrected += 1
            assert answer.endswith(f"is {fact[1]}.") and row["rejected"] == row["messages"][-3]["content"]
    assert corrected > 20


def test_the_calculator_gives_the_result_that_the_conversation_shows():
    for row in islice(examples(5, "train", ["calculator-use"]), 20):
        found = prompt_of(row, "row")
        call, result, answer = row["messages"][-3:]
        assert [turn.role for turn in found.messages] == ["system", "user"] and found.reference == answer["content"]
        further = found.continued(call["content"])
        assert further.messages[-1].as_dict() == result
        assert further.judged().passes(answer["content"]) and not further.judged().passes(call["content"])
        chosen = preference_pair(prompt_of(row, "row"))
        assert chosen["prompt"] == row["messages"][:-1]
