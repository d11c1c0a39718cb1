"""A report on a terminal, of whatever width."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from linnet.core.text import printable
from linnet.present.report import Commands, Part, Passage, Report
from linnet.present.table import Table, table_lines

ENDLESS_WIDTH, WIDEST_PROSE = 1000, 100
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def width_of_terminal() -> int:
    """In columns; what goes into a pipe or a file has room for every table."""
    return shutil.get_terminal_size((ENDLESS_WIDTH, 24)).columns


def report_text(report: Report, width: int, styled: bool = False) -> str:
    """Everything but pictures and what goes with them. `styled`: for a terminal, that knows bold and dim."""
    head = printable(": ".join([report.title, *report.facts.values()]))
    lines = [*_prose(head, width), *parts_lines(report.parts, width, styled)]
    if report.conclusion:
        lines += ["", *_prose(report.conclusion, width)]
    return "".join(f"{line}\n" for line in lines)


def parts_lines(parts: Sequence[Part], width: int, styled: bool = False) -> Iterator[str]:
    """Tables, passages and commands, an empty line before each."""
    for part in parts:
        match part:
            case Table():
                yield from ["", *_table(part, width, styled)]
            case Passage():
                yield from ["", *_passage(part, width, styled)]
            case Commands():
                yield from ["", *_commands(part, styled)]


def _table(table: Table, width: int, styled: bool) -> Iterator[str]:
    for line in _prose(table.title, width):
        yield _marked(line, BOLD, styled)
    yield from table_lines(table, width)
    for line in _prose(table.meaning, width):
        yield _marked(line, DIM, styled)


def _passage(passage: Passage, width: int, styled: bool) -> Iterator[str]:
    width = WIDEST_PROSE if width == ENDLESS_WIDTH else width
    rule = "─" * max(0, width - len(passage.title) - 1)
    yield f"{_marked(passage.title, BOLD, styled)} {rule}"
    begun = len(printable(passage.prompt))
    for line in printable(passage.prompt + passage.text.rstrip()).split("\n"):
        for part in textwrap.wrap(line, width - 4, drop_whitespace=True) or [""]:
            bold = min(begun, len(part))
            yield f"  {_marked(part[:bold], BOLD, styled)}{part[bold:]}" if part else ""
            begun = max(0, begun - len(part) - 1)


def _commands(commands: Commands, styled: bool) -> Iterator[str]:
    yield _marked(commands.title, BOLD, styled)
    for purpose, lines in commands.lines.items():
        yield purpose
        yield from (f"  {line}" for line in lines)  # never folded: they are there to be copied


def _prose(text: str, width: int) -> list[str]:
    room = min(width, WIDEST_PROSE)
    return [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
    ]


def _marked(text: str, mark: str, styled: bool) -> str:
    return f"{mark}{text}{PLAIN}" if styled and text else text
