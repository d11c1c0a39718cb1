"""Conversations in files of JSON lines: three formats, each known by its fields, read into one type.

    {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}      OpenAI, Transformers
    {"instruction": "...", "input": "...", "output": "...", "system": "..."}     Alpaca; input and system may be absent
    {"conversations": [{"from": "human", "value": "..."}, ...]}                  ShareGPT

A line that has the fields of none, or a message that is not whole, is a `UserError` that names file, line, field and
value.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from linnet.core.errors import UserError
from linnet.data.readers import decompressed, format_of, lines_of, valid
from linnet.data.sources import open_source
from linnet.present.progress import Advance

ASSISTANT = "assistant"
Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "model": ASSISTANT,
    "assistant": ASSISTANT,
    "function_call": ASSISTANT,
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""What the sender of a ShareGPT message is called here."""

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ChatTurn:
    """One message. others: what else the template may read, such as `tool_calls` or `name`; passed through."""

    role: str
    content: str | None
    others: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The message as a chat template reads it."""
        return {"role": self.role, "content": self.content, **self.others}


@dataclass(frozen=True)
class ChatConversation:
    """The messages of one line, in order. variables: what else the template reads (`tools`).

    place: file and line, for messages.
    """

    messages: tuple[ChatTurn, ...]
    place: str
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[int, ...]:
        """The numbers of the messages that a model is trained to write."""
        return tuple(number for number, turn in enumerate(self.messages) if turn.role == ASSISTANT)


def read_conversations(path: str | Path, advance: Advance = lambda *_: None) -> Iterator[ChatConversation]:
    """Read a .jsonl file of conversations, which may be compressed, as a stream.

    advance: gets the number of bytes that were read. `UserError` names the file, the line and the field of what is
    wrong, and a file without any conversation.
    """
    for place, line in read_objects(path, "conversations", _EXAMPLE, advance):
        yield parse_conversation(line, place)


def read_objects(path: str | Path, what: str, example: str, advance: Advance) -> Iterator[tuple[str, str]]:
    """The lines of a .jsonl file, each behind its place; `UserError` for a file of another kind, or without lines.

    what: what the lines are, in errors.
    """
    path = Path(path)
    kind, compression = format_of(path)
    if kind != "jsonl":
        raise UserError(f"{path}: not a file of {what}; expected .jsonl, one {what.removesuffix('s')} a line")
    found = False
    with open_source(path) as handle, decompressed(handle, compression, str(path)) as content:
        position = 0
        for place, line in lines_of(content, str(path)):
            advance(handle.tell() - position)
            position = handle.tell()
            yield place, valid(line)
            found = True
    if not found:
        raise UserError(f"{path}: no {what}; expected lines like {example}")


_EXAMPLE = json.dumps({"messages": [{"role": "user", "content": "..."}, {"role": ASSISTANT, "content": "..."}]})


def parse_conversation(line: str, place: str) -> ChatConversation:
    """Read a conversation from the JSON text of one line; `place` names the line in errors."""
    row = parse_object(line, place, _EXAMPLE)
    formats = [name for name in _FORMATS if name in row]
    if len(formats) != 1:
        names = ", ".join(map(repr, _FORMATS))
        problem = f"fields {', '.join(map(repr, row)) or 'none'}" if not formats else " and ".join(map(repr, formats))
        raise UserError(f"{place}: {problem}: expected exactly one of {names}")
    turns = _FORMATS[formats[0]](row, place)
    if not any(turn.role == ASSISTANT for turn in turns):
        raise UserError(f"{place}: field {formats[0]!r}: no message of the assistant; expected at least one answer")
    return ChatConversation(turns, place, parse_variables(row, place))


def parse_object(line: str, place: str, example: str) -> dict[str, Any]:
    """Read one JSON object; `UserError` shows an `example` where the line is none."""
    try:
        row = json.loads(line)
        line.encode()
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", "nesting beyond limits")
        raise UserError(f"{place}: not valid JSON ({reason}); expected an object, {example}") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: {_shown(row)}: expected a JSON object, {example}")
    return row


def parse_messages(row: dict[str, Any], place: str, field: str = "messages") -> tuple[ChatTurn, ...]:
    """The messages of a field of a row, in order."""
    turns = []
    for name, message in _objects(row, field, place):
        role = text_field(message, "role", name, place)
        if role not in ROLES:
            raise UserError(f"{place}: {name}.role: {_shown(role)}: expected one of {', '.join(ROLES)}")
        others = {key: value for key, value in message.items() if key not in ("role", "content")}
        is_call = role == ASSISTANT and bool(message.get("tool_calls"))
        content = None if is_call and message.get("content") is None else _content(message, name, place)
        if role == ASSISTANT and not content and not is_call:
            raise UserError(f"{place}: {name}.content: empty; expected an answer")
        turns.append(ChatTurn(role, content, others))
    return tuple(turns)


def _content(message: Mapping[str, Any], name: str, place: str) -> str:
    """The text of a message: a string, or the parts of type `text` of a list, as OpenAI writes them."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return text_field(message, "content", name, place)
    texts = []
    for number, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != "text":
            accepted = '{"type": "text", "text": "..."}'
            raise UserError(f"{place}: {name}.content.{number}: {_shown(part)}: expected {accepted}")
        texts.append(text_field(part, "text", f"{name}.content.{number}", place))
    return "".join(texts)


def _instruction(row: dict[str, Any], place: str) -> tuple[ChatTurn, ...]:
    """Alpaca: the input, if there is one, follows the instruction behind an empty line."""
    question = text_field(row, "instruction", "", place)
    answer = text_field(row, "output", "", place)
    if not question or not answer:
        raise UserError(f"{place}: field {'output' if question else 'instruction'!r}: empty; expected some text")
    if row.get("input"):
        question = f"{question}\n\n{text_field(row, 'input', '', place)}"
    system = [ChatTurn("system", text_field(row, "system", "", place))] if row.get("system") else []
    return (*system, ChatTurn("user", question), ChatTurn(ASSISTANT, answer))


def _sharegpt(row: dict[str, Any], place: str) -> tuple[ChatTurn, ...]:
    turns = [ChatTurn("system", text_field(row, "system", "", place))] if row.get("system") else []
    for name, message in _objects(row, "conversations", place):
        sender = text_field(message, "from", name, place)
        if sender not in SHAREGPT_ROLES:
            raise UserError(f"{place}: {name}.from: {_shown(sender)}: expected one of {', '.join(SHAREGPT_ROLES)}")
        content = text_field(message, "value", name, place)
        if SHAREGPT_ROLES[sender] == ASSISTANT and not content:
            raise UserError(f"{place}: {name}.value: empty; expected an answer")
        turns.append(ChatTurn(SHAREGPT_ROLES[sender], content))
    return tuple(turns)


_FORMATS: dict[str, Callable[[dict[str, Any], str], tuple[ChatTurn, ...]]] = {
    "messages": parse_messages,
    "instruction": _instruction,
    "conversations": _sharegpt,
}
"""The field by which each format is known, and what reads it."""


def parse_variables(row: dict[str, Any], place: str) -> dict[str, Any]:
    """What the template reads beside the messages: `tools`, a list or its JSON text."""
    tools = row.get("tools")
    if isinstance(tools, str) and tools:
        try:
            tools = json.loads(tools)
        except ValueError:
            raise UserError(f"{place}: field 'tools': {_shown(tools)}: expected a list, or one as JSON text") from None
    if tools and not isinstance(tools, list):
        raise UserError(f"{place}: field 'tools': {_shown(tools)}: expected a list of tools")
    return {"tools": tools} if tools else {}


def _objects(row: Mapping[str, Any], name: str, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list that is not empty, each behind its path, `messages.0`."""
    items = row[name]
    if not isinstance(items, list) or not items:
        raise UserError(f"{place}: field {name!r}: {_shown(items)}: expected a list of messages")
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise UserError(f"{place}: {name}.{number}: {_shown(item)}: expected an object")
        yield f"{name}.{number}", item


def text_field(row: Mapping[str, Any], key: str, parent: str, place: str) -> str:
    """The text of a field. parent: the path of what has it, `messages.0`; empty for the row itself."""
    path = f"{parent}.{key}" if parent else f"field {key!r}"
    if key not in row:
        raise UserError(f"{place}: {path}: missing; there is {', '.join(map(repr, row)) or 'nothing'}")
    value = row[key]
    if not isinstance(value, str):
        raise UserError(f"{place}: {path}: {_shown(value)}: expected a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: {path}: holds half of a surrogate pair, which is not Unicode text") from None
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
