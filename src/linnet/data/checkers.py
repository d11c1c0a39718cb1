"""Checkers: descriptions, chosen by `kind`, of what an answer in text must be, and its score from 0 to 1.

    checker = parse_checker({"kind": "all", "checkers": [
        {"kind": "length", "unit": "words", "at_most": 5}, {"kind": "contains", "words": ["Lily"]}]}, "row 1")
    checker.score("Lily has the ball.")                                        # 1.0

Answers that are one text, one of several, or a number are compared after `normalised`. The other kinds are the
verifiable instructions of IFEval (Zhou et al. 2023, arXiv 2311.07911), except the language of an answer, which needs a
model to be recognised.
"""

import json
import math
import re
import unicodedata
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, model_validator

from linnet.core.spec import Spec

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip

_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s+[^a-z\s]|\s*$)")
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", re.DOTALL)


def normalised(text: str) -> str:
    """A short answer without what does not count.

    That is case, white space, the form of apostrophes, an article before it and punctuation around it.
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    text = " ".join(text.split()).strip(" .,;:!?\"'“”`*()[]")
    return re.sub(r"^(?:the|an?) (?=\w)", "", text)


def count_of(text: str, words: str) -> int:
    """How often a word or phrase occurs as such, whatever its case: `ball` is not in `balloon`."""
    before = r"(?<!\w)" if words[0].isalnum() else ""
    after = r"(?!\w)" if words[-1].isalnum() else ""
    phrase = r"\s+".join(map(re.escape, words.split())) or re.escape(words)
    return len(re.findall(before + phrase + after, text, re.IGNORECASE))


def last_number(text: str) -> float | None:
    """The last number in a text, in digits (`1,024.5`); without digits the last word from zero to twenty."""
    if found := _NUMBER.findall(text):
        return float(found[-1].replace(",", "").replace("−", "-"))
    words = [word for word in _WORD.findall(text.casefold()) if word in NUMBER_WORDS]
    return float(NUMBER_WORDS.index(words[-1])) if words else None


class Checker(Spec):
    """What an answer must be."""

    @abstractmethod
    def score(self, answer: str) -> float:
        """1 for an answer that is as described, 0 for another; `all` may give a share between them."""

    def passes(self, answer: str) -> bool:
        """True if nothing is missing."""
        return self.score(answer) == 1


class ExactAnswer(Checker):
    """The answer is this text, after `normalised`."""

    kind: Literal["exact"]
    answer: Text

    def score(self, answer: str) -> float:
        return float(bool(answer.strip()) and normalised(answer) == normalised(self.answer))


class OneOfAnswers(Checker):
    """The answer is one of these texts, after `normalised`."""

    kind: Literal["one_of"]
    answers: Texts

    def score(self, answer: str) -> float:
        return float(bool(answer.strip()) and normalised(answer) in map(normalised, self.answers))


class NumberAnswer(Checker):
    """The last number of the answer is `value`, up to `tolerance`."""

    kind: Literal["number"]
    value: FiniteFloat
    tolerance: float = Field(1e-6, ge=0)

    def score(self, answer: str) -> float:
        found = last_number(answer)
        return float(found is not None and abs(found - self.value) <= self.tolerance)


class _Bounds(Checker):
    """How often something occurs: between `at_least` and `at_most`; null: not looked at."""

    at_least: NonNegativeInt | None = None
    at_most: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _some_count_is_accepted(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least: missing, and so is at_most; one is required")
        if self.at_most is not None and (self.at_least or 0) > self.at_most:
            raise ValueError(f"at_least: {self.at_least}: must be at most at_most, {self.at_most}")
        return self

    def _within(self, count: int) -> bool:
        return (self.at_least or 0) <= count <= (math.inf if self.at_most is None else self.at_most)


class ContainsWords(_Bounds):
    """Each of the words or phrases occurs, at least once unless another number is given; any case."""

    kind: Literal["contains"]
    words: Texts
    at_least: NonNegativeInt | None = 1

    def score(self, answer: str) -> float:
        return float(all(self._within(count_of(answer, words)) for words in self.words))


class LacksWords(Checker):
    """None of the words or phrases occurs; any case. `[","]` forbids commas. An empty answer fails."""

    kind: Literal["lacks"]
    words: Texts

    def score(self, answer: str) -> float:
        return float(bool(answer.strip()) and not any(count_of(answer, words) for words in self.words))


class OrderedMentions(Checker):
    """Each of the words or phrases occurs, and their first mentions are in this order."""

    kind: Literal["order"]
    words: Texts

    def score(self, answer: str) -> float:
        places = [self._place(answer, words) for words in self.words]
        return float(min(places) >= 0 and places == sorted(places))

    @staticmethod
    def _place(answer: str, words: str) -> int:
        found = re.search(rf"(?<!\w){re.escape(words)}(?!\w)", answer, re.IGNORECASE)
        return -1 if found is None else found.start()


class LetterCount(_Bounds):
    """How often a letter occurs, in any case."""

    kind: Literal["letter"]
    letter: Annotated[str, Field(min_length=1, max_length=1)]

    def score(self, answer: str) -> float:
        return float(self._within(answer.casefold().count(self.letter.casefold())))


def _sentences(text: str) -> int:
    """A last sentence without its point counts as one; a list of lines has a sentence a line."""
    count = 0
    for line in text.split("\n"):
        ends = _SENTENCE_END.findall(line)
        tail = _SENTENCE_END.split(line)[-1]
        count += len(ends) + bool(_WORD.search(tail))
    return count


def _occurrences(pattern: str) -> Callable[[str], int]:
    return lambda text: len(re.findall(pattern, text, re.MULTILINE))


UNITS: dict[str, Callable[[str], int]] = {
    "words": lambda text: len(_WORD.findall(text)),
    "sentences": _sentences,
    "lines": lambda text: sum(bool(line.strip()) for line in text.split("\n")),
    "paragraphs": lambda text: sum(bool(part.strip()) for part in re.split(r"\n\s*\n|\n\s*\*\*\*\s*\n", text)),
    "bullets": _occurrences(r"^\s*[-*•] +\S"),
    "sections": _occurrences(r"^\s*#+ +\S"),
    "highlights": _occurrences(r"(?<!\*)\*[^\s*][^*\n]*\*(?!\*)"),
    "placeholders": _occurrences(r"\[[^\[\]\n]+\]"),
    "capital_words": _occurrences(r"\b[A-Z]{2,}\b"),
}
"""What `length` counts: headings of Markdown are `sections`, `*so*` are highlights, `[name]` are placeholders."""

LengthUnit = Literal[
    "words", "sentences", "lines", "paragraphs", "bullets", "sections", "highlights", "placeholders", "capital_words"
]


class AnswerLength(_Bounds):
    """How many words, sentences, ... the answer has; an empty one fails."""

    kind: Literal["length"]
    unit: LengthUnit

    def score(self, answer: str) -> float:
        return float(bool(answer.strip()) and self._within(UNITS[self.unit](answer)))


class BeginsWith(Checker):
    """The answer, or its paragraph of a number from 1, begins with a text; case counts."""

    kind: Literal["begins_with"]
    text: Text
    paragraph: Annotated[int, Field(ge=1)] = 1

    def score(self, answer: str) -> float:
        if self.paragraph == 1:
            return float(answer.lstrip().startswith(self.text))
        parts = [part.strip() for part in re.split(r"\n\s*\n", answer) if part.strip()]
        return float(len(parts) >= self.paragraph and parts[self.paragraph - 1].startswith(self.text))


class EndsWith(Checker):
    """The answer ends with a text; case counts, white space behind it does not."""

    kind: Literal["ends_with"]
    text: Text

    def score(self, answer: str) -> float:
        return float(answer.rstrip().endswith(self.text.rstrip()))


class WrappedAnswer(Checker):
    """The whole answer is in quotation marks; or it has a title, `<<title>>`; or a postscript, `P.S. ...`."""

    kind: Literal["form"]
    form: Literal["quoted", "title", "postscript"]

    def score(self, answer: str) -> float:
        pattern = {
            "quoted": r'\s*"[^"]+"\s*',
            "title": r"(?:.*\n)?\s*<<[^<>\n]+>>.*",
            "postscript": r".*^\s*P\. ?(?:P\. ?)?S\.:? *\S.*",
        }[self.form]
        return float(re.fullmatch(pattern, answer, re.DOTALL | re.MULTILINE) is not None)


class LetterCase(Checker):
    """Every letter is upper case, or lower case."""

    kind: Literal["case"]
    case: Literal["upper", "lower"]

    def score(self, answer: str) -> float:
        return float(answer.isupper() if self.case == "upper" else answer.islower())


class DifferentResponses(Checker):
    """Several responses, all different, with `separator` between them."""

    kind: Literal["responses"]
    count: Annotated[int, Field(ge=2)] = 2
    separator: Text = "******"

    def score(self, answer: str) -> float:
        parts = [normalised(part) for part in answer.split(self.separator)]
        return float(len(parts) == self.count and all(parts) and len(set(parts)) == self.count)


class JsonAnswer(Checker):
    """The answer is JSON, alone or in a fence; with `fields`, an object with these fields and values.

    A text is compared after `normalised`. exactly: no other fields.
    """

    kind: Literal["json"]
    fields: dict[str, Any] | None = None
    exactly: bool = False

    def score(self, answer: str) -> float:
        fenced = _FENCE.fullmatch(answer)
        try:
            found = json.loads(fenced[1] if fenced else answer)
        except (ValueError, RecursionError):
            return 0.0
        if self.fields is None:
            return 1.0
        if not isinstance(found, dict) or (self.exactly and found.keys() != self.fields.keys()):
            return 0.0
        return float(all(key in found and _equal(found[key], value) for key, value in self.fields.items()))


def _equal(found: Any, expected: Any) -> bool:
    """Equal values of JSON: texts after `normalised`, and true is not 1."""
    if isinstance(found, str) and isinstance(expected, str):
        return normalised(found) == normalised(expected)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_equal, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_equal(found[key], expected[key]) for key in found)
    return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


class AllOf(Checker):
    """Every checker of a list. The score is the mean of theirs, so that a part of what is asked for counts."""

    kind: Literal["all"]
    checkers: Annotated[list["AnyChecker"], Field(min_length=1)]

    def score(self, answer: str) -> float:
        return sum(checker.score(answer) for checker in self.checkers) / len(self.checkers)


class AnyOf(Checker):
    """One of a list of checkers: the best score."""

    kind: Literal["any"]
    checkers: Annotated[list["AnyChecker"], Field(min_length=1)]

    def score(self, answer: str) -> float:
        return max(checker.score(answer) for checker in self.checkers)


AnyChecker = Annotated[
    ExactAnswer | OneOfAnswers | NumberAnswer | ContainsWords | LacksWords | OrderedMentions | LetterCount
    | AnswerLength | BeginsWith | EndsWith | WrappedAnswer | LetterCase | DifferentResponses | JsonAnswer | AllOf
    | AnyOf,
    Field(discriminator="kind"),
]  # fmt: skip
AllOf.model_rebuild()
AnyOf.model_rebuild()


class _CheckerField(Spec):
    """Where a checker stands, so that errors name the field."""

    checker: AnyChecker


def parse_checker(plain: Any, place: str) -> Checker:
    """Read a checker from plain data; `UserError` names `place`, the field, its value and what is accepted."""
    return _CheckerField.parse({"checker": plain}, place).checker
