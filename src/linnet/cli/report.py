"""An answer with tables: on the terminal, as JSON, and as a page with pictures."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli.console import invocation, note

if TYPE_CHECKING:
    from linnet.present.report import Part, Picture


def show(
    title: str,
    facts: dict[str, str],
    figures: dict[str, Any],
    parts: "Sequence[Part]",
    pictures: "Callable[[], Sequence[Picture]]",
    out: Path | None,
    as_json: bool,
    conclusion: str = "",
) -> None:
    """Print tables or JSON; draw and write the report where it is asked for. `conclusion`: what follows, in a line."""
    from linnet.present.report import Report
    from linnet.present.terminal import report_text, width_of_terminal

    if out is not None:
        from linnet.present.page import write_page

        path = write_page(Report(title, facts, [*pictures(), *parts], invocation(), conclusion), out)
        note(f"report: {path}")
    if as_json:
        echo_json(figures)
    else:
        report = Report(title, facts, parts, invocation(), conclusion)
        _echo(report_text(report, width_of_terminal(), sys.stdout.isatty()))


def echo_json(figures: Any) -> None:
    """Figures on the standard output, for another program."""
    _echo(json.dumps(figures, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def echo_parts(*parts: "Part") -> None:
    """Tables and passages alone on the standard output."""
    from linnet.present.terminal import parts_lines, width_of_terminal

    lines = [*parts_lines(parts, width_of_terminal(), sys.stdout.isatty())]
    _echo("".join(f"{line}\n" for line in lines[1:]))


def _echo(text: str) -> None:
    """As UTF-8 whatever the terminal's encoding: a story may hold any character."""
    typer.echo(text.encode(), nl=False)
