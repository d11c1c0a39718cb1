"""Errors that a user can cause, and messages to the user: one printable line each."""

import difflib
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from numbers import Integral
from types import MappingProxyType
from typing import Any

LOG = logging.getLogger("linnet")
"""Without any logging configuration Python prints its warnings to the standard error."""

NAMED = re.compile(r"`([a-z_]+)`")
"""A field that is named in a message."""

MAX_LINE_CHARACTERS = 300
"""A longer message is cut in the middle; its beginning and end matter most."""


class UserError(ValueError):
    """A mistake in what the user gave. Its message is one line: field or file, value, problem, what is accepted.

    field: the field as Python functions and YAML files name it. value: what was given. accepted: what is expected.
    problem: everything else; it may name another field in backticks. The command line prints the line, with options in
    place of fields, without a traceback, and exits with code 2.
    """

    def __init__(
        self, problem: str = "", *, field: str | None = None, value: object = None, accepted: str | None = None
    ) -> None:
        self.problem, self.field, self.value, self.accepted = problem, field, value, accepted
        super().__init__(self.message())

    def message(self, options: Mapping[str, str] = MappingProxyType({})) -> str:
        """The line. options: command-line options by field, which replace it: `{"out": "--out"}`."""
        expected = f"expected {self.accepted}" if self.accepted else ""
        body = "; ".join(part for part in (self.problem, expected) if part)
        option = options.get(self.field or "")
        if self.field is None:
            lead = ""
        elif option is None:
            lead = f"{self.field}: " if self.value is None else f"{self.field}: {self.value}: "
        elif isinstance(self.value, bool):
            lead = f"{option if self.value else option.replace('--', '--no-', 1)}: "
        else:
            lead = f"{option}: " if self.value is None else f"{option} {self.value}: "
        line = " ".join(f"{lead}{body}".split())
        return NAMED.sub(lambda found: options.get(found[1], found[0]), line)


def check_whole(field: str, value: Any, least: int = 0, most: int | None = None, accepted: str = "") -> None:
    """`UserError` for what is no whole number from `least` to `most` (None: any), which truth values are not either."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_whole and least <= value and (most is None or value <= most)):
        bounds = f"at least {least}" if most is None else f"{least} to {most:,}"
        accepted = accepted or (bounds if is_whole else f"a whole number, {bounds}")
        raise UserError(field=field, value=one_line(repr(value), 80), accepted=accepted)


def check_kind(field: str, value: object, kind: type | tuple[type, ...], accepted: str) -> None:
    """`UserError` for a value of another type."""
    if not isinstance(value, kind):
        raise UserError(field=field, value=one_line(repr(value), 80), accepted=accepted)


def check_text(field: str, value: object, accepted: str = "a text") -> None:
    """`UserError` for what is no text."""
    check_kind(field, value, str, accepted)


def texts_of(field: str, value: Any) -> list[str]:
    """A text, or each of several, as a list; `UserError` for anything else."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    texts: list[str] = list(value) if several else [value]
    for text in texts:
        check_text(field, text, "a text, or a list of texts")
    return texts


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_out_of_memory(error: Exception) -> bool:
    """True if an error means that memory ran out.

    PyTorch says so in the message of a `RuntimeError`, the loader of a shared library in that of an `ImportError`.
    """
    if isinstance(error, RuntimeError | ImportError):
        return re.search(r"out of memory|allocate memory|failed to map segment", str(error)) is not None
    return isinstance(error, MemoryError)


def exceeds_memory(error: Exception) -> bool:
    """True if an error means that memory ran out, or that a tensor would have more elements than can be counted.

    PyTorch says the latter in the message of a `RuntimeError` or, for a size of more than 64 bits, a `TypeError`.
    """
    if isinstance(error, RuntimeError | TypeError) and "overflow" in str(error).lower():
        return True
    return isinstance(error, OverflowError) or is_out_of_memory(error)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean NAME?` if a known name is similar to a word that is unknown; else `otherwise`."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def printable(text: str) -> str:
    r"""Text with escapes (`\x1b`) in place of terminal control characters; new lines and tabs stay."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def one_line(text: str, most: int = MAX_LINE_CHARACTERS) -> str:
    """Printable text on one line of at most `most` characters."""
    line = printable(" ".join(text.split()))
    if len(line) <= most:
        return line
    end = most // 3
    return f"{line[: most - end - 3]} … {line[-end:]}"


@cache
def note(line: str) -> None:
    """Log a line that is no error but that a person should know; the same line only once per process."""
    LOG.warning("note: %s", one_line(line))


def print_error(line: str) -> None:
    """Print a line to the standard error; the standard output is for results."""
    print(printable(line), file=sys.stderr, flush=True)
