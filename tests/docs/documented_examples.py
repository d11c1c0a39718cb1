"""The examples of the documentation: every shell and Python block of its pages, and every `Example:` of a help text.

They are found, so a new page, block or example is taken in by itself.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnet.cli.main import VERBS, load_verb

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"bash", "python", "yaml", "json", "text"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language (None where it has none), its text, and where it stands."""

    page: Path
    line: int
    language: str | None
    text: str

    @property
    def origin(self) -> str:
        """`docs/training.md:12`."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, without comments; a line that ends in a backslash goes on."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(line.split()) for line in map(_without_comment, lines) if line]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    found = re.finditer(r"^```(\S*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(page, 1 + text.count("\n", 0, match.start()), match[1] or None, match[2]) for match in found]


def executable(page: Path) -> list[Block]:
    """Those that a reader would type."""
    return [block for block in blocks(page) if block.language in ("bash", "python")]


def help_examples() -> Iterator[str]:
    """The command line of every `Example:`, each once."""
    texts = [command.help or "" for verb in VERBS for command in _commands(load_verb(verb))]
    yield from dict.fromkeys(" ".join(line.split()) for text in texts for line in re.findall(r"Example: (.*)", text))


def _commands(command: Any) -> list[Any]:
    return [command, *getattr(command, "commands", {}).values()]


def _without_comment(line: str) -> str:
    """`linnet spec list  # all of them` without what follows the `#`; one within quotes stays."""
    words = shlex.shlex(line, posix=False, punctuation_chars=False)
    words.whitespace_split, words.commenters = True, "#"
    return " ".join(words)
