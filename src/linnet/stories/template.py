"""The phrasing language: English with slots, compiled once.

`"{giver} gave {item} to {receiver.him}."` names the fields of an event (or the roles of the stage) in braces; after the
point stands the form in which to refer to it (`reference`). A template may hold several sentences; the compiler marks
where one ends outside quotation marks, because pronouns are decided sentence by sentence.
"""

import re
from dataclasses import dataclass
from functools import cache

_SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_SENTENCE_END = re.compile(r'\.(?:"? )|[!?] |[!?]" (?=[A-Z])')


@dataclass(frozen=True)
class Slot:
    """A place to fill.

    `starts`: its text begins a sentence or a quotation and takes a capital. `spoken`: it stands inside a quotation.
    """

    role: str
    form: str
    starts: bool
    spoken: bool


@dataclass(frozen=True)
class SentenceBreak:
    """The point between two sentences of one template."""


BREAK = SentenceBreak()
Part = str | Slot | SentenceBreak


@cache
def compiled(text: str) -> tuple[Part, ...]:
    """The parts of a template: literal text, slots, and breaks between sentences."""
    parts: list[Part] = []
    end = 0
    for match in _SLOT.finditer(text):
        parts += _literal_parts(text, end, match.start())
        before = text[: match.start()]
        parts.append(Slot(match[1], match[2] or "", _begins_sentence(before), before.count('"') % 2 == 1))
        end = match.end()
    return (*parts, *_literal_parts(text, end, len(text)))


def _literal_parts(text: str, start: int, end: int) -> list[Part]:
    parts: list[Part] = []
    for match in _SENTENCE_END.finditer(text, start, end):
        if text.count('"', 0, match.end()) % 2 == 0:
            parts += [text[start : match.end()], BREAK]
            start = match.end()
    return [*parts, text[start:end]] if start < end else parts


def _begins_sentence(before: str) -> bool:
    opens_quotation = before.endswith('"') and before.count('"') % 2 == 1
    return opens_quotation or before.endswith((". ", "! ", "? ", '." '))
