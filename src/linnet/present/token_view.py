"""A conversation as tokens, coloured by what a model is trained on: in the terminal, as plain text, as a page."""

import html
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from linnet.core.errors import printable
from linnet.core.files import write_text
from linnet.present import numbers
from linnet.present.page import CSS, POLICY
from linnet.present.show import write

BEGINS, ENDS = "[[", "]]"
"""What stands around trained tokens where there are no colours."""

_STYLES = ("black on green", "black on bright_green")
"""Of trained tokens, in turn, so that neighbours can be told apart."""

_PAGE_CSS = """
.tokens { white-space: pre-wrap; line-height: 1.9; font: .95rem/1.9 ui-monospace, Menlo, Consolas, monospace; }
.tokens span { border-radius: 3px; padding: 1px 0; box-shadow: inset 0 0 0 1px var(--rule); }
.tokens .trained { background: #2e9e5b; color: #ffffff; }
.tokens .torn { background: #c0392b; color: #ffffff; }
"""


@dataclass(frozen=True)
class ShownToken:
    """A token as it is shown. role: of the message that made it, `template` if none did; message: its number.

    is_torn: it lies across the border of a trained part.
    """

    token: int
    text: str
    role: str
    message: int | None
    is_trained: bool
    is_torn: bool = False


@dataclass(frozen=True)
class TokenView:
    """The tokens of one conversation. place: its file and line."""

    place: str
    tokens: Sequence[ShownToken]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {"place": self.place, **self.counts(), "tokens": [asdict(token) for token in self.tokens]}

    def counts(self) -> dict[str, int]:
        """How many tokens are trained on, and torn."""
        trained, torn = (sum(getattr(token, name) for token in self.tokens) for name in ("is_trained", "is_torn"))
        return {"trained": trained, "torn": torn}

    def summary(self) -> str:
        """One line of counts."""
        counts = self.counts()
        torn = f"; {counts['torn']:,} across the border of an answer, not trained on" if counts["torn"] else ""
        all_tokens = numbers.counted(len(self.tokens), "token")
        return f"{self.place}: {all_tokens}, {counts['trained']:,} of them trained on{torn}"

    def messages(self) -> Iterator[tuple[str, list[ShownToken]]]:
        """The tokens of each message behind a heading."""
        for (message, role), tokens in groupby(self.tokens, lambda token: (token.message, token.role)):
            group = list(tokens)
            trained = sum(token.is_trained for token in group)
            name = role if message is None else f"{role}, message {message}"
            yield f"{name}: {numbers.counted(len(group), 'token')}, {trained:,} trained", group


def write_terminal(view: TokenView) -> None:
    """Write a conversation to the standard output: colours on a terminal, else brackets around trained tokens."""
    write(f"{view.summary()}\n")
    if not sys.stdout.isatty():
        write(plain_text(view))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    for heading, tokens in view.messages():
        line = Text().append(f"\n{heading}\n", "bold")
        for number, token in enumerate(tokens):
            style = "white on red" if token.is_torn else _STYLES[number % 2] if token.is_trained else "dim"
            line.append(_visible(token.text), style)
        console.print(line)


def plain_text(view: TokenView) -> str:
    """A conversation without colours."""
    lines = []
    for heading, tokens in view.messages():
        runs = (
            (is_trained, "".join(_visible(token.text) for token in run))
            for is_trained, run in groupby(tokens, lambda token: token.is_trained)
        )
        text = "".join(f"{BEGINS}{text}{ENDS}" if is_trained else text for is_trained, text in runs)
        lines.append(f"\n{heading}\n{text}\n")
    return "".join(lines)


def write_token_page(view: TokenView, path: Path, command: str) -> None:
    """Write a conversation as one HTML file, atomically; pointing at a token shows its id. command: what made it."""
    parts = []
    for heading, tokens in view.messages():
        spans = "".join(map(_span, tokens))
        parts.append(f'<h2>{html.escape(heading)}</h2>\n<div class="card tokens">{spans}</div>')
    body = "\n".join(parts)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>linnet: a conversation as tokens</title>
<style>{CSS}{_PAGE_CSS}</style>
</head>
<body>
<main>
<h1>A conversation as tokens</h1>
<p class="soft">Made by <code>{html.escape(printable(command))}</code>.</p>
<p>{html.escape(printable(view.summary()))}. A model is trained to write what is green. What is red lies across the
border of an answer: no model that is asked can write it.</p>
{body}
</main>
</body>
</html>
"""
    write_text(path, page)


def _span(token: ShownToken) -> str:
    name = "torn" if token.is_torn else "trained" if token.is_trained else ""
    title = html.escape(f"{token.token} ({token.role})", quote=True)
    return f'<span class="{name}" title="{title}">{html.escape(_visible(token.text))}</span>'


def _visible(text: str) -> str:
    """The text with a sign before each line end, and escapes instead of control characters."""
    return "\n".join(printable(line) for line in text.replace("\n", "\u23ce\n").split("\n"))
