"""Cleaning of text: the quality filters of datatrove as steps, with what each of them removes.

The words and sentences that the filters count are found by regular expressions (`_simple_tokenizer`): datatrove's own
tokenizers need spaCy or a download.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError, note, one_line
from linnet.core.files import write_json
from linnet.core.spec import Spec
from linnet.data.sources import REPORT, describe_reading, open_sources
from linnet.data.text_folder import (
    EXAMPLES,
    SHARD_BYTES,
    Amount,
    TextFolderWriter,
    UnfinishedFolder,
    check_target,
)
from linnet.data.workers import batched_texts, default_workers, map_in_order
from linnet.present.flow import Flow
from linnet.present.progress import progress
from linnet.present.result import Picture, Result
from linnet.present.table import Table

_WORD = re.compile(r"\w+(?:['’]\w+)*|\.{2,}|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+")
_EXAMPLE_CHARACTERS = 200
_HOLDS = "cleaned text"

SAVE_EVERY_S = 5.0
"""So much work at most is done again after a call was killed."""

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


Step = Annotated[GopherRepetition | GopherQuality | C4 | FineWebQuality | PersonalData, Field(discriminator="kind")]


class CleaningSpec(Spec):
    """What a document goes through, in order; a step with `enabled: false` is left out.

    The default is that of FineWeb (arXiv 2406.17557, section 3), without its filters of languages and addresses.
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


class CleanedText(NamedTuple):
    """What became of a document.

    text: after the last step it went through. bytes: of the text before each of these steps and after the last.
    reason: why the last step removed it; None for a document that stays.
    """

    text: str
    bytes: list[int]
    reason: str | None


Change = Callable[[str], tuple[str, str | None]]
"""A step: a text to the changed text, and the reason to remove it or None."""


@dataclass
class StepReport:
    """A step: the documents it read, those it removed, and the bytes it took out of documents that it kept."""

    step: str
    read: Amount = field(default_factory=Amount)
    removed: Amount = field(default_factory=Amount)
    trimmed_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)


@dataclass
class CleaningReport:
    """What was read, what stays, and what each step did."""

    steps: list[StepReport]
    read: Amount = field(default_factory=Amount)
    kept: Amount = field(default_factory=Amount)
    files: list[str] = field(default_factory=list)

    def add(self, outcome: CleanedText) -> None:
        """Count a document."""
        self.read = Amount(self.read.documents + 1, self.read.bytes + outcome.bytes[0])
        last = len(outcome.bytes) - 2
        for number, (before, after) in enumerate(zip(outcome.bytes, outcome.bytes[1:], strict=False)):
            step = self.steps[number]
            step.read = Amount(step.read.documents + 1, step.read.bytes + before)
            if outcome.reason is None or number < last:
                step.trimmed_bytes += before - after
                continue
            step.removed = Amount(step.removed.documents + 1, step.removed.bytes + before)
            step.reasons[outcome.reason] = step.reasons.get(outcome.reason, 0) + 1
            if len(step.examples) < EXAMPLES:
                text = one_line(outcome.text, _EXAMPLE_CHARACTERS)
                step.examples.append({"reason": outcome.reason, "text": text})
        if outcome.reason is None:
            self.kept = Amount(self.kept.documents + 1, self.kept.bytes + outcome.bytes[-1])


@dataclass
class CleaningJob:
    """How far a call has come: the batches of documents that are done, and the bytes of the last file with theirs."""

    report: CleaningReport
    batches: int = 0
    size: int = 0


@dataclass(frozen=True)
class CleaningResult(Result):
    """A report as tables and a diagram."""

    report: CleaningReport

    def title(self) -> str:
        return "Cleaning"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.report)

    def tables(self) -> list[Table]:
        steps = self.report.steps
        rows = [("read", f"{self.report.read.documents:,}", f"{self.report.read.bytes:,}", "")]
        for step in steps:
            removed = f"{step.removed.documents:,}", f"{step.removed.bytes:,}"
            rows.append((f"removed by {step.step}", *removed, f"{step.trimmed_bytes:,}"))
        rows.append(("kept", f"{self.report.kept.documents:,}", f"{self.report.kept.bytes:,}", ""))
        examples = [(step.step, one["reason"], one["text"]) for step in steps for one in step.examples]
        reasons = [(step.step, reason, f"{count:,}") for step in steps for reason, count in step.reasons.items()]
        tables = [Table("Steps", ("", "documents", "bytes", "bytes cut from others"), rows)]
        if examples:
            tables.append(Table("Reasons", ("step", "reason", "documents"), reasons))
            tables.append(Table("Removed, for example", ("step", "reason", "text"), examples, text=True))
        return tables

    def plots(self) -> list[Picture]:
        report = self.report
        taken = [(one.step, (one.removed.documents, one.removed.bytes + one.trimmed_bytes)) for one in report.steps]
        flow = Flow(("documents", "bytes"), (report.read.documents, report.read.bytes), taken)
        caption = "From left to right: what each step takes out of the text, to scale, and the share that stays."
        return [Picture("flow", "Documents and bytes through the steps", flow, caption)]


def clean(
    inputs: list[str],
    out: str | Path,
    spec: CleaningSpec,
    field: str | None = None,
    separator: str | None = None,
    skip_invalid: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> CleaningReport:
    """Write the documents of `inputs` (see `sources.Source`) that pass all steps into a folder of .jsonl files.

    The result depends on the inputs and `spec` alone, not on `workers` (processes; None: as many as processors). The
    folder appears complete or not at all; an earlier result is replaced only with `overwrite`. A call that is killed or
    interrupted leaves its part beside `out`, and the same call goes on there. `UserError` if no document stays.
    """
    steps = [step for step in spec.steps if step.enabled]
    if not steps:
        raise UserError("every step has `enabled: false`; expected one that does something", field="steps")
    target = Path(out).resolve()
    check_target(target, overwrite, _HOLDS)
    _changes(spec)  # a missing package is said before anything is read
    job = CleaningJob(CleaningReport([StepReport(step.kind) for step in steps]))
    with atomic_directory(target) as folder, ExitStack() as stack:
        check_target(target, overwrite, _HOLDS)  # another process may have been faster
        sources = open_sources(stack, inputs, field, separator, skip_invalid)
        total = sum(source.size_bytes for source in sources)
        identity = [spec.model_dump(mode="json"), inputs, field, separator, skip_invalid, shard_bytes, total]
        unfinished = stack.enter_context(UnfinishedFolder(target, identity))
        state = unfinished.begin()
        if state is not None:
            job = TypeAdapter(CleaningJob).validate_python(state)
            note(f"{target}: goes on behind {job.report.read.documents:,} documents of an earlier call")
        with progress("cleaning", total, "bytes") as advance:
            texts = (text for source in sources for text in source.documents(advance))
            processes = workers or default_workers(total)
            waiting = islice(batched_texts(texts), job.batches, None)
            batches: Any = map_in_order(partial(clean_texts, spec=spec), waiting, processes)
            with closing(batches):  # its processes end here, whatever happens
                _write(unfinished, batches, job, shard_bytes)
        for line in describe_reading(sources):
            note(line)
        report = job.report
        if not report.kept.documents:
            unfinished.remove()
            removed = ", ".join(f"{step.removed.documents:,} {step.step}" for step in report.steps)
            raise UserError(f"no document stays; removed: {removed}")
        unfinished.move_into(folder, report.files)
        write_json(folder / REPORT, {"spec": spec.model_dump(), **asdict(report)})
    return report


def clean_texts(texts: list[str], spec: CleaningSpec) -> list[CleanedText]:
    """Take each text through the steps; a text that a step leaves empty is removed by it."""
    return [_outcome(text, _changes(spec)) for text in texts]


def _outcome(text: str, changes: list[Change]) -> CleanedText:
    sizes = [len(text.encode())]
    reason: str | None = None
    for change in changes:
        changed, reason = change(text)
        if reason is None and not changed.strip():
            reason = "empty"
        sizes.append(len(changed.encode()))
        if reason is not None:
            break
        text = changed
    return CleanedText(text, sizes, reason)


@cache
def _changes(spec: CleaningSpec) -> list[Change]:
    """The steps of a specification, made once in each process."""
    try:
        from datatrove.pipeline.filters import (
            C4QualityFilter,
            FineWebQualityFilter,
            GopherQualityFilter,
            GopherRepetitionFilter,
        )
    except ImportError:
        raise UserError("cleaning needs datatrove: pip install 'linnet[data]'") from None
    filters = {
        "gopher_repetition": GopherRepetitionFilter,
        "gopher_quality": GopherQualityFilter,
        "c4": C4QualityFilter,
        "fineweb_quality": FineWebQualityFilter,
    }
    changes: list[Change] = []
    for step in spec.steps:
        options = step.model_dump(exclude={"kind", "enabled"})
        if step.enabled and step.kind == "pii":
            changes.append(partial(_replace_personal_data, options=options))
        elif step.enabled:
            made = filters[step.kind](language=_simple_tokenizer(), **options)
            changes.append(partial(_apply_filter, made))
    return changes


def _apply_filter(made: Any, text: str) -> tuple[str, str | None]:
    from datatrove.data import Document

    document = Document(text=text, id="")
    result = made.filter(document)
    passes, reason = result if isinstance(result, tuple) else (result, "removed")
    return document.text, None if passes else str(reason)


def _replace_personal_data(text: str, options: dict[str, bool]) -> tuple[str, None]:
    """Replace addresses; a new formatter for each document, because one takes its replacements in turn."""
    from datatrove.pipeline.formatters import PIIFormatter

    return PIIFormatter(**options).format(text), None


@cache
def _simple_tokenizer() -> Any:
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


def _write(
    unfinished: UnfinishedFolder, batches: Iterator[list[CleanedText]], job: CleaningJob, shard_bytes: int
) -> None:
    """Write the documents that stay, fill the report, and note now and then how far that has come."""
    report, saved_s = job.report, time.monotonic()
    with TextFolderWriter(unfinished.path, shard_bytes, report.files, job.size) as writer:
        for batch in batches:
            for outcome in batch:
                report.add(outcome)
                if outcome.reason is None:
                    writer.write({"text": outcome.text})
            job.batches += 1
            if time.monotonic() - saved_s >= SAVE_EVERY_S:
                report.files = list(writer.files)
                unfinished.save(writer, asdict(job))
                saved_s = time.monotonic()
        report.files = list(writer.files)
