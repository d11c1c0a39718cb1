"""Writes the text of a story, sentence by sentence, from phrasings and the values that fill them."""

from collections.abc import Mapping
from random import Random

from linnet.stories.entities import Character
from linnet.stories.language import capitalized
from linnet.stories.reference import Referrer
from linnet.stories.template import Slot, compiled


class Narrator:
    """Keeps what has been written, in paragraphs, and what the reader therefore knows."""

    def __init__(self, rng: Random) -> None:
        self._referrer = Referrer(rng)
        self._paragraphs: list[list[str]] = [[]]

    @property
    def text(self) -> str:
        """The story: sentences separated by one space, paragraphs by one newline."""
        return "\n".join(" ".join(sentences) for sentences in self._paragraphs if sentences)

    @property
    def ends_in_quotation(self) -> bool:
        """Whether the paragraph so far ends with somebody's words."""
        return bool(self._paragraphs[-1]) and self._paragraphs[-1][-1].endswith('"')

    def paragraph(self) -> None:
        """Begin a new paragraph, in which everybody is named anew."""
        if self._paragraphs[-1]:
            self._paragraphs.append([])
            self._referrer.mentions.next_paragraph()

    def write(self, phrasing: str, fields: Mapping[str, object], roles: Mapping[str, object]) -> None:
        """Fill the slots of `phrasing` from the event's `fields`, else from the `roles`, and append the result."""
        self._referrer.mentions.next_sentence()
        words = []
        for part in compiled(phrasing):
            if isinstance(part, str):
                words.append(part)
            elif isinstance(part, Slot):
                value = fields[part.role] if part.role in fields else roles[part.role]
                words.append(self._filled(part, value))
            else:
                self._referrer.mentions.next_sentence()
        self._paragraphs[-1].append(capitalized("".join(words)))

    def _filled(self, slot: Slot, value: object) -> str:
        mentions = self._referrer.mentions
        was_mentioned = isinstance(value, Character) and mentions.current.get(value, False)
        text = self._referrer.refer(value, slot.form)
        if slot.spoken and isinstance(value, Character) and not was_mentioned:
            mentions.note_spoken(value)
        return capitalized(text) if slot.starts else text
