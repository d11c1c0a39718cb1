"""Passes over documents: filters of single documents, then comparisons of all, whose decisions the next pass applies.

A pass reads what the last one wrote. That, and how far the pass has come, is in a folder beside the result, so that a
call that was killed goes on there. The first pass may be done by the workers of an executor, a portion of the inputs
each; `python -m linnet.data.passes FOLDER INDEX` is such a worker.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from linnet.core.errors import UserError, note
from linnet.core.executors import TaskExecutor, TaskOutcome
from linnet.core.spec import Spec
from linnet.data.cleaning_report import CleaningReport, StepReport
from linnet.data.cleaning_steps import CleanedText, FilterStep, clean_rows
from linnet.data.comparison import Comparison, DeduplicationSpec, describe
from linnet.data.decontaminate import EvaluationIndex, OverlapSpec
from linnet.data.minhash import MinHashSpec
from linnet.data.portions import PortionFolder, PortionWork, SourceFile, divide, work_on_portion, worker_main
from linnet.data.readers import ReadingCounts
from linnet.data.signatures import Records, SignatureWriter, read_signatures
from linnet.data.sources import Source, describe_reading
from linnet.data.text_folder import Amount, TextFolderWriter, TextRow, UnfinishedFolder, read_rows
from linnet.data.workers import batched_texts, default_workers, map_in_order
from linnet.present.numbers import counted
from linnet.present.progress import Advance, progress

SAVE_EVERY_S = 5.0
"""So much work at most is done again after a call was killed."""

PORTIONS = "portions"
"""The folder of what workers make, in that of an unfinished call."""

_LONG_BYTES = 20_000
"""More than most evaluation documents have."""


class Pass(NamedTuple):
    """One reading of all documents.

    settings: how the documents that the filters leave are compared; None: not. tests: evaluation files that they are
    compared with. first: the number of the first filter in the report. comparisons: the steps behind the filters.
    describes_tests: the records of the evaluation files are written before those of the documents.
    """

    filters: tuple[FilterStep, ...] = ()
    settings: DeduplicationSpec | None = None
    tests: Sequence[Source] = ()
    first: int = 0
    comparisons: int = 0
    describes_tests: bool = True

    @property
    def writes_text(self) -> bool:
        """False for documents that the next pass can read where this one did."""
        return bool(self.filters) or self.settings is None


@dataclass
class PassesJob:
    """How far a call has come.

    number: of the current pass. texts: the files that it reads; none for the inputs. evaluation: the evaluation
    documents among the records of the pass before. batches: of documents, done in this pass; kept: what they left.
    files: written in this pass, of which the last has `size` bytes, `written` before compression. records: written in
    this pass. counts: of the inputs and evaluation files, which later passes do not read.
    """

    report: CleaningReport
    number: int = 0
    texts: list[str] = field(default_factory=list)
    evaluation: int = 0
    batches: int = 0
    kept: Amount = field(default_factory=Amount)
    files: list[str] = field(default_factory=list)
    size: int = 0
    written: int = 0
    records: int = 0
    counts: list[ReadingCounts] = field(default_factory=list)


@dataclass(frozen=True)
class _BatchWork:
    """What a process does with a batch of documents: filters, and the records of what they leave.

    index: of evaluation documents, or the folder where several processes find it. A process that is ended while it
    starts would hold up the one that sends it more than fits into a pipe.
    """

    filters: tuple[FilterStep, ...]
    settings: DeduplicationSpec | None
    index: EvaluationIndex | Path | None

    def __call__(self, rows: list[TextRow]) -> tuple[list[CleanedText], Records | None]:
        outcomes = clean_rows(rows, self.filters)
        if self.settings is None:
            return outcomes, None
        texts = [outcome.row.text for outcome in outcomes if outcome.reason is None]
        index = _mapped(self.index, self.settings.overlap) if isinstance(self.index, Path) else self.index
        return outcomes, describe(texts, self.settings, index)


@cache
def _mapped(folder: Path, spec: OverlapSpec) -> EvaluationIndex:
    return EvaluationIndex.map(folder, spec)


class PortionSettings(Spec):
    """What a worker does with a portion: filters, and records by which its documents are compared later."""

    filters: tuple[Annotated[FilterStep, Field(discriminator="kind")], ...]
    comparison: DeduplicationSpec | None
    tests: tuple[SourceFile, ...]
    shard_bytes: int


class Passes:
    """Takes the documents of inputs through passes. comparison: the last that was applied.

    job: where to begin, if nothing was saved in `unfinished`. executor: whose workers do the first pass, a portion of
    about `portion_bytes` each; None: processes of this machine. compress: of the files of the last pass.
    """

    def __init__(
        self,
        unfinished: UnfinishedFolder,
        passes: Sequence[Pass],
        job: PassesJob,
        sources: Sequence[Source],
        workers: int | None,
        shard_bytes: int,
        executor: TaskExecutor | None = None,
        portion_bytes: int | None = None,
        compress: str | None = None,
    ) -> None:
        self.comparison: Comparison | None = None
        self._unfinished, self._passes, self._sources = unfinished, passes, sources
        self._workers, self._shard_bytes = workers, shard_bytes
        self._executor, self._portion_bytes = executor, portion_bytes
        self._place, self._compress = "", compress
        self._read = [*sources, *(source for one in passes for source in one.tests)]
        self._needed: dict[str, int] = {}
        state = unfinished.begin()
        self.job = job if state is None else TypeAdapter(PassesJob).validate_python(state)
        if executor is not None and not self.job.number:
            self.job = job
        elif state is not None and (self.job.batches or self.job.number):
            for source, counts in zip(self._read, self.job.counts, strict=False):
                source.counts = counts
            count = self.job.kept.documents if self.job.number else self.job.report.read.documents
            place = f" (pass {self.job.number + 1} of {len(passes)})" if len(passes) > 1 else ""
            note(f"{unfinished.target}: goes on behind {counted(count, 'document')} of an earlier call{place}")

    def run(self) -> CleaningReport:
        """Do what is left to do, and tell what the reading met. `UserError`, and nothing left, if no document stays."""
        try:
            return self._run()
        finally:  # this may be why no document stays
            for line in describe_reading(self._read):
                note(line)

    def _run(self) -> CleaningReport:
        for number in range(self.job.number, len(self._passes)):
            if number == 0 and self._executor is not None:
                self._run_in_portions(self._executor, self._passes[0])
            else:
                self.run_pass(self._passes[number])
            if not self.job.kept.documents:
                self._unfinished.remove()
                raise UserError(f"no document stays; removed: {self.job.report.describe_removed()}")
            if number + 1 < len(self._passes):
                self._begin_next()
                rmtree(self._unfinished.path / PORTIONS, ignore_errors=True)
        self.job.report.kept = self.job.kept
        return self.job.report

    def place_in(self, folder: Path) -> list[str]:
        """Put the files of the last pass into a folder on the same disk, and return their names."""
        self._unfinished.place_in(folder, [f"{self._texts}/{name}" for name in self.job.files])
        return self.job.files

    @property
    def _texts(self) -> str:
        return f"text-{self.job.number}"

    @property
    def _signatures(self) -> str:
        return f"signatures-{self.job.number}"

    def _begin_next(self) -> None:
        """Note that a pass is complete, and remove what only this one needed."""
        job, one = self.job, self._passes[self.job.number]
        before = [name.partition("/")[0] for name in job.texts]
        texts = [f"{self._texts}/{name}" for name in job.files] if one.writes_text else job.texts
        needed = [*texts, *([self._signatures] if one.settings else [])]
        self._needed = {name: (self._unfinished.path / name).stat().st_size for name in needed}
        evaluation = sum(source.counts.documents for source in one.tests)
        counts = [source.counts for source in self._read]
        self.job = PassesJob(job.report, job.number + 1, texts, evaluation, counts=counts)
        self._unfinished.save(self._needed, asdict(self.job))
        if one.writes_text and before:
            rmtree(self._unfinished.path / before[0])
        if job.number:
            (self._unfinished.path / f"signatures-{job.number - 1}").unlink(missing_ok=True)
        rmtree(self._unfinished.path / f"index-{job.number}", ignore_errors=True)

    def run_pass(self, one: Pass) -> None:
        """Do the current pass."""
        job = self.job
        self.comparison = self._decide()
        name = "cleaning" if one.filters else "reading" if one.settings else "writing"
        files = [self._unfinished.path / name for name in job.texts]
        total = sum(file.stat().st_size for file in files) or sum(source.size_bytes for source in self._sources)
        with ExitStack() as stack:
            index = _index(one) if one.tests else None
            advance = stack.enter_context(progress(name, total, "bytes"))
            rows = read_rows(files, advance) if files else self._rows(advance)
            if self.comparison is not None:
                rows = self.comparison.remaining(rows)
            waiting = islice(batched_texts(self._followed(rows), lambda row: len(row.text)), job.batches, None)
            processes = self._workers or default_workers(total)
            shared: EvaluationIndex | Path | None = index
            if index is not None and processes > 1:
                shared = self._unfinished.path / f"index-{job.number}"
                index.save(shared)
            work = _BatchWork(one.filters, one.settings, shared)
            batches: Any = map_in_order(work, waiting, processes)
            stack.enter_context(closing(batches))  # its processes end here, whatever happens
            try:
                self._write(one, batches, index)
            except ChildProcessError as error:
                raise ChildProcessError(f"{self._place}: {error}") from None
        if self.comparison is not None:
            before = self._passes[job.number - 1]
            job.report.add_comparison(before.first + len(before.filters), before.comparisons, self.comparison.report)

    def _run_in_portions(self, executor: TaskExecutor, one: Pass) -> None:
        """Let workers do the first pass, and join what they made."""
        settings = PortionSettings(
            filters=one.filters,
            comparison=one.settings,
            tests=tuple(SourceFile.of(source) for source in one.tests),
            shard_bytes=self._shard_bytes,
        )
        portions = divide(self._sources, self._portion_bytes)
        work = PortionWork(portions=portions, settings=settings.model_dump(mode="json"))
        self._unfinished.save({}, asdict(self.job))  # an error now leaves the portions
        folder = PortionFolder.begin(self._unfinished.path / PORTIONS, work)
        try:
            folder.run(executor, __name__, "cleaning" if one.filters else "reading", "not done")
        except BaseException:
            if not folder.holds_work:
                self._unfinished.remove()
            raise
        self._join(one, folder)
        folder.count(self._sources)

    def _join(self, one: Pass, portions: PortionFolder) -> None:
        """Write documents and records of all portions in order, and add up their reports."""
        job = self.job
        with ExitStack() as stack:
            texts = self._open_texts(stack)
            records = self._open_records(stack, one, _index(one) if one.tests else None)
            for number in range(len(portions.work.portions)):
                place = portions.place(number)
                made = TypeAdapter(PassesJob).validate_python(portions.read_report(number))
                job.report.join(made.report)
                job.kept = job.kept.plus(made.kept)
                for name in made.files:
                    with (place / name).open("rb") as file:
                        for line in file:
                            texts.write_line(line)
                if records is not None and one.settings is not None:
                    records.write(read_signatures(place / "signatures-0", one.settings.near or MinHashSpec()))
            job.files = list(texts.files)

    def _followed(self, rows: Iterator[TextRow]) -> Iterator[TextRow]:
        """The rows; `_place` is the input that the last one is from."""
        for row in rows:
            self._place = row.source
            yield row

    def _rows(self, advance: Advance) -> Iterator[TextRow]:
        for source in self._sources:
            for text, url in source.pages(advance):
                yield TextRow(text, source.name, url)

    def _decide(self) -> Comparison | None:
        """What the comparisons of the last pass decide, for this one."""
        number = self.job.number
        if not number or (settings := self._passes[number - 1].settings) is None:
            return None
        records = read_signatures(self._unfinished.path / f"signatures-{number - 1}", settings.near or MinHashSpec())
        return Comparison(records, self.job.evaluation, self._passes[number - 1].tests, settings)

    def _write(
        self, one: Pass, batches: Iterator[tuple[list[CleanedText], Records | None]], index: EvaluationIndex | None
    ) -> None:
        """Write documents and records, fill the report, and note now and then how far that has come."""
        job, saved_s = self.job, time.monotonic()
        with ExitStack() as stack:
            texts = self._open_texts(stack)
            records = self._open_records(stack, one, index)
            for outcomes, described in batches:
                self._count(one, outcomes)
                if one.writes_text:
                    for outcome in outcomes:
                        if outcome.reason is None:
                            texts.write(outcome.row)
                if records is not None and described is not None:
                    records.write(described)
                job.batches += 1
                if time.monotonic() - saved_s >= SAVE_EVERY_S:
                    self._save(texts, records)
                    saved_s = time.monotonic()
            self._save(texts, records)  # an error of the disk that the result meets costs no work

    def _open_texts(self, stack: ExitStack) -> TextFolderWriter:
        """The files of the pass, behind what is written already."""
        job, folder = self.job, self._unfinished.path / self._texts
        folder.mkdir(exist_ok=True)
        compress = self._compress if job.number == len(self._passes) - 1 else None
        return stack.enter_context(
            TextFolderWriter(folder, self._shard_bytes, job.files, job.size, job.written, compress)
        )

    def _open_records(self, stack: ExitStack, one: Pass, index: EvaluationIndex | None) -> SignatureWriter | None:
        """The file of records, behind those that are written already; those of evaluation documents are the first."""
        if one.settings is None:
            return None
        path = self._unfinished.path / self._signatures
        records = stack.enter_context(SignatureWriter(path, one.settings.near or MinHashSpec(), self.job.records))
        if one.describes_tests and not self.job.records:
            for texts in batched_texts(text for source in one.tests for text in source.documents()):
                records.write(describe(texts, one.settings, index))
        return records

    def _count(self, one: Pass, outcomes: list[CleanedText]) -> None:
        report, kept = self.job.report, self.job.kept
        for outcome in outcomes:
            report.add(outcome, one.first)
            if not self.job.number:
                report.read.count(outcome.bytes[0])
            if outcome.reason is None:
                kept.count(outcome.bytes[-1])

    def _save(self, texts: TextFolderWriter, records: SignatureWriter | None) -> None:
        job, sizes = self.job, texts.flushed()
        job.files = list(texts.files)
        job.size, job.written = sizes[job.files[-1]] if job.files else 0, texts.written
        found = {f"{self._texts}/{name}": size for name, size in sizes.items()}
        if records is not None:
            found[self._signatures], job.records = records.flushed(), records.records
        self._unfinished.save(self._needed | found, asdict(job))


def _index(one: Pass) -> EvaluationIndex:
    """Read the evaluation documents; notes on those that will hardly be found in a text."""
    assert one.settings is not None, "evaluation documents are there to be compared with"
    spec = one.settings.overlap
    index = EvaluationIndex((text for source in one.tests for text in source.documents()), spec)
    if index.short:
        shorter = f"{index.short:,} evaluation documents have fewer than {spec.ngram_words} words"
        note(f"{shorter}: of texts that contain them only those equal to them are found")
    for source in one.tests:
        if source.kind == "text" and source.counts.documents == 1 and source.size_bytes > _LONG_BYTES:
            whole = f"{source.name} is one evaluation document: a text goes if it has {spec.share:g} of all its n-grams"
            note(f"{whole}; a separator of documents divides it")
    return index


def run_worker(folder: str, index: int, threads: int = 0) -> TaskOutcome:
    """Do the first pass over a portion in this process, from where an earlier worker saved last."""
    return work_on_portion(folder, index, _pass_over_portion)


def _pass_over_portion(portions: PortionFolder, number: int, sources: Sequence[Source], folder: Path) -> dict[str, Any]:
    settings = PortionSettings.parse(portions.work.settings, "settings")
    with ExitStack() as stack:
        tests = [stack.enter_context(file.open()) for file in settings.tests]
        one = Pass(settings.filters, settings.comparison, tests, describes_tests=False)
        unfinished = stack.enter_context(UnfinishedFolder(portions.place(number)).of(number))
        job = PassesJob(CleaningReport([StepReport(step.kind) for step in settings.filters]))
        passes = Passes(unfinished, [one], job, sources, 1, settings.shard_bytes)
        passes.run_pass(one)
        passes.place_in(folder)
        if one.settings is not None:
            unfinished.place_in(folder, ["signatures-0"])
    return asdict(passes.job)


if __name__ == "__main__":
    sys.exit(worker_main(run_worker, sys.argv[1:]))
