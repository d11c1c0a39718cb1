"""Prompts whose answers can be judged, in files of JSON lines: each with a checker, or with the right answer.

    {"messages": [{"role": "user", "content": "..."}], "checker": {"kind": "number", "value": 7}, "type": "sums"}
    {"prompt": "...", "answer": "..."}

A last message of the assistant is the reference answer and not part of the prompt. Without a checker the answer is
compared as a text, or as a number if it is one (`data.checkers`). Rows whose answers something else judges, such as a
reward model, need neither. `type` is the name under which rows are counted.

With `tool_rounds` the calculator is run where the model calls it (`data.tools`), so often at most, and the checker
judges the answer behind that. The prompt then ends with the last message of the user; what follows in the row shows how
it may go on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.data.checkers import Checker, parse_checker
from linnet.data.conversations import (
    ASSISTANT,
    ChatTurn,
    parse_messages,
    parse_object,
    parse_variables,
    read_objects,
    text_field,
)
from linnet.data.tools import CALCULATOR_ALONE, Tools
from linnet.present.progress import Advance

CHECKER, REFERENCE, TYPE, TOOL_ROUNDS, CHANCE = "checker", "answer", "type", "tool_rounds", "chance"
MOST_ROUNDS = 100
_EXAMPLE = '{"messages": [...], "checker": {"kind": "exact", "answer": "..."}} or {"prompt": "...", "answer": "..."}'


@dataclass(frozen=True)
class ChatPrompt:
    """The messages before an answer, and the checker that judges it; None if the row has none.

    reference: an answer that the checker should pass; None if the row has none. type: the name under which rows are
    counted. variables: what else the template reads (`tools`). place: file and line, for messages. row: the whole line.
    tool_rounds: how often calls in answers are run.
    """

    messages: tuple[ChatTurn, ...]
    checker: Checker | None
    place: str
    reference: str | None = None
    type: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    tool_rounds: int = 0

    def continued(self, answer: str, tools: Tools = CALCULATOR_ALONE) -> "ChatPrompt | None":
        """The prompt behind an answer whose calls were run; None if it has none, or no further round is left."""
        results = tools.results(answer) if self.tool_rounds else []
        if not results:
            return None
        told = (ChatTurn("tool", each["content"], {"name": each["name"]}) for each in results)
        turns = (*self.messages, ChatTurn(ASSISTANT, answer), *told)
        return replace(self, messages=turns, tool_rounds=self.tool_rounds - 1)

    @property
    def chance(self) -> float:
        """The probability that a guess passes, which the row gives; 0 where it gives none."""
        value = self.row.get(CHANCE, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(f"{self.place}: field {CHANCE!r}: {value!r}: expected a number from 0 to 1")
        return float(value)

    @property
    def reference_passes(self) -> bool | None:
        """Whether the reference answer passes the checker; None without one of the two."""
        if self.reference is None or self.checker is None:
            return None
        return self.checker.passes(self.reference)

    def judged(self) -> Checker:
        """The checker; `UserError` if the row has none."""
        if self.checker is None:
            problem = f"field {CHECKER!r}: missing, and there is no answer to compare with"
            raise UserError(f"{self.place}: {problem}; one is required")
        return self.checker


def read_prompts(
    path: str | Path, advance: Advance = lambda *_: None, needs_checker: bool = True
) -> Iterator[ChatPrompt]:
    """Read a .jsonl file of prompts, which may be compressed, as a stream.

    advance: gets the number of bytes that were read. needs_checker: a row without a checker and without an answer is
    refused. `UserError` names the file, the line and the field of what is wrong, and a file without any prompt.
    """
    for place, line in read_objects(path, "prompts", _EXAMPLE, advance):
        yield parse_prompt(line, place, needs_checker)


def parse_prompt(line: str, place: str, needs_checker: bool = True) -> ChatPrompt:
    """Read a prompt from the JSON text of one line; `place` names the line in errors."""
    row = parse_object(line, place, _EXAMPLE)
    return prompt_of(row, place, needs_checker)


def prompt_of(row: dict[str, Any], place: str, needs_checker: bool = True) -> ChatPrompt:
    """Read a prompt from plain data."""
    if ("messages" in row) == ("prompt" in row):
        names = ", ".join(map(repr, row)) or "none"
        raise UserError(f"{place}: fields {names}: expected exactly one of 'messages' and 'prompt'")
    if "messages" in row:
        turns = parse_messages(row, place)
    else:
        turns = (ChatTurn("user", text_field(row, "prompt", "", place)),)
    reference = text_field(row, REFERENCE, "", place) if REFERENCE in row else None
    if turns[-1].role == ASSISTANT:
        reference = turns[-1].content if reference is None else reference
        turns = turns[:-1]
    rounds = _tool_rounds(row, place)
    while rounds and turns and turns[-1].role != "user":
        turns = turns[:-1]
    if not turns or turns[-1].role == ASSISTANT or not turns[-1].content:
        where = "messages" if "messages" in row else "prompt"
        raise UserError(f"{place}: field {where!r}: nothing to answer; expected a message before the answer")
    kind = text_field(row, TYPE, "", place) if TYPE in row else ""
    checker = _checker(row, reference, place)
    found = ChatPrompt(turns, checker, place, reference, kind, parse_variables(row, place), row, rounds)
    if needs_checker:
        found.judged()
    return found


def _tool_rounds(row: Mapping[str, Any], place: str) -> int:
    """How often calls in the answer are run; 0 where the row does not say."""
    rounds = row.get(TOOL_ROUNDS, 0)
    if type(rounds) is not int or not 0 <= rounds <= MOST_ROUNDS:
        raise UserError(f"{place}: field {TOOL_ROUNDS!r}: {rounds!r}: expected a number from 0 to {MOST_ROUNDS}")
    return rounds


def _checker(row: Mapping[str, Any], reference: str | None, place: str) -> Checker | None:
    """The checker of a row, or the comparison with its answer; None if it has neither."""
    if CHECKER in row:
        return parse_checker(row[CHECKER], place)
    if not reference or not reference.strip():
        return None
    try:
        number = float(reference.replace(",", ""))
        return parse_checker({"kind": "number", "value": number}, place)
    except ValueError:  # also a number that is not finite
        return parse_checker({"kind": "exact", "answer": reference}, place)
