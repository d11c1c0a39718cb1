"""Text for people: nothing that a terminal obeys, and a line that stays one."""

MOST_CHARACTERS = 300
"""Of a line about a mistake: what is longer is cut in the middle, the beginning and the end say most."""


def printable(text: str) -> str:
    r"""Text with escapes (`\x1b`) for what a terminal might obey; new lines and tabs stay."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else _escaped(character) for character in text
    )


def one_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """Printable, on one line, of at most so many characters."""
    line = printable(" ".join(text.split()))
    if len(line) <= most:
        return line
    end = most // 3
    return f"{line[: most - end - 3]} … {line[-end:]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
