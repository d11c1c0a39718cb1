"""Cleaning of files: documents go through steps, and those that stay are written; a killed call goes on."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError, note
from linnet.core.files import write_json
from linnet.data.cleaning_report import CleaningReport, StepReport
from linnet.data.cleaning_steps import CleanedText, CleaningSpec, clean_texts, make_changes
from linnet.data.sources import REPORT, describe_reading, open_sources
from linnet.data.text_folder import SHARD_BYTES, TextFolderWriter, UnfinishedFolder, check_target
from linnet.data.workers import batched_texts, default_workers, map_in_order
from linnet.present.progress import progress

_HOLDS = "cleaned text"

SAVE_EVERY_S = 5.0
"""So much work at most is done again after a call was killed."""


@dataclass
class CleaningJob:
    """How far a call has come: the batches of documents that are done, and the bytes of the last file with theirs."""

    report: CleaningReport
    batches: int = 0
    size: int = 0


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
    make_changes(spec)  # a missing package is said before anything is read
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
