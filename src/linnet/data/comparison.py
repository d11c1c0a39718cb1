"""Comparison of documents: which of them are copies, near-duplicates, or what a model is evaluated on.

A record of fixed size is made of each document (in several processes), the records are compared, and the decisions are
applied while the documents are read once more. Memory grows with the number of documents, about 100 bytes each, not
with their text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.core.errors import UserError, one_line
from linnet.core.spec import Spec
from linnet.data.cleaning_steps import ComparisonStep
from linnet.data.decontaminate import EvaluationIndex, OverlapSpec
from linnet.data.minhash import Clusters, MinHashSpec, band_hashes, content_digest, hash_shingles, hash_words, minhash
from linnet.data.signatures import Records, record_type
from linnet.data.sources import Source
from linnet.data.text_folder import EXAMPLES, Amount, TextRow
from linnet.present.progress import progress

REASONS = ("empty", "exact", "near", "evaluation_copy", "evaluation_overlap")
"""Why a document is left out: it has nothing but white space; an earlier document has the same text, or is a
near-duplicate; an evaluation document is a copy or near-duplicate of it, or its n-grams are found in it."""

_KEPT, _EMPTY, _EXACT, _NEAR, _COPY, _OVERLAP = range(6)


class DeduplicationSpec(Spec):
    """near: how near-duplicates are found; None: exact copies alone. overlap: of texts with evaluation documents.

    drop_exact, drop_near: leave out copies and near-duplicates of any earlier document, not only of evaluation
    documents.
    """

    near: MinHashSpec | None = MinHashSpec()
    overlap: OverlapSpec = OverlapSpec()
    drop_exact: bool = True
    drop_near: bool = True


class Example(NamedTuple):
    """A document that was left out, and the one that stands for it.

    similarity: of their sets of shingles (Jaccard); for `evaluation_overlap` the share of the n-grams of `stays` that
    `removed` contains.
    """

    reason: str
    removed: str
    stays: str
    similarity: float


@dataclass
class DeduplicationReport:
    """What was read, what stays, and what was left out for which reason (`REASONS`), with examples."""

    read: Amount = field(default_factory=Amount)
    kept: Amount = field(default_factory=Amount)
    removed: dict[str, Amount] = field(default_factory=lambda: {reason: Amount() for reason in REASONS})
    evaluation_documents: int = 0
    files: list[str] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        amounts = {reason: vars(amount) for reason, amount in self.removed.items()}
        examples = [example._asdict() for example in self.examples]
        return {
            **vars(self),
            "read": vars(self.read),
            "kept": vars(self.kept),
            "removed": amounts,
            "examples": examples,
        }


class Decisions(NamedTuple):
    """For each record, evaluation documents first.

    reasons: 0 for a document that stays, else one more than its place in `REASONS`. partners: the document that stands
    for it.
    """

    reasons: NDArray[np.uint8]
    partners: NDArray[np.int64]


def comparison_settings(steps: Sequence[ComparisonStep]) -> DeduplicationSpec:
    """The settings by which documents are compared in steps of different kinds."""
    by_kind = {step.kind: step.model_dump(exclude={"kind", "enabled"}) for step in steps}
    near, overlap = by_kind.get("near_duplicates"), by_kind.get("decontamination")
    signature = None
    if near is not None or overlap is not None:
        signature = MinHashSpec(**near or {})
    of_overlap = {name: value for name, value in (overlap or {}).items() if name in OverlapSpec.model_fields}
    return DeduplicationSpec(
        near=signature,
        overlap=OverlapSpec(**of_overlap),
        drop_exact="exact_duplicates" in by_kind,
        drop_near=near is not None,
    )


def describe(texts: Sequence[str], spec: DeduplicationSpec, index: EvaluationIndex | None = None) -> Records:
    """The records of some texts, each of which depends on its text alone."""
    near = spec.near or MinHashSpec()
    records = np.zeros(len(texts), record_type(near))
    records["digest"] = np.frombuffer(b"".join(map(content_digest, texts)), dtype="<u8").reshape(-1, 2)
    records["match"] = -1
    if spec.near is None and index is None:
        return records
    words, lengths = hash_words(texts)
    if spec.near is not None:
        shingles, counts = hash_shingles(words, lengths, near.shingle_words)
        records["shingles"] = counts
        records["bands"] = band_hashes(minhash(shingles, counts, near.bands * near.rows), near.bands, near.rows)
    if index is not None:
        records["match"] = index.match_words(words, lengths)
    return records


def decide(records: Records, evaluation: int, spec: DeduplicationSpec) -> Decisions:
    """Which documents stay: of those that are copies of each other, directly or by others between them, the first.

    evaluation: how many of the records, the first ones, are of evaluation documents. A text that overlaps one of these
    is left out before any copies are looked for.
    """
    numbers = np.arange(len(records))
    empty = np.frombuffer(content_digest(""), dtype="<u8")
    is_empty = (records["digest"] == empty).all(axis=1)
    overlaps = (records["match"] >= 0) & (numbers >= evaluation) & ~is_empty
    rows = np.flatnonzero(~overlaps & ~is_empty)
    exact, clusters = Clusters(len(records)), Clusters(len(records))
    first_below = None if spec.drop_exact else evaluation
    exact.join_equal(records["digest"][rows], rows, first_below)
    clusters.join(exact.first, numbers)
    if spec.near is not None:
        rows = rows[records["shingles"][rows] > 0]
        first_below = None if spec.drop_near else evaluation
        with progress("comparing", spec.near.bands, "bands") as advance:
            for band in range(spec.near.bands):
                clusters.join_equal(records["bands"][rows, band], rows, first_below)
                advance(1)
    partners = np.where(exact.first < numbers, exact.first, clusters.first)
    reasons = np.zeros(len(records), dtype=np.uint8)
    reasons[clusters.first < numbers] = _NEAR
    reasons[exact.first < numbers] = _EXACT
    is_copy = (clusters.first < evaluation) & (numbers >= evaluation)
    reasons[is_copy], partners[is_copy] = _COPY, clusters.first[is_copy]
    reasons[overlaps], partners[overlaps] = _OVERLAP, records["match"][overlaps]
    reasons[is_empty] = _EMPTY
    return Decisions(reasons, partners)


class Comparison:
    """Decisions about documents, which are applied while these are read once more.

    records: of the evaluation documents, as many as `evaluation`, and of all documents. tests: the evaluation files.
    report: of what was read, complete once all documents were.
    """

    def __init__(self, records: Records, evaluation: int, tests: Sequence[Source], spec: DeduplicationSpec) -> None:
        self.report = DeduplicationReport(evaluation_documents=evaluation)
        self._decisions, self._spec, self._tests = decide(records, evaluation, spec), spec, tests
        self._chosen = _chosen_examples(self._decisions, evaluation)
        self._texts: dict[int, str] = {}

    def remaining(self, rows: Iterable[TextRow]) -> Iterator[TextRow]:
        """The documents that stay. `UserError` if they are not those of the records."""
        report, name = self.report, ""
        wanted = {number for one in self._chosen for number in (one, int(self._decisions.partners[one]))}
        number, last = report.evaluation_documents, len(self._decisions.reasons)
        if wanted and min(wanted) < number:
            tests = (text for source in self._tests for text in source.documents())
            self._texts = {place: text for place, text in enumerate(tests) if place in wanted}
        for row in rows:
            name = row.source
            if number >= last:
                raise UserError(f"{name}: changed while it was read")
            if number in wanted:
                self._texts[number] = row.text
            reason = int(self._decisions.reasons[number])
            number += 1
            report.read.add(row.text)
            (report.removed[REASONS[reason - 1]] if reason else report.kept).add(row.text)
            if not reason:
                yield row
        if number != last:
            raise UserError(f"{name}: changed while it was read")
        report.examples = [_example(self._decisions, one, self._texts, self._spec) for one in self._chosen]


def _chosen_examples(decisions: Decisions, evaluation: int) -> list[int]:
    """The first documents that were left out for each reason that has a partner."""
    chosen: list[int] = []
    for reason in (_EXACT, _NEAR, _COPY, _OVERLAP):
        found = np.flatnonzero(decisions.reasons == reason)
        chosen += found[found >= evaluation][:EXAMPLES].tolist()
    return chosen


def _example(decisions: Decisions, removed: int, texts: dict[int, str], spec: DeduplicationSpec) -> Example:
    reason = int(decisions.reasons[removed])
    pair = texts[removed], texts[int(decisions.partners[removed])]
    similarity = 1.0
    if reason != _EXACT:
        is_overlap = reason == _OVERLAP
        length = spec.overlap.ngram_words if is_overlap else (spec.near or MinHashSpec()).shingle_words
        found, other = (set(hash_shingles(*hash_words([text]), length)[0].tolist()) for text in pair)
        whole = other if is_overlap else found | other
        similarity = len(found & other) / len(whole) if whole else 1.0
    left_out, stays = (one_line(text, 200) for text in pair)
    return Example(REASONS[reason - 1], left_out, stays, round(similarity, 3))
