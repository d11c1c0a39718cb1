"""All runs that a law is to be fitted to, from a CSV file, or from the folders of runs and of comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linnet.core.errors import UserError
from linnet.model.store import RUNS
from linnet.present.progress import progress
from linnet.scaling.points import Run
from linnet.scaling.run_folders import FolderRun, NoRunError, check_comparable, read_run_folder
from linnet.scaling.run_table import read_run_table
from linnet.training.record import CONFIG

TABLE_SUFFIX = ".csv"


@dataclass(frozen=True)
class Study:
    """Runs, and the bytes of text per token that their losses are of (None where it is not known).

    `left_out`: a line for each path among several that is no finished run; it says why.
    """

    runs: list[Run]
    bytes_per_token: float | None
    left_out: list[str]


def read_study(sources: Sequence[Path]) -> Study:
    """One CSV file; or folders of runs, and folders that hold `runs/`, as comparisons and studies do.

    Among several paths those that are no finished run are left out. `UserError` where nothing remains, where a path
    does not exist, and where the runs do not go together.
    """
    for path in sources:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; expected a CSV file, or folders of runs")
    files = [path for path in sources if path.is_file()]
    tables = [path for path in files if len(files) == len(sources) or path.suffix.lower() == TABLE_SUFFIX]
    if tables and len(sources) > 1:
        raise UserError(f"{tables[0]}: one CSV file, or folders of runs; not several and not both")
    return Study(read_run_table(tables[0]), None, []) if tables else _read_folders(sources)


def _read_folders(sources: Sequence[Path]) -> Study:
    paths = {path.resolve(): path for source in sources for path in runs_of(source)}  # each run once
    found: list[FolderRun] = []
    left_out = []
    with progress("read runs", len(paths)) as advance:
        for path in paths.values():
            try:
                found.append(read_run_folder(path))
            except NoRunError as error:
                left_out.append(str(error))
            advance(1)
    if not found:
        raise UserError(left_out[0] if len(left_out) == 1 else _nothing(sources, left_out))
    check_comparable(found)
    return Study([one.run for one in found], found[0].bytes_per_token, left_out)


def runs_of(source: Path) -> list[Path]:
    """A path as it is; of a folder that is no run but holds `runs/`, the folders in there, by name."""
    if (source / CONFIG).is_file() or not (source / RUNS).is_dir():
        return [source]
    members = sorted(member for member in (source / RUNS).iterdir() if member.is_dir())
    return [path for member in members for path in runs_of(member)]


def _nothing(sources: Sequence[Path], left_out: Sequence[str]) -> str:
    where = f"{sources[0]}: " if len(sources) == 1 else ""
    first = f"; the first: {left_out[0]}" if left_out else ""
    among = f"no finished run among {len(left_out)} paths{first}" if left_out else "no run in it"
    return f"{where}{among}"
