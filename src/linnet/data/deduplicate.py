"""Deduplication of files: exact copies, near-duplicates, and what a model is evaluated on are left out.

Three passes: a record of fixed size is made of each document (in several processes), the records are compared, the
documents that stay are written. Memory grows with the number of documents, about 100 bytes each, not with their text.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError, note, one_line
from linnet.core.files import write_json
from linnet.core.spec import Spec
from linnet.data.decontaminate import EvaluationIndex, OverlapSpec
from linnet.data.minhash import Clusters, MinHashSpec, band_hashes, content_digest, hash_shingles, hash_words, minhash
from linnet.data.signatures import Records, SignatureWriter, read_signatures, record_type
from linnet.data.sources import REPORT, Source, describe_reading, expand_inputs, open_sources
from linnet.data.text_folder import EXAMPLES, SHARD_BYTES, Amount, TextFolderWriter, check_target
from linnet.data.workers import batched_texts, default_workers, map_in_order
from linnet.present.progress import Advance, progress

REASONS = ("empty", "exact", "near", "evaluation_copy", "evaluation_overlap")
"""Why a document is left out: it has nothing but white space; an earlier document has the same text, or is a
near-duplicate; an evaluation document is a copy or near-duplicate of it, or its n-grams are found in it."""

_KEPT, _EMPTY, _EXACT, _NEAR, _COPY, _OVERLAP = range(6)
_SIGNATURES = "signatures"
_HOLDS = "deduplicated text"
_LONG_BYTES = 20_000
"""More than most evaluation documents have."""


class DeduplicationSpec(Spec):
    """near: how near-duplicates are found; None: exact copies alone. overlap: of texts with evaluation documents."""

    near: MinHashSpec | None = MinHashSpec()
    overlap: OverlapSpec = OverlapSpec()


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


def deduplicate(
    inputs: list[str],
    out: str | Path,
    spec: DeduplicationSpec | None = None,
    against: Sequence[str] = (),
    field: str | None = None,
    separator: str | None = None,
    skip_invalid: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> DeduplicationReport:
    """Write the documents of `inputs` (see `sources.Source`) that are no copies into a folder of .jsonl files.

    Of documents that are copies of each other the first in the order of the inputs stays. against: evaluation files; a
    document that is a copy or near-duplicate of a document in them, or overlaps one, is left out. The result depends on
    the inputs and `spec` alone, not on `workers` (processes; None: as many as processors). The folder appears complete
    or not at all; one that is there is replaced only with `overwrite`, and only if it holds nothing but such files.
    """
    spec = spec or DeduplicationSpec()
    target = Path(out).resolve()
    check_target(target, overwrite, _HOLDS)
    with atomic_directory(target) as folder, ExitStack() as stack:
        check_target(target, overwrite, _HOLDS)  # another process may have been faster
        if not inputs:
            raise UserError("no files given; expected files or folders of text, or - for the standard input")
        opened = open_sources(stack, [*against, *inputs], field, separator, skip_invalid)
        tests, sources = opened[: len(expand_inputs(against))], opened[len(expand_inputs(against)) :]
        index = _index(tests, spec.overlap) if tests else None
        records = _describe_all(folder / _SIGNATURES, [*tests, *sources], spec, index, workers)
        for line in describe_reading([*tests, *sources]):
            note(line)
        evaluation = sum(source.counts.documents for source in tests)
        report = DeduplicationReport(evaluation_documents=evaluation)
        _write(folder, tests, sources, decide(records, evaluation, spec), spec, report, shard_bytes)
        del records  # Windows removes no file that is mapped
        (folder / _SIGNATURES).unlink()
        write_json(folder / REPORT, {"spec": spec.model_dump(), **report.to_dict()})
    return report


def _index(tests: list[Source], spec: OverlapSpec) -> EvaluationIndex:
    """Read the evaluation documents; notes on those that will hardly be found in a text."""
    index = EvaluationIndex(_texts(tests), spec)
    if index.short:
        shorter = f"{index.short:,} evaluation documents have fewer than {spec.ngram_words} words"
        note(f"{shorter}: of texts that contain them only those equal to them are found")
    for source in tests:
        if source.kind == "text" and source.counts.documents == 1 and source.size_bytes > _LONG_BYTES:
            whole = f"{source.name} is one evaluation document: a text goes if it has {spec.share:g} of all its n-grams"
            note(f"{whole}; a --document-separator divides it")
    return index


def _texts(sources: Iterable[Source], advance: Advance = lambda *_: None) -> Iterator[str]:
    for source in sources:
        yield from source.documents(advance)


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
    exact.join_equal(records["digest"][rows], rows)
    clusters.join(exact.first, numbers)
    if spec.near is not None:
        rows = rows[records["shingles"][rows] > 0]
        with progress("comparing", spec.near.bands, "bands") as advance:
            for band in range(spec.near.bands):
                clusters.join_equal(records["bands"][rows, band], rows)
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


def _describe_all(
    path: Path, sources: list[Source], spec: DeduplicationSpec, index: EvaluationIndex | None, workers: int | None
) -> Records:
    """First pass: write the records of all documents in order, and open them."""
    total = sum(source.size_bytes for source in sources)
    workers = default_workers(total) if workers is None else workers
    near = spec.near or MinHashSpec()
    with SignatureWriter(path, near) as writer, progress("reading", total, "bytes") as advance:
        batches = batched_texts(_texts(sources, advance))
        for records in map_in_order(partial(describe, spec=spec, index=index), batches, workers):
            writer.write(records)
    return read_signatures(path, near)


def _write(
    folder: Path,
    tests: list[Source],
    sources: list[Source],
    decisions: Decisions,
    spec: DeduplicationSpec,
    report: DeduplicationReport,
    shard_bytes: int,
) -> None:
    """Last pass: write the documents that stay, and fill the report."""
    chosen = _chosen_examples(decisions, report.evaluation_documents)
    wanted = {number for pair in chosen for number in (pair, int(decisions.partners[pair]))}
    texts: dict[int, str] = {number: text for number, text in enumerate(_texts(tests)) if number in wanted}
    number, total = report.evaluation_documents, sum(source.size_bytes for source in sources)
    with progress("writing", total, "bytes") as advance, TextFolderWriter(folder, shard_bytes) as writer:
        for source in sources:
            documents = source.counts.documents
            last = number + documents
            for text in source.documents(advance):
                if number >= last:
                    raise UserError(f"{source.name}: changed while it was read")
                if number in wanted:
                    texts[number] = text
                reason = int(decisions.reasons[number])
                number += 1
                report.read.add(text)
                (report.removed[REASONS[reason - 1]] if reason else report.kept).add(text)
                if not reason:
                    writer.write({"text": text, "source": source.name})
            if number != last:
                raise UserError(f"{source.name}: changed while it was read")
    report.files += writer.files
    if not report.kept.documents:
        raise UserError(f"no document stays: {describe_removed(report)}")
    for pair in chosen:
        report.examples.append(_example(decisions, pair, texts, spec))


def describe_removed(report: DeduplicationReport) -> str:
    """How many documents were left out for which reason."""
    found = {reason: amount.documents for reason, amount in report.removed.items() if amount.documents}
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in found.items()) or "none"


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
