"""Prompts are read with what judges their answers; what is wrong in a line is named."""

import json

import pytest

from linnet.core.errors import UserError
from linnet.data.conversations import ChatTurn
from linnet.data.prompts import parse_prompt, read_prompts

USER, ANSWER = {"role": "user", "content": "Who sang?"}, {"role": "assistant", "content": "The bird."}
CHECKER = {"kind": "contains", "words": ["bird"]}


def parsed(**row):
    return parse_prompt(json.dumps(row), "f.jsonl, line 3")


def test_a_last_answer_is_the_reference_and_not_part_of_the_prompt():
    found = parsed(messages=[USER, ANSWER, USER, ANSWER], checker=CHECKER, type="questions", tools=[{"name": "sum"}])
    assert [turn.role for turn in found.messages] == ["user", "assistant", "user"]
    assert (found.reference, found.type, found.variables) == ("The bird.", "questions", {"tools": [{"name": "sum"}]})
    assert (found.checker.score("a bird"), found.checker.score("a cat")) == (1, 0)


def test_a_prompt_with_an_answer_is_compared_as_text_or_number():
    text, number = parsed(prompt="Who sang?", answer="The bird."), parsed(prompt="3 + 4?", answer="7")
    assert text.messages == (ChatTurn("user", "Who sang?"),)
    assert (text.checker.score("bird"), text.checker.score("the birds")) == (1, 0)
    assert (number.checker.score("It is 7."), number.checker.score("It is 8.")) == (1, 0)


def test_a_prompt_needs_no_reference_beside_a_checker():
    assert parsed(messages=[USER], checker=CHECKER).reference is None


def test_a_prompt_with_rounds_of_tools_goes_on_with_their_results():
    call, result = {"role": "assistant", "content": "calculator(3 + 4)"}, {"role": "tool", "content": "7"}
    row = {"messages": [USER, call, result, ANSWER], "checker": CHECKER}
    found = parsed(**row, tool_rounds=1)
    assert found.messages == (ChatTurn("user", "Who sang?"),) and found.reference == "The bird."
    assert found.continued("The bird.") is None
    further = found.continued("calculator(3 + 4)")
    assert [(turn.role, turn.content) for turn in further.messages[1:]] == [
        ("assistant", "calculator(3 + 4)"), ("tool", "7"),
    ]  # fmt: skip
    assert further.messages[-1].others == {"name": "calculator"} and further.continued("calculator(1)") is None
    assert len(parsed(**row).messages) == 3 and parsed(**row).continued("calculator(3 + 4)") is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "a", "answer": "b", "tool_rounds": -1}, "field 'tool_rounds': -1: expected a number from 0 to 100"),
        ({"prompt": "a", "answer": "b", "tool_rounds": True}, "field 'tool_rounds': True: expected a number"),
        ({"text": "a"}, "fields 'text': expected exactly one of 'messages' and 'prompt'"),
        ({"messages": [USER], "prompt": "a"}, "expected exactly one of 'messages' and 'prompt'"),
        ({"messages": [USER]}, "field 'checker': missing, and there is no answer"),
        ({"prompt": "a", "answer": " "}, "field 'checker': missing, and there is no answer"),
        ({"messages": [ANSWER], "checker": CHECKER}, "field 'messages': nothing to answer"),
        ({"messages": [USER, {"role": "bot"}], "checker": CHECKER}, 'messages.1.role: "bot"'),
        ({"prompt": "", "answer": "a"}, "field 'prompt': nothing to answer"),
        ({"prompt": "a", "answer": 7}, "field 'answer': 7: expected a text"),
        ({"prompt": "a", "checker": {"kind": "exact"}}, "checker.answer: missing"),
        ({"prompt": "a", "answer": "b", "type": 3}, "field 'type': 3: expected a text"),
    ],
)
def test_an_error_names_line_and_field(row, expected):
    with pytest.raises(UserError) as caught:
        parsed(**row)
    assert str(caught.value).startswith("f.jsonl, line 3: ")
    assert expected in str(caught.value)


def test_a_file_is_read_as_a_stream(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "a", "answer": "b"}) + "\n\nnot json\n")
    reading = read_prompts(path)
    assert next(reading).place.endswith("line 1")
    with pytest.raises(UserError, match="line 3: not valid JSON"):
        next(reading)
    path.write_text("")
    with pytest.raises(UserError, match=r"no prompts; expected lines like .*checker"):
        list(read_prompts(path))
    with pytest.raises(UserError, match="not a file of prompts"):
        list(read_prompts(tmp_path / "prompts.txt"))
