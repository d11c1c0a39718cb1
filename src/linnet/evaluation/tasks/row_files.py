"""Items from the rows of a JSON-lines file; a mistake in a row is a line that names file, line and field."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.data.sources import lines_of, open_source
from linnet.evaluation.tasks.items import TaskItem, one_hot
from linnet.evaluation.tasks.rows import Row, normalize_row

FIELD = re.compile(r"\{(\w+)\}")
"""In the frame of a context: the text of a row's field stands there."""


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """The JSON objects of a file, line by line, and what to call their place; `UserError` where there is none."""
    found = False
    with open_source(path) as handle:
        for place, line in lines_of(handle, str(path), lambda *_: None):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise UserError(f"{place}: not valid JSON; expected an object on each line") from None
            if not isinstance(row, dict):
                raise UserError(f"{place}: expected a JSON object")
            found = True
            yield place, row
    if not found:
        raise UserError(f"{path}: no rows; expected a JSON object on each line")


def parse_item(
    task: str, frame: str | None, row: Row, place: str, fixed_choices: Sequence[str] | None = None
) -> TaskItem:
    """The item of a row, plain or as the task's data set has it.

    frame: the context, with `{field}` for fields of the row; None where the row has `contexts`. fixed_choices: those
    of every row, where rows have none of their own.
    """
    try:
        plain = normalize_row(task, row)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{place}: not a row of {task} ({type(error).__name__}: {error})") from None
    if frame is None or "contexts" in plain:
        contexts = _texts(plain, "contexts", place)
        continuation = _text(plain, "continuation", place)
        return TaskItem.of_contexts(contexts, continuation, _labels(plain, len(contexts), place))
    choices = _texts(plain, "choices", place) if fixed_choices is None else fixed_choices
    names = FIELD.findall(frame)
    values = {name: _text(plain, name, place, least=0) for name in names}
    context = FIELD.sub(lambda found: values[found[1]], frame)
    own = " ".join(values[name] for name in names)
    return TaskItem.of_choices(context, choices, _labels(plain, len(choices), place), own)


def parse_minimal_pair(row: Row, place: str) -> TaskItem:
    """Two sentences, of which the first is the right one (BLiMP's rows); each behind the beginning of a document."""
    sentences = [_text(row, name, place) for name in ("sentence_good", "sentence_bad")]
    return TaskItem.of_choices("", sentences, [1, 0])


def _text(row: Row, field: str, place: str, least: int = 1) -> str:
    if field not in row:
        raise UserError(f"{place}: no field {field!r}; this line has {', '.join(map(repr, row)) or 'none'}")
    value = row[field]
    if not isinstance(value, str) or len(value) < least:
        raise UserError(f"{place}: {field}: {_short(value)}: expected a text")
    return value


def _texts(row: Row, field: str, place: str) -> list[str]:
    value = row.get(field)
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(text, str) and text for text in value):
        raise UserError(f"{place}: {field}: {_short(value)}: expected a list of at least two texts")
    return value


def _labels(row: Row, choices: int, place: str) -> list[int]:
    """1 for each right choice: from `labels`, or from `gold`, the number of the only one, counted from 0."""
    if "labels" in row:
        labels = row["labels"]
        if not isinstance(labels, list) or len(labels) != choices or any(label not in (0, 1) for label in labels):
            raise UserError(f"{place}: labels: {_short(labels)}: expected {choices} numbers, each 0 or 1")
        if not any(labels):
            raise UserError(f"{place}: labels: {_short(labels)}: expected a 1 for at least one right choice")
        return [int(label) for label in labels]
    gold = row.get("gold")
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < choices:
        raise UserError(f"{place}: gold: {_short(gold)}: expected a number from 0 to {choices - 1}")
    return one_hot(gold, choices)


def _short(value: Any, most: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"
