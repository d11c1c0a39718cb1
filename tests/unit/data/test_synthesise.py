"""Chat files of the built-in world and of own worlds; what a world does wrong is named."""

import json

import pytest

from linnet.core.errors import UserError
from linnet.data.conversations import read_conversations
from linnet.data.preferences import read_preferences
from linnet.data.prompts import read_prompts
from linnet.data.synthesise import checked_prompt, synthesise

WORLD = """
from itertools import count

def examples(seed, split):
    for number in {numbers}:
        yield {{"messages": [{{"role": "user", "content": f"{{split}} {{seed}}: {{number}} + 1?"}},
                             {{"role": "assistant", "content": str(number + {added})}}],
                "checker": {{"kind": "number", "value": number + 1}}, "type": "sums"}}
"""


def world(tmp_path, numbers="count()", added=1, text=None):
    path = tmp_path / "world.py"
    path.write_text(WORLD.format(numbers=numbers, added=added) if text is None else text)
    return str(path)


def test_stories_become_conversations_and_prompts(tmp_path):
    out = tmp_path / "chat.jsonl"
    report = synthesise("stories", out, 24, seed=1)
    assert report.count == 24 and len(report.examples) == 12 and set(report.examples.values()) == {2}
    conversations, prompts = list(read_conversations(out)), list(read_prompts(out))
    assert len(conversations) == len(prompts) == 24
    for conversation, prompt in zip(conversations, prompts, strict=True):
        assert conversation.messages[: -3 if prompt.tool_rounds else -1] == prompt.messages
        assert prompt.checker.passes(conversation.messages[-1].content)
    again = tmp_path / "again.jsonl"
    synthesise("stories", again, 24, seed=1)
    assert again.read_bytes() == out.read_bytes()


def test_kind_and_split_have_their_effect(tmp_path):
    out = tmp_path / "chat.jsonl"
    assert synthesise("stories", out, 5, split="validation", kinds=["retell", "order"]).examples == {
        "order": 2,
        "retell": 3,
    }
    assert {json.loads(line)["split"] for line in out.read_text().splitlines()} == {"validation"}


def test_an_own_world(tmp_path):
    out = tmp_path / "chat.jsonl"
    report = synthesise(world(tmp_path), out, 3, seed=7, split="exam")
    assert report.to_dict()["examples"] == {"sums": 3}
    assert [one.messages[0].content for one in read_prompts(out)] == [f"exam 7: {n} + 1?" for n in range(3)]


def test_repeats_are_left_out_and_a_short_world_is_told(tmp_path):
    out = tmp_path / "chat.jsonl"
    report = synthesise(world(tmp_path, "[1, 2, 1, 3, 3]"), out, 10)
    assert (report.count, report.repeats) == (3, 2)
    assert "3 examples. 2 repeated prompts left out. " in report.tables()[0].meaning
    assert "10 were asked for" in report.tables()[0].meaning
    report = synthesise(world(tmp_path, "(number % 4 for number in count())"), out, 10, overwrite=True)
    assert (report.count, report.repeats) == (4, 1000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", "no function examples"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def examples(seed, split):\n    yield 3", "example 0: 3: expected a dict"),
        ("def examples(seed, split):\n    yield {'messages': {1}}", "example 0: not plain data"),
        ("def examples(seed, split):\n    yield {'prompt': 'a'}", "example 0: field 'checker': missing"),
        ("def examples(seed, split):\n    return iter(())", "its examples end at once"),
        (WORLD.format(numbers="[1]", added=2), "field 'checker': the reference answer '3' does not pass it"),
    ],
    ids=["function", "crash", "row", "plain", "prompt", "empty", "reference"],
)
def test_what_a_world_does_wrong_is_named_and_nothing_is_written(tmp_path, text, expected):
    out = tmp_path / "chat.jsonl"
    with pytest.raises(UserError) as caught:
        synthesise(world(tmp_path, text=text), out, 3)
    assert expected in str(caught.value) and "world.py" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["world.py"]


def test_arguments_are_checked(tmp_path):
    out = tmp_path / "chat.jsonl"
    for arguments, expected in (
        (("stories", tmp_path / "chat.txt", 1), "ends in .jsonl"),
        (("storys", out, 1), "world: storys: expected stories, or a Python file"),
        ((str(tmp_path / "no.py"), out, 1), "no such file"),
        ((world(tmp_path), out, 1, 0, "train", ["retell"]), "goes with the world stories"),
    ):
        with pytest.raises(UserError, match=expected):
            synthesise(*arguments)
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        synthesise("stories", out, 1)
    assert out.read_text() == "mine"


def test_a_row_needs_a_reference():
    row = {"messages": [{"role": "user", "content": "a"}], "checker": {"kind": "exact", "answer": "b"}}
    with pytest.raises(UserError, match="the last is no answer"):
        checked_prompt(row, "row")


def test_pairs_have_the_reference_and_a_wrong_answer(tmp_path):
    out = tmp_path / "pairs.jsonl"
    synthesise("stories", out, 22, pairs=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    chat = tmp_path / "chat.jsonl"
    synthesise("stories", chat, 22)
    for pair, prompt in zip(rows, read_prompts(chat), strict=True):
        asked = pair["prompt"][: -2 if prompt.tool_rounds else None]  # both answers stand behind the result
        assert tuple(turn["content"] for turn in asked) == tuple(turn.content for turn in prompt.messages)
        assert prompt.checker.passes(pair["chosen"][0]["content"])
        assert not prompt.checker.passes(pair["rejected"][0]["content"])
    assert len(list(read_preferences(out))) == 22


@pytest.mark.parametrize(
    ("rejected", "expected"), [("", "field 'rejected': missing"), ("'rejected': '2', ", "'2' passes the checker")]
)
def test_a_pair_needs_a_wrong_answer(tmp_path, rejected, expected):
    row = f"{{{rejected}'prompt': '1 + 1?', 'answer': '2'}}"
    path = world(tmp_path, text=f"def examples(seed, split):\n    yield {row}")
    with pytest.raises(UserError, match=expected):
        synthesise(path, tmp_path / "pairs.jsonl", 1, pairs=True)
