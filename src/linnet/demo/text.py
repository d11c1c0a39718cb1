"""Text that comes from outside, made harmless for a terminal and for a page."""

import html


def printable(text: str) -> str:
    """Text with U+FFFD for what a terminal might obey: a model that has learned little writes any byte."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def escaped(text: str) -> str:
    """Printable text that a page shows and does not obey."""
    return html.escape(printable(text))
