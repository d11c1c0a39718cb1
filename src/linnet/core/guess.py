"""What somebody who misspelt a name probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean NAME?` where a known name is close to the word; else what is said `otherwise`."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise
