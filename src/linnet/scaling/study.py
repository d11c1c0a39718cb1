"""All runs that a law is to be fitted to, from CSV files and run folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linnet.errors import UserError
from linnet.progress import progress
from linnet.scaling.points import Run
from linnet.scaling.run_folders import FolderRun, check_comparable, read_run_folder
from linnet.scaling.run_table import read_run_table


@dataclass(frozen=True)
class Study:
    """Runs, and the bytes of text per token that their losses are of (None where it is not known)."""

    runs: list[Run]
    bytes_per_token: float | None


def read_study(sources: Sequence[Path]) -> Study:
    """One CSV file, or run folders; `UserError` where they do not go together."""
    tables = [path for path in sources if path.is_file()]
    if tables and len(sources) > 1:
        raise UserError(f"{tables[0]}: one CSV file, or folders of runs; not several and not both")
    if tables:
        return Study(read_run_table(tables[0]), None)
    folders: list[FolderRun] = []
    with progress("read runs", len(sources)) as advance:
        for path in sources:
            folders.append(read_run_folder(path))
            advance(1)
    check_comparable(folders)
    return Study([one.run for one in folders], folders[0].bytes_per_token)
