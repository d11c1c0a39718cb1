"""What SentencePiece makes of a text before it is cut into pieces."""

import re
from collections.abc import Collection, Iterable

from linnet.data.sentencepiece.charsmap import Charsmap

SPACE = "▁"
_MEMORY = 1 << 16
_LONGEST_KNOWN_RUN = 16


class Normalizer:
    """Replaces characters by a charsmap's rules, mends spaces, and writes each space as `▁`.

    `symbols`: the model's user-defined pieces, which no rule changes. `dummy_prefix`: a space is put in front of every
    text that is not empty. `collapse`: spaces at either end go, and several in a row become one; so rules and symbols
    with two spaces in a row are not provided for.
    """

    def __init__(self, charsmap: Charsmap | None, symbols: Iterable[str], dummy_prefix: bool, collapse: bool) -> None:
        self._rules = _Rules(charsmap, symbols) if charsmap else None
        self._dummy_prefix = dummy_prefix
        self._collapse = collapse

    def normalize(self, text: str) -> str:
        """The text that the pieces spell."""
        if not text:
            return ""
        if self._rules:
            text = self._rules.apply(text)
        if self._collapse:
            text = re.sub(" {2,}", " ", text).removeprefix(" ")
        text = SPACE * self._dummy_prefix + text.replace(" ", SPACE)
        return text.rstrip(SPACE) if self._collapse else text


class _Rules:
    """From left to right: a symbol stays as it is, else the longest key is replaced, else a character is kept.

    A run is a character and the followers behind it. No key or symbol reaches from one run into the next, so each run
    is replaced by itself; most are one character that no rule changes.
    """

    def __init__(self, charsmap: Charsmap, symbols: Iterable[str]) -> None:
        self._charsmap = charsmap
        self._symbols = sorted(symbols, key=len, reverse=True)
        if not any(map(self._can_differ, self._symbols)):
            self._symbols = []
        self._followers = _any_of(charsmap.followers.union(*(symbol[1:] for symbol in self._symbols)))
        self._singles = _any_of(charsmap.singles)
        self._known: dict[str, str] = {}

    def apply(self, text: str) -> str:
        """The text with all rules applied."""
        parts, done = [], 0
        for match in self._followers.finditer(text):
            start = max(match.start() - 1, 0)
            parts += [self._singles.sub(self._matched, text[done:start]), self._run(text[start : match.end()])]
            done = match.end()
        return "".join([*parts, self._singles.sub(self._matched, text[done:])])

    def _can_differ(self, symbol: str) -> bool:
        """Whether it matters that no rule applies within this symbol, or from its end on."""
        changing = self._charsmap.singles | self._charsmap.followers
        ends = (symbol[-1] + follower for follower in self._charsmap.followers)
        return not changing.isdisjoint(symbol) or any(self._charsmap.longest(end, 0) for end in ends)

    def _matched(self, match: re.Match[str]) -> str:
        return self._run(match[0])

    def _run(self, run: str) -> str:
        if len(run) > _LONGEST_KNOWN_RUN:
            return self._replaced(run)
        if (known := self._known.get(run)) is None:
            if len(self._known) >= _MEMORY:
                self._known.clear()
            known = self._known[run] = self._replaced(run)
        return known

    def _replaced(self, run: str) -> str:
        parts, start = [], 0
        while start < len(run):
            symbol = next((symbol for symbol in self._symbols if run.startswith(symbol, start)), "")
            found = None if symbol else self._charsmap.longest(run, start)
            end, part = found or (start + max(len(symbol), 1), symbol or run[start])
            parts.append(part)
            start = end
        return "".join(parts)


def _any_of(characters: Collection[str]) -> re.Pattern[str]:
    """Matches one or more of the characters, and perhaps others beyond U+FFFF, for which `re` has no fast table."""
    near = "".join(re.escape(character) for character in sorted(characters) if character <= "\uffff")
    far = "\U00010000-\U0010ffff" if any(character > "\uffff" for character in characters) else ""
    return re.compile(f"[{near}{far}]+" if characters else r"(?!)")
