"""Docstrings are plain text with `code` in backticks; this makes of it what Sphinx reads (reStructuredText).

An indented paragraph is shown as it stands. Lines `name: what it is`, each with its continuation indented, are a list.
`|`, `*` and `_` mean themselves.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

NAME = re.compile(r"`?(\w[\w., /()]*)`?: (?=\S)")
LINKED = re.compile(r"[A-Za-z_][\w.]*")
MARKS = re.compile(r"[*|\\]|_\b(?!\w)")


def plain(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText."""
    return [line for paragraph in paragraphs(lines) for line in (*rewritten(paragraph), "")]


def paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Lines between blank ones; indented paragraphs that follow one another are one."""
    found = [list(group) for filled, group in groupby(lines, key=lambda line: bool(line.strip())) if filled]
    for indented, group in groupby(found, key=_indented):
        parts = list(group)
        yield from [[line for part in parts for line in (*part, "")]] if indented else parts


def rewritten(paragraph: list[str]) -> Iterator[str]:
    """One paragraph."""
    if _indented(paragraph):
        yield from ("::", "", *paragraph)
    elif _is_list(paragraph):
        for line in paragraph:
            name = NAME.match(line)
            yield f"- ``{name[1]}``: {escaped(line[name.end() :])}" if name else f"  {escaped(line.strip())}"
    else:
        yield from map(escaped, paragraph)


def escaped(line: str) -> str:
    """Code in backticks may link to what it names; outside of it marks of reStructuredText mean themselves."""
    parts = re.split(r"`+([^`]*)`+", line)  # text, code, text, code, ...
    parts[::2] = [MARKS.sub(r"\\\g<0>", text) for text in parts[::2]]
    parts[1::2] = [f"`{code}`" if LINKED.fullmatch(code) else f"``{code}``" for code in parts[1::2]]
    return "".join(parts)


def _is_list(paragraph: list[str]) -> bool:
    """Two names, or one whose text goes on in an indented line."""
    items = [line[0] == " " or NAME.match(line) for line in paragraph]
    return len(items) > 1 and bool(NAME.match(paragraph[0])) and all(items)


def _indented(paragraph: list[str]) -> bool:
    return paragraph[0].startswith("  ")


def rewrite(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Called by autodoc for every docstring."""
    lines[:] = plain(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", rewrite)
    return {"parallel_read_safe": True}
