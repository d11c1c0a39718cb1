"""Instructions made by a world: the built-in stories, or a Python file of the user, written as a chat file.

An own world is a Python file with a function

    def examples(seed, split):
        yield {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
               "checker": {"kind": "number", "value": 4}, "type": "sums"}

whose rows `data.prompts` reads. Each reference answer, the last message, is held to its own checker.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, cast

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError, one_line
from linnet.core.files import run_python_file
from linnet.data.conversations import ASSISTANT, parse_messages
from linnet.data.prompts import ChatPrompt, prompt_of
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.present.result import Result
from linnet.present.table import Table
from linnet.stories.instructions import InstructionSplit, examples

STORIES = "stories"
FUNCTION = "examples"
REJECTED = "rejected"

MOST_REPEATS = 1000
"""Rows in a row with prompts that there are already; then a world is taken to have no others."""


@dataclass(frozen=True)
class SynthesisReport(Result):
    """What a world wrote. examples: rows by type. repeats: rows that were left out because their prompt had come.

    asked: the rows that were asked for; a world that ends has fewer.
    """

    world: str
    out: str
    asked: int
    examples: dict[str, int]
    repeats: int

    @property
    def count(self) -> int:
        """Rows that were written."""
        return sum(self.examples.values())

    def tables(self) -> list[Table]:
        rows = [(name or "(no type)", f"{count:,}") for name, count in self.examples.items()]
        note = f"{self.out}: {numbers.counted(self.count, 'example')}."
        if self.repeats:
            note += f" {numbers.counted(self.repeats, 'repeated prompt')} left out."
        if self.count < self.asked:
            note += f" The world has no more: {self.asked:,} were asked for."
        return [Table(f"world {self.world}", ("type", "examples"), rows, note)]

    def to_dict(self) -> dict[str, Any]:
        counts = {"asked": self.asked, "count": self.count, "repeats": self.repeats}
        return {"world": self.world, "out": self.out, **counts, "examples": self.examples}


def synthesise(
    world: str,
    out: str | Path,
    count: int,
    seed: int = 0,
    split: str = "train",
    kinds: Sequence[str] = (),
    overwrite: bool = False,
    pairs: bool = False,
) -> SynthesisReport:
    """Write `count` examples of a world into a .jsonl file, of different prompts.

    world: `stories`, or the path of a Python file. pairs: write preference pairs of the reference and a rejected
    answer. kinds: of the stories; all by default. `UserError` for a file that is there already, a world that is none,
    and a row that is no prompt or whose reference answer its checker fails.
    """
    out = Path(out)
    if out.suffix != ".jsonl":
        raise UserError(field="out", value=out, accepted="a file whose name ends in .jsonl")
    if out.exists() and not overwrite:
        raise UserError("exists already; `overwrite` replaces it", field="out", value=out)
    found, repeats = Counter[str](), [0]
    rows = _different(world_rows(world, seed, split, kinds), world, repeats)
    with (
        progress("writing", count, "examples") as advance,
        atomic_path(out) as target,
        target.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for prompt in islice(rows, count):
            row = preference_pair(prompt) if pairs else prompt.row
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            found[prompt.type] += 1
            advance(1)
        if not found:
            raise UserError(f"{world}: its examples end at once; expected at least one")
    return SynthesisReport(world, str(out), count, dict(sorted(found.items())), repeats[0])


def world_rows(world: str, seed: int, split: str, kinds: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a world; `UserError` for one that is none."""
    if world == STORIES:
        return examples(seed, cast(InstructionSplit, split), kinds)
    if not world.endswith(".py"):
        raise UserError(field="world", value=world, accepted=f"{STORIES}, or a Python file with a function {FUNCTION}")
    if kinds:
        raise UserError(f"goes with the world {STORIES}", field="kind", value=", ".join(kinds))
    return _own_rows(Path(world), seed, split)


def _own_rows(path: Path, seed: int, split: str) -> Iterator[dict[str, Any]]:
    """Run a Python file of the user, and its function."""
    if not path.is_file():
        raise UserError("no such file", field="world", value=path)
    function = run_python_file(path, "world").get(FUNCTION)
    if not callable(function):
        raise UserError(f"{path}: no function {FUNCTION}(seed, split)")
    try:
        yield from function(seed, split)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{path}: {type(error).__name__}: {one_line(str(error))}") from error


def _different(rows: Iterable[Any], world: str, repeats: list[int]) -> Iterator[ChatPrompt]:
    """The prompts of the rows, each prompt once; counts the others in `repeats`."""
    seen, in_a_row = set[bytes](), 0
    for number, row in enumerate(rows):
        prompt = checked_prompt(row, f"{world}, example {number}")
        turns = [turn.as_dict() for turn in prompt.messages]
        key = blake2b(json.dumps(turns, sort_keys=True).encode(), digest_size=16).digest()
        if key in seen:
            repeats[0] += 1
            in_a_row += 1
            if in_a_row >= MOST_REPEATS:
                return
            continue
        seen.add(key)
        in_a_row = 0
        yield prompt


def preference_pair(prompt: ChatPrompt) -> dict[str, Any]:
    """The prompt with its reference as the chosen answer; `UserError` without a rejected one that the checker fails."""
    rejected = prompt.row.get(REJECTED)
    if not isinstance(rejected, str) or not rejected:
        raise UserError(f"{prompt.place}: field {REJECTED!r}: missing; expected a wrong answer for the pair")
    if prompt.judged().passes(rejected):
        raise UserError(f"{prompt.place}: field {REJECTED!r}: {one_line(rejected, 80)!r} passes the checker")
    answers = {"chosen": prompt.reference, REJECTED: rejected}
    messages = {name: [{"role": ASSISTANT, "content": text}] for name, text in answers.items()}
    # A prompt with calls of tools ends before them; both answers stand behind them.
    turns = parse_messages(dict(prompt.row), prompt.place)[:-1] if prompt.tool_rounds else prompt.messages
    return {"prompt": [turn.as_dict() for turn in turns], **messages, **prompt.variables}


def checked_prompt(row: Any, place: str) -> ChatPrompt:
    """A row as a prompt; `UserError` if it is none, has no reference answer, or one that its checker fails."""
    if not isinstance(row, dict):
        raise UserError(f"{place}: {one_line(repr(row), 60)}: expected a dict with messages and a checker")
    try:
        json.dumps(row)
    except (TypeError, ValueError) as error:
        raise UserError(f"{place}: not plain data: {one_line(str(error))}") from None
    prompt = prompt_of(row, place)
    if prompt.reference is None:
        raise UserError(f"{place}: field 'messages': the last is no answer; expected one of the assistant")
    if not prompt.judged().passes(prompt.reference):
        shown = one_line(prompt.reference, 80)
        raise UserError(f"{place}: field 'checker': the reference answer {shown!r} does not pass it")
    return prompt
