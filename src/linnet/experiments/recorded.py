"""Runs that exist already, side by side, from what they recorded: no model is read, nothing is trained."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from linnet.core.checksum import read_checked_json
from linnet.core.errors import UserError
from linnet.experiments.executors import read_suite_folder
from linnet.experiments.jobs import training_values
from linnet.experiments.results import TRAINING, Findings, ResultRow, read_rows, summarize
from linnet.experiments.run import check_finished
from linnet.experiments.suite import RESULTS, SUITE
from linnet.model.folder import MODEL
from linnet.training.metrics import CONFIG, FILES
from linnet.training.runs import FinishedRun, read_run_folder, runs_of

SEED_AT_END = re.compile(r"([-_. ]*seed)?[-_. ]*\d+$")


@dataclass(frozen=True)
class _Source:
    """The rows of a suite, or of runs that differ only in their seeds. origin: a unique name."""

    name: str
    shown: list[str]
    rows: list[ResultRow]
    origin: Path
    full: bool = True
    """True if the likelihood was measured on the whole held-out text."""


def recorded(sources: Sequence[Path]) -> Findings:
    """The runs in these folders: folders of runs, of suites, and folders that hold `runs/`.

    If the likelihood on the whole held-out text is known of all runs it is shown, else that of the last evaluation
    during training. `UserError` names a run that is missing, not finished, or not comparable with the others.
    """
    for source in sources:
        if not source.is_dir():
            raise UserError(f"{source}: no such folder; expected the folder of a run or of a comparison")
    suites = []
    for folder in (source for source in sources if (source / SUITE).is_file()):
        suite, _ = read_suite_folder(folder)
        rows = read_rows(folder / RESULTS)
        check_finished(suite, rows, folder)
        shown = [run.name for run in suite.runs if run.shown]
        suites.append(_Source(suite.name, shown, rows, folder, suite.measures.likelihood == "full"))
    single = [path for source in sources if not (source / SUITE).is_file() for path in runs_of(source)]
    found = suites + _run_sources(single)
    if not found:
        raise UserError(f"{sources[0]}: no run in it")
    _check_comparable(found)
    full = all(one.full for one in found)
    name = found[0].name if len(sources) == len(suites) == 1 else "runs compared"
    names = Counter(run for one in found for run in one.shown)
    runs, failures = [], []
    for one in found:
        summary = summarize(one.name, one.rows, one.shown, recorded=not full)
        failures += summary.failures
        for run in summary.runs:
            unique = f"{one.origin}: {run.name}" if one in suites else str(one.origin)
            runs.append(replace(run, name=run.name if names[run.name] == 1 else unique))
    return Findings(name, runs, failures)


def _run_sources(paths: Sequence[Path]) -> list[_Source]:
    """Runs that differ only in their seeds together, in the order of their first; each run once."""
    folders = [path.parent if path.name == MODEL and (path.parent / CONFIG).is_file() else path for path in paths]
    groups: dict[str, list[FinishedRun]] = {}
    for path in {folder.resolve(): folder for folder in folders}.values():
        run = read_run_folder(path)
        plain = run.spec.to_dict()
        del plain["data"], plain["training"]["seed"]  # the data is compared by its hash
        files = read_checked_json(run.path / FILES) if (run.path / FILES).is_file() else {}
        groups.setdefault(json.dumps([plain, files], sort_keys=True), []).append(run)
    sources = []
    for runs in groups.values():
        # Two runs that share a seed come from other programs or machines, and stay apart.
        one_group = len({run.seed for run in runs}) == len(runs)
        for members in [runs] if one_group else [[run] for run in runs]:
            names = [run.path.resolve().name for run in members]
            common = {SEED_AT_END.sub("", name) for name in names} if len(members) > 1 else set()
            name = (common.pop() if len(common) == 1 else names[0]) or names[0]
            rows = [
                ResultRow(run=name, seed=run.seed, measure=TRAINING, values=training_values(run)) for run in members
            ]
            sources.append(_Source(name, [name], rows, members[0].path, full=False))
    return sources


def _check_comparable(sources: Sequence[_Source]) -> None:
    """`UserError` naming two sources whose losses are not of the same tokens of the same text.

    Only the first run of each suite counts: its runs are measured on the same documents, whatever part they trained on.
    """
    firsts = []
    for source in sources:
        trained = [row for row in source.rows if row.measure == TRAINING and row.status == "measured"]
        firsts += [(source.origin, row.values) for row in trained[:1]]
    for origin, values in firsts[1:]:
        for field, what in (("tokenizer", "tokenizer"), ("data", "data folder")):
            if values[field] != firsts[0][1][field]:
                raise UserError(
                    f"{origin}: another {what} than {firsts[0][0]}: their losses are not comparable;"
                    f" expected runs on one {what}; leave out the others"
                )
