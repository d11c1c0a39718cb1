"""`linnet evaluate --report`: several models on one page, with a Markdown table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from linnet.cli.console import check_out_folder, invocation, note
from linnet.cli.options import option
from linnet.core.errors import UserError

if TYPE_CHECKING:
    from linnet.evaluation.results import ModelComparison
    from linnet.evaluation.subject import ModelOptions
    from linnet.evaluation.tasks.results import SuiteReport
    from linnet.experiments.protocol.run import ProtocolFindings
    from linnet.experiments.side_by_side.report import SideBySide
    from linnet.experiments.side_by_side.wanted import Wanted


@dataclass(frozen=True)
class AskedReport:
    """The page that is wanted, and what else it tells."""

    report: Annotated[
        Path | None,
        option("DIR", "Several models, or a protocol: one page (report.html) and the same in Markdown (report.md)."),
    ] = None
    also: Annotated[
        Path | None,
        option("FILE.yaml", "With --report: tasks, abilities, samples, speed to measure beside (docs/comparison.md)."),
    ] = None

    def check(self, enough: bool) -> None:
        """`UserError`, before anything takes time, for a page of one model, or with questions that cannot be read.

        enough: several models, or one of which a protocol makes rows.
        """
        if self.also is not None and self.report is None:
            raise UserError(f"--also {self.also}: goes with --report, the page that it belongs to")
        if self.report is None:
            return
        if not enough:
            raise UserError(f"--report {self.report}: goes with several models")
        check_out_folder(self.report, "--report")
        _wanted(self.also)

    def refuse_harness(self) -> None:
        """`UserError` where a page is wanted."""
        if self.report is not None:
            raise UserError("--report: has no place for tasks of the harness; expected it without --tasks")

    def write_text(self, found: "ModelComparison", data: Path, read: "ModelOptions") -> None:
        """The page of models that read a text."""
        if self.report is not None:
            from linnet.experiments.side_by_side.evaluated import of_text

            _write(of_text(found, str(data), _wanted(self.also), read), self.report)

    def write_tasks(self, found: "SuiteReport", read: "ModelOptions") -> None:
        """The page of models that were asked tasks."""
        if self.report is not None:
            from linnet.experiments.side_by_side.evaluated import of_tasks

            _write(of_tasks(found, _wanted(self.also), read), self.report)

    def write_protocol(self, found: "ProtocolFindings") -> None:
        """The page of a protocol's tables."""
        if self.report is not None:
            _write(found.page(), self.report)


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
