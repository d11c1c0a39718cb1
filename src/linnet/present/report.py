"""What was found, as parts of one answer: tables, pictures, passages, commands; for a terminal and for a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from linnet.present.table import Table


class Drawable(Protocol):
    """What can be drawn: a `Plot`, `HeatMaps`."""

    def figure(self) -> Any:
        """As Matplotlib's `Figure`."""


@dataclass(frozen=True)
class Picture:
    """`name` is its file's, without the suffix. `caption`: what can be seen, and what to look for."""

    name: str
    title: str
    drawing: Drawable
    caption: str


@dataclass(frozen=True)
class Passage:
    """A text as it was written, what was given at its beginning told apart. `color`: a number in the palette."""

    title: str
    prompt: str
    text: str
    color: int
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and what there is to say of each."""

    title: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Commands:
    """What can be done next: command lines by their purpose."""

    title: str
    lines: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Paragraph:
    """A heading and a paragraph, either of which may be empty."""

    title: str
    text: str


Part = Table | Picture | Passage | Facts | Commands | Paragraph


@dataclass(frozen=True)
class Report:
    """One answer. `facts`: what it is about; `command`: the line that made it; `conclusion`: what follows."""

    title: str
    facts: Mapping[str, str]
    parts: Sequence[Part]
    command: str
    conclusion: str = ""
    made: str = field(default_factory=lambda: datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"))
