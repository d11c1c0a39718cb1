"""Cleaning of files: documents go through the steps of clean.yaml, and those that stay are written."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree
from typing import Any

from blake3 import blake3
from pydantic import TypeAdapter

from linnet.core.checksum import hex_digest
from linnet.core.errors import UserError, note
from linnet.core.executors import TaskExecutor
from linnet.core.files import read_json, write_json
from linnet.core.spec import read_yaml
from linnet.data.cleaning_report import CleaningReport, StepReport
from linnet.data.cleaning_steps import CleaningSpec, CleaningStage, Step, make_filters
from linnet.data.comparison import comparison_settings
from linnet.data.passes import Pass, Passes, PassesJob
from linnet.data.sources import REPORT, Source, open_sources, size_and_time
from linnet.data.text_folder import SHARD_BYTES, checked_text_target, new_text_folder
from linnet.present.numbers import counted

_HOLDS = "cleaned text"

_JOB = "job"
"""In the report of a folder that may be used again: the hash of the call that made it."""


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
    executor: TaskExecutor | None = None,
    portion_bytes: int | None = None,
    compress: str | None = None,
    reuse: bool = False,
) -> CleaningReport:
    """Write the documents of `inputs` (see `sources.Source`) that pass all steps into a folder of .jsonl files.

    The result depends on the inputs and `spec` alone, not on `workers` (processes; None: as many as processors). The
    folder appears complete or not at all; an earlier result is replaced only with `overwrite`. A call that is killed or
    interrupted leaves its part beside `out`, and the same call goes on there. executor: its workers do the first pass,
    a portion of about `portion_bytes` of the inputs each. compress: gz or zst, of the files. reuse: an earlier result
    of the same call is left as it is, and not made again. `UserError` if no document stays.
    """
    steps = [step for step in spec.steps if step.enabled]
    if not steps:
        raise UserError("every step has `enabled: false`; expected one that does something", field="steps")
    target = checked_text_target(out, overwrite, _HOLDS, compress)
    for stage in spec.stages():  # a missing package or file is said before anything is read
        make_filters(stage.filters)
    url_step = spec.url_step
    with ExitStack() as stack:
        sources = open_sources(stack, inputs, field, separator, skip_invalid, url_step.field if url_step else "url")
        passes = [_pass(stage, _evaluation_files(stack, stage, skip_invalid)) for stage in spec.stages()]
        opened = [*sources, *(source for one in passes for source in one.tests)]
        read = [source.identity() for source in opened]
        read += [[name, *size_and_time(Path(name))] for step in steps for name in _files_of(step)]
        identity = [spec.model_dump(mode="json"), read, field, separator, skip_invalid, shard_bytes, compress]
        job_hash = _hash_of(identity)
        if reuse and (finished := _finished(target, job_hash)) is not None:
            note(f"{target}: {counted(finished.kept.documents, 'document')} of an earlier call, used again")
            return finished
        folder, unfinished = stack.enter_context(new_text_folder(target, overwrite, _HOLDS, identity))
        job = PassesJob(CleaningReport([StepReport(step.kind) for step in steps]))
        run = Passes(unfinished, passes, job, sources, workers, shard_bytes, executor, portion_bytes, compress)
        try:
            report = run.run()
        finally:
            if url_step is not None and (missing := _without_address(sources)):
                note(missing)
        report.files = run.place_in(folder)
        found = {_JOB: job_hash} if reuse else {}
        write_json(folder / REPORT, {"spec": spec.model_dump(), **found, **asdict(report)})
    return report


def _hash_of(identity: Sequence[Any]) -> str:
    """Stands for the inputs and settings of a call, in a report."""
    return hex_digest(blake3(json.dumps(identity).encode()))


def _finished(target: Path, job_hash: str) -> CleaningReport | None:
    """The report of a folder that the same call made, if all of its files are there."""
    found = read_json(target / REPORT) if (target / REPORT).is_file() else None
    if not isinstance(found, dict) or found.get(_JOB) != job_hash:
        return None
    report = TypeAdapter(CleaningReport).validate_python(
        {name: value for name, value in found.items() if name not in ("spec", _JOB)}
    )
    return report if all((target / name).is_file() for name in report.files) else None


def read_cleaning(spec: str | Path | CleaningSpec) -> CleaningSpec:
    """The steps; a path is read as YAML."""
    return spec if isinstance(spec, CleaningSpec) else CleaningSpec.parse(read_yaml(spec), str(spec))


@contextmanager
def cleaned_text(
    inputs: Sequence[str],
    beside: Path,
    spec: CleaningSpec,
    field: str | None = None,
    separator: str | None = None,
    skip_invalid: bool = False,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a folder with the documents of `inputs` that pass all steps, and a summary of what was removed.

    The folder is beside a path, and is removed after the block. If that is killed or interrupted, the folder stays, and
    the same call uses it again. The arguments are those of `clean`.
    """
    target = beside.with_name(f".{beside.name}.cleaned")
    report = clean(list(inputs), target, spec, field, separator, skip_invalid, overwrite=True, reuse=True)
    try:
        read, kept = report.read, report.kept
        removed = report.describe_removed()
        note(f"{kept.documents:,} of {read.documents:,} documents stay after cleaning; removed: {removed}")
        summary = {
            "steps": spec.model_dump(mode="json")["steps"],
            "inputs": list(inputs),
            "read": asdict(read),
            "kept": asdict(kept),
            "removed": {step.step: asdict(step.removed) for step in report.steps},
        }
        yield str(target), summary
    except (KeyboardInterrupt, SystemExit):
        note(f"{target}: the cleaned text stays there, and the same command uses it again")
        raise
    except BaseException:
        rmtree(target, ignore_errors=True)
        raise
    rmtree(target, ignore_errors=True)


def _pass(stage: CleaningStage, tests: Sequence[Source]) -> Pass:
    settings = comparison_settings(stage.comparisons) if stage.comparisons else None
    return Pass(stage.filters, settings, tests, stage.first, len(stage.comparisons))


def _files_of(step: Step) -> list[str]:
    """The files that a step reads besides documents."""
    if step.kind == "url":
        return step.files
    return [step.model] if step.kind == "language" and step.model is not None else []


def _without_address(sources: Sequence[Source]) -> str | None:
    """A line on documents that a list of addresses says nothing of."""
    documents = sum(source.counts.documents for source in sources)
    missing = documents - sum(source.counts.located for source in sources)
    return (
        f"{missing:,} of {documents:,} documents have no address, so the step url lets them pass" if missing else None
    )


def _evaluation_files(stack: ExitStack, stage: CleaningStage, skip_invalid: bool) -> list[Source]:
    """Open what the documents of a stage are compared with."""
    for step in stage.comparisons:
        if step.kind == "decontamination":
            try:
                return open_sources(stack, step.against, step.field, step.separator, skip_invalid)
            except UserError as error:
                raise UserError(str(error), field=f"{step.kind}.against") from error
    return []
