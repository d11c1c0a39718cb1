"""The result of a verb: the figures it found, and the tables, plots and texts that show them.

A verb returns one `Result`. `present.show` prints it as tables or JSON and writes it as a page; a result does not know
these forms.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from linnet.present.table import Table


class Drawing(Protocol):
    """A `Plot` or `HeatMaps`."""

    def figure(self) -> Any:
        """Return a Matplotlib `Figure`."""


@dataclass(frozen=True)
class Picture:
    """A drawing with a title and a caption that says what to look for. `name` is its file name without the suffix."""

    name: str
    title: str
    drawing: Drawing
    caption: str


@dataclass(frozen=True)
class Passage:
    """A generated text, shown verbatim with its prompt in bold. `color`: an index into the palette."""

    title: str
    prompt: str
    text: str
    color: int
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """A list of names with one value each; only pages show it."""

    title: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Commands:
    """Suggested command lines, grouped by their purpose."""

    title: str
    lines: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Paragraph:
    """A heading and a paragraph, either of which may be empty; only pages show it."""

    title: str
    text: str


Part = Table | Picture | Passage | Facts | Commands | Paragraph


class Result(ABC):
    """The base of every verb's result. Derived classes are frozen dataclasses of what was measured and on what."""

    def title(self) -> str:
        """Return the heading of the terminal output and the page; empty for tables without a heading."""
        return ""

    @abstractmethod
    def to_dict(self) -> Any:
        """Return all figures as plain data, which `--json` prints."""

    def facts(self) -> Mapping[str, str]:
        """Return what the result is about, such as the text that was read."""
        return {}

    def tables(self) -> Sequence[Part]:
        """Return the parts that both the terminal and the page show."""
        return ()

    def plots(self) -> Sequence[Picture]:
        """Return the pictures of the page; called only if a page is written."""
        return ()

    def page(self) -> Sequence[Part]:
        """Return all parts of the page in order."""
        return [*self.plots(), *self.tables()]

    def conclusion(self) -> str:
        """Return one line that follows from the figures, or an empty string."""
        return ""
