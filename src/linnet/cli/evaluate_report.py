"""`linnet evaluate --report`: several models on one page, with a Markdown table."""

from pathlib import Path
from typing import TYPE_CHECKING

from linnet.cli.console import check_out_folder, invocation, note
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.evaluation.comparison import PairedComparison
    from linnet.evaluation.tasks.interface import TaskFindings
    from linnet.experiments.side_by_side.report import SideBySide
    from linnet.experiments.side_by_side.wanted import Wanted


def check_report(report: Path | None, also: Path | None, several: bool) -> None:
    """`UserError`, before anything takes time, for a page of one model, or with questions that cannot be read."""
    if also is not None and report is None:
        raise UserError(f"--also {also}: goes with --report, the page that it belongs to")
    if report is None:
        return
    if not several:
        raise UserError(f"--report {report}: goes with several models")
    check_out_folder(report, "--report")
    _wanted(also)


def write_text_report(found: "PairedComparison", data: Path, also: Path | None, report: Path, device: str) -> None:
    """The page of models that read a text."""
    from linnet.experiments.side_by_side.evaluated import of_text

    _write(of_text(found, str(data), _wanted(also), device), report)


def write_task_report(found: "TaskFindings", also: Path | None, report: Path, device: str) -> None:
    """The page of models that were asked tasks."""
    from linnet.experiments.side_by_side.evaluated import of_tasks

    _write(of_tasks(found, _wanted(also), device), report)


def _wanted(also: Path | None) -> "Wanted | None":
    if also is None:
        return None
    from linnet.experiments.side_by_side.wanted import Wanted

    wanted = Wanted.load(also)
    wanted.check(str(also))
    return wanted


def _write(found: "SideBySide", folder: Path) -> None:
    from linnet.experiments.side_by_side.report import write_report

    note(f"report: {write_report(found, folder, invocation())}")
