"""Deduplication of files: exact copies, near-duplicates, and what a model is evaluated on are left out.

The inputs are read twice: once to describe each document, once to write those that stay.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from linnet.core.errors import UserError
from linnet.core.executors import TaskExecutor
from linnet.core.files import write_json
from linnet.data.cleaning_report import COMPARISONS, CleaningReport, StepReport
from linnet.data.comparison import DeduplicationReport, DeduplicationSpec
from linnet.data.passes import Pass, Passes, PassesJob
from linnet.data.sources import REPORT, expand_inputs, open_sources
from linnet.data.text_folder import SHARD_BYTES, checked_text_target, new_text_folder

_HOLDS = "deduplicated text"


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
    executor: TaskExecutor | None = None,
    portion_bytes: int | None = None,
    compress: str | None = None,
) -> DeduplicationReport:
    """Write the documents of `inputs` (see `sources.Source`) that are no copies into a folder of .jsonl files.

    Of documents that are copies of each other the first in the order of the inputs stays. against: evaluation files; a
    document that is a copy or near-duplicate of a document in them, or overlaps one, is left out. The result depends on
    the inputs and `spec` alone, not on `workers` (processes; None: as many as processors). The folder appears complete
    or not at all; one that is there is replaced only with `overwrite`, and only if it holds nothing but such files. A
    call that is killed or interrupted leaves its part beside `out`, and the same call goes on there. executor: its
    workers do the first pass, a portion of about `portion_bytes` of the inputs each. compress: gz or zst, of the files.
    """
    spec = spec or DeduplicationSpec()
    target = checked_text_target(out, overwrite, _HOLDS, compress)
    if not inputs:
        raise UserError("no files given; expected files or folders of text, or - for the standard input")
    with ExitStack() as stack:
        opened = open_sources(stack, [*against, *inputs], field, separator, skip_invalid, "url", may_repeat=True)
        of_tests = len(expand_inputs(against))
        tests, sources = opened[:of_tests], opened[of_tests:]
        identity = [spec.model_dump(mode="json"), [one.identity() for one in opened], len(tests)]
        identity += [field, separator, skip_invalid, shard_bytes, compress]
        folder, unfinished = stack.enter_context(new_text_folder(target, overwrite, _HOLDS, identity))
        job = PassesJob(CleaningReport([StepReport(step) for step in COMPARISONS]))
        both = [Pass(settings=spec, tests=tests, comparisons=len(COMPARISONS)), Pass()]
        passes = Passes(unfinished, both, job, sources, workers, shard_bytes, executor, portion_bytes, compress)
        passes.run()
        assert passes.comparison is not None, "the last pass applied what the first one decided"
        report = passes.comparison.report
        report.files = passes.place_in(folder)
        write_json(folder / REPORT, {"spec": spec.model_dump(), **report.to_dict()})
    return report
