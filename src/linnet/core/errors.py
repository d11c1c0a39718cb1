"""The one error that a user can cause, and how one is told that the machine causes."""

import re
from collections.abc import Mapping
from types import MappingProxyType

NAMED = re.compile(r"`([a-z_]+)`")
"""How a message names another field."""


class UserError(ValueError):
    """A mistake in what the user gave: one line that names file or field and value, and what would be accepted.

    field: as Python's functions and YAML files name it. value: what was given. accepted: what would be, in words.
    problem: all else, in words; another field stands in backticks there. The line is made of the four. The command line
    prints it, with its options in the place of fields, without a traceback, and exits with code 2.
    """

    def __init__(
        self, problem: str = "", *, field: str | None = None, value: object = None, accepted: str | None = None
    ) -> None:
        self.problem, self.field, self.value, self.accepted = problem, field, value, accepted
        super().__init__(self.said())

    def said(self, options: Mapping[str, str] = MappingProxyType({})) -> str:
        """The line, with other names for fields where `options` has one: `{"calibrate_on": "--calibrate-on"}`."""
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


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was too little: PyTorch says it in words, what a GPU raises with a class of its own, and so does
    the loader of a library's code.
    """
    if not isinstance(error, MemoryError | RuntimeError | ImportError):
        return False
    return (
        isinstance(error, MemoryError)
        or re.search(r"out of memory|allocate memory|failed to map segment", str(error)) is not None
    )
