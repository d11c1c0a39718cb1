"""Conversations of three formats become one type; what is not whole is named with its place."""

import gzip
import json

import pytest

from linnet.core.errors import UserError
from linnet.data.conversations import ChatTurn, parse_conversation, read_conversations

QUESTION, ANSWER = ChatTurn("user", "Who sang?"), ChatTurn("assistant", "The bird.")
SYSTEM = ChatTurn("system", "Be brief.")
TOOLS = [{"type": "function", "function": {"name": "sum"}}]
ROWS = {
    "messages": {"messages": [SYSTEM.as_dict(), QUESTION.as_dict(), ANSWER.as_dict()], "tools": TOOLS},
    "instruction": {"instruction": "Who sang?", "input": "", "output": "The bird.", "system": "Be brief."},
    "conversations": {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Who sang?"},
            {"from": "gpt", "value": "The bird."},
        ],
        "tools": json.dumps(TOOLS),
    },
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_format_gives_the_same_messages(name):
    found = parse_conversation(json.dumps(ROWS[name]), "f.jsonl, line 1")
    assert found.messages == (SYSTEM, QUESTION, ANSWER)
    assert found.answers == (2,)
    assert found.variables == ({} if name == "instruction" else {"tools": TOOLS})


def test_an_input_follows_its_instruction():
    row = {"instruction": "Translate.", "input": "Haus", "output": "house"}
    assert parse_conversation(json.dumps(row), "f").messages[0] == ChatTurn("user", "Translate.\n\nHaus")


def test_calls_of_tools_and_parts_of_text_pass_through():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    parts = {"role": "tool", "name": "sum", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    found = parse_conversation(json.dumps({"messages": [QUESTION.as_dict(), call, parts]}), "f")
    assert found.messages[1].as_dict() == call
    assert found.messages[2].as_dict() == {"role": "tool", "name": "sum", "content": "ab"}


def message(**fields):
    return {"messages": [{"role": "user", "content": "hi"}, fields]}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (message(role="bot", content="hi"), 'messages.1.role: "bot": expected one of system, developer, user'),
        (message(role="assistant", content=3), "messages.1.content: 3: expected a text"),
        (message(role="assistant", content=""), "messages.1.content: empty; expected an answer"),
        (message(role="assistant"), "messages.1.content: missing; there is 'role'"),
        (message(role="assistant", content=[{"type": "image"}]), 'messages.1.content.0: {"type": "image"}'),
        (message(role="user", content="there"), "no message of the assistant"),
        ({"messages": []}, "field 'messages': []: expected a list of messages"),
        ({"messages": ["hi"]}, 'messages.0: "hi": expected an object'),
        ({"conversations": [{"from": "cat", "value": "hi"}]}, 'conversations.0.from: "cat": expected one of'),
        ({"conversations": [{"from": "gpt", "value": ""}]}, "conversations.0.value: empty"),
        ({"instruction": "hi", "output": ""}, "field 'output': empty"),
        ({"instruction": "hi"}, "field 'output': missing"),
        ({"instruction": "a\ud800", "output": "b"}, "field 'instruction': holds half of a surrogate pair"),
        ({"text": "hi"}, "fields 'text': expected exactly one of 'messages', 'instruction', 'conversations'"),
        ({"messages": [], "instruction": "hi"}, "'messages' and 'instruction': expected exactly one"),
        ({**ROWS["messages"], "tools": "sum"}, "field 'tools': \"sum\": expected a list"),
        ([], "[]: expected a JSON object"),
    ],
    ids=str,
)
def test_a_broken_line_is_named(row, expected):
    with pytest.raises(UserError) as raised:
        parse_conversation(json.dumps(row), "f.jsonl, line 7")
    assert str(raised.value).startswith("f.jsonl, line 7: ") and expected in str(raised.value)


def test_a_file_is_read_with_its_bytes_counted(tmp_path):
    path = tmp_path / "chat.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(ROWS[name]) for name in sorted(ROWS)).encode()))
    steps = []
    found = list(read_conversations(path, steps.append))
    assert [each.place for each in found] == [f"{path}, line {number}" for number in (1, 2, 3)]
    assert sum(steps) == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", "\n", "no conversations; expected lines like"),
        ("a.txt", "hi", "expected .jsonl"),
        ("a.jsonl", "{", "line 1: not valid JSON .*; expected an object, .*messages"),
    ],
)
def test_a_file_without_conversations(tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=expected):
        list(read_conversations(tmp_path / name))
