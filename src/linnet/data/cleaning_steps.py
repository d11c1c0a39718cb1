"""The steps of cleaning (clean.yaml), and what becomes of a document that goes through the filters among them.

The words and sentences that the filters count are found by regular expressions (`simple_tokenizer`): datatrove's own
tokenizers need spaCy or a download.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from linnet.core.errors import UserError
from linnet.core.spec import Spec
from linnet.data.decontaminate import OverlapSpec
from linnet.data.minhash import MinHashSpec
from linnet.data.page_filters import Judgement, LanguageFilter, UrlFilter, judge_language, judge_url
from linnet.data.text_folder import TextRow

_WORD = re.compile(r"\w+(?:['’]\w+)*|\.{2,}|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+")

NGrams = tuple[tuple[PositiveInt, PositiveFloat], ...]
"""Lengths of n-grams in words, each with the greatest share of the characters."""


class GopherRepetition(Spec):
    """Remove documents that repeat lines, paragraphs or n-grams (Gopher, table A1); null: not looked at."""

    kind: Literal["gopher_repetition"]
    enabled: bool = True
    dup_line_frac: PositiveFloat | None = 0.3
    dup_para_frac: PositiveFloat | None = 0.3
    dup_line_char_frac: PositiveFloat | None = 0.2
    dup_para_char_frac: PositiveFloat | None = 0.2
    top_n_grams: NGrams = ((2, 0.2), (3, 0.18), (4, 0.16))
    dup_n_grams: NGrams = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))


class GopherQuality(Spec):
    """Remove documents whose length, words or lines are not those of prose (Gopher); null: not looked at."""

    kind: Literal["gopher_quality"]
    enabled: bool = True
    min_doc_words: PositiveInt | None = 50
    max_doc_words: PositiveInt | None = 100_000
    min_avg_word_length: PositiveFloat | None = 3
    max_avg_word_length: PositiveFloat | None = 10
    max_symbol_word_ratio: PositiveFloat | None = 0.1
    max_bullet_lines_ratio: PositiveFloat | None = 0.9
    max_ellipsis_lines_ratio: PositiveFloat | None = 0.3
    max_non_alpha_words_ratio: PositiveFloat | None = 0.8
    min_stop_words: PositiveInt | None = 2
    stop_words: tuple[str, ...] | None = None


class C4(Spec):
    """Drop lines that are no sentences, and documents with few sentences, brackets or filler (C4); -1: no limit."""

    kind: Literal["c4"]
    enabled: bool = True
    remove_citations: bool = True
    filter_no_terminal_punct: bool = True
    min_num_sentences: int = Field(5, ge=-1)
    min_words_per_line: int = Field(3, ge=-1)
    max_word_length: int = Field(1000, ge=-1)
    filter_lorem_ipsum: bool = True
    filter_javascript: bool = True
    filter_curly_bracket: bool = True
    filter_policy: bool = True


class FineWebQuality(Spec):
    """Remove documents of short, repeated or unfinished lines (FineWeb)."""

    kind: Literal["fineweb_quality"]
    enabled: bool = True
    line_punct_thr: float = Field(0.12, ge=0, le=1)
    line_punct_exclude_zero: bool = False
    short_line_thr: float = Field(0.67, ge=0, le=1)
    short_line_length: PositiveInt = 30
    char_duplicates_ratio: float = Field(0.01, ge=0, le=1)
    new_line_ratio: PositiveFloat = 0.3


class PersonalData(Spec):
    """Replace email and IP addresses; no document is removed."""

    kind: Literal["pii"]
    enabled: bool = True
    remove_emails: bool = True
    remove_ips: bool = True
    only_remove_public_ips: bool = True


class ExactDuplicates(Spec):
    """Remove documents that have the text of an earlier one, apart from white space, case and Unicode's form."""

    kind: Literal["exact_duplicates"]
    enabled: bool = True


class NearDuplicates(MinHashSpec):
    """Remove documents that are near-duplicates of an earlier one."""

    kind: Literal["near_duplicates"]
    enabled: bool = True


class Decontamination(OverlapSpec):
    """Remove documents that overlap or copy one of evaluation files, near-duplicates of it included.

    against: these files, as inputs of `prepare`; field, separator: how their documents are found.
    """

    kind: Literal["decontamination"]
    enabled: bool = True
    against: tuple[str, ...] = Field(min_length=1)
    field: str | None = None
    separator: str | None = None


FilterStep = GopherRepetition | GopherQuality | C4 | FineWebQuality | PersonalData | LanguageFilter | UrlFilter
"""A step that looks at one document."""

ComparisonStep = Decontamination | ExactDuplicates | NearDuplicates
"""A step that compares a document with others."""

Step = Annotated[FilterStep | ComparisonStep, Field(discriminator="kind")]


class CleaningSpec(Spec):
    """What documents go through, in order; a step with `enabled: false` is left out.

    The default is that of FineWeb (arXiv 2406.17557, section 3), without its filters of languages and addresses, and
    without its near-duplicates.
    """

    steps: tuple[Step, ...] = Field(
        (
            GopherRepetition(kind="gopher_repetition"),
            GopherQuality(kind="gopher_quality"),
            C4(kind="c4", filter_no_terminal_punct=False),
            FineWebQuality(kind="fineweb_quality"),
            PersonalData(kind="pii"),
        ),
        min_length=1,
    )

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        for stage in self.stages():
            kinds = [step.kind for step in stage.comparisons]
            for kind in kinds:
                if kinds.count(kind) > 1:
                    raise ValueError(f"steps: {kind} twice without a filter between: give it once")
        fields = {step.field for step in self.steps if isinstance(step, UrlFilter) and step.enabled}
        if len(fields) > 1:
            raise ValueError(f"steps: url with the fields {', '.join(sorted(fields))}: give one field")
        return self

    @property
    def url_step(self) -> UrlFilter | None:
        """The first step that looks at addresses."""
        return next((step for step in self.steps if step.enabled and isinstance(step, UrlFilter)), None)

    def stages(self) -> "list[CleaningStage]":
        """The steps as passes over the documents; the last one compares nothing, so that its text can be written."""
        found = [CleaningStage()]
        for number, step in enumerate(step for step in self.steps if step.enabled):
            if isinstance(step, ComparisonStep):
                found[-1] = found[-1]._replace(comparisons=(*found[-1].comparisons, step))
                continue
            if found[-1].comparisons:
                found.append(CleaningStage(first=number))
            found[-1] = found[-1]._replace(filters=(*found[-1].filters, step))
        return [*found, CleaningStage()] if found[-1].comparisons else found


class CleaningStage(NamedTuple):
    """Steps that are one pass over the documents: filters, then comparisons.

    first: the number of the first of them among the steps that are enabled.
    """

    filters: tuple[FilterStep, ...] = ()
    comparisons: tuple[ComparisonStep, ...] = ()
    first: int = 0


class CleanedText(NamedTuple):
    """What became of a document.

    row: after the last filter it went through. bytes: of the text before each of these and after the last. reason: why
    the last one removed it; None for a document that stays. labels: what each of these found in it, such as its
    language; None where there is nothing to say.
    """

    row: TextRow
    bytes: list[int]
    reason: str | None
    labels: list[str | None]


class Change(NamedTuple):
    """What a filter makes of a text: the changed text, the reason to remove it or None, and what it found in it."""

    text: str
    reason: str | None = None
    label: str | None = None


Filter = Callable[[TextRow], Change]


def clean_rows(rows: Sequence[TextRow], filters: tuple[FilterStep, ...]) -> list[CleanedText]:
    """Take each document through the filters; a text that one of them finds or leaves empty is removed by it."""
    return [_outcome(row, make_filters(filters)) for row in rows]


def _outcome(row: TextRow, filters: list[Filter]) -> CleanedText:
    sizes, labels = [len(row.text.encode())], list[str | None]()
    reason: str | None = None
    for apply in filters:
        # Filters divide by the words of a text, of which white space has none.
        text, reason, label = apply(row) if row.text.strip() else Change(row.text, "empty")
        if reason is None and not text.strip():
            reason = "empty"
        sizes.append(len(text.encode()))
        labels.append(label)
        if reason is not None:
            break
        row = row._replace(text=text)
    return CleanedText(row, sizes, reason, labels)


@cache
def make_filters(steps: tuple[FilterStep, ...]) -> list[Filter]:
    """What the steps do, made once in each process; `UserError` for a package or file that is missing."""
    return [_make_filter(step) for step in steps]


def _make_filter(step: FilterStep) -> Filter:
    if step.kind == "language":
        judge = judge_language(step)
        return lambda row: _judged(row, judge(row.text))
    if step.kind == "url":
        blocked = judge_url(step)
        return lambda row: Change(row.text, None if row.url is None else blocked(row.url))
    filters = _datatrove_filters()
    options = step.model_dump(exclude={"kind", "enabled"})
    if step.kind == "pii":
        return partial(_replace_personal_data, options=options)
    return partial(_apply_filter, made=filters[step.kind](language=simple_tokenizer(), **options))


def _judged(row: TextRow, judgement: Judgement) -> Change:
    label, stays = judgement
    return Change(row.text, None if stays else label, label if stays else None)


def _datatrove_filters() -> dict[str, Any]:
    try:
        from datatrove.pipeline import filters
    except ImportError:
        raise UserError("cleaning needs datatrove: pip install 'linnet[data]'") from None
    return {
        "gopher_repetition": filters.GopherRepetitionFilter,
        "gopher_quality": filters.GopherQualityFilter,
        "c4": filters.C4QualityFilter,
        "fineweb_quality": filters.FineWebQualityFilter,
    }


def _apply_filter(row: TextRow, made: Any) -> Change:
    from datatrove.data import Document

    document = Document(text=row.text, id="")
    result = made.filter(document)
    passes, reason = result if isinstance(result, tuple) else (result, "removed")
    return Change(document.text, None if passes else str(reason))


def _replace_personal_data(row: TextRow, options: dict[str, bool]) -> Change:
    """Replace addresses; a new formatter for each document, because one takes its replacements in turn."""
    from datatrove.pipeline.formatters import PIIFormatter

    return Change(PIIFormatter(**options).format(row.text))


@cache
def simple_tokenizer() -> Any:
    """A word tokenizer for datatrove without packages or downloads; one object, which datatrove's cache knows again."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    class SimpleTokenizer(WordTokenizer):  # type: ignore[misc]
        """Words, runs of dots and single symbols; sentences end in a mark and white space."""

        def word_tokenize(self, text: str) -> list[str]:
            return _WORD.findall(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return [part for part in _SENTENCE_END.split(text.strip()) if part]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            starts = [0, *(match.end() for match in _SENTENCE_END.finditer(text))]
            return list(zip(starts, [*starts[1:], len(text)], strict=True))

    return SimpleTokenizer()
