"""An answer with tables: on the terminal, as JSON, and as a page with pictures."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli.console import invocation, note
from linnet.core.text import printable

if TYPE_CHECKING:
    from linnet.interop.exported import ExportResult
    from linnet.model.decoder import Decoder
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
        _write(report_text(report, width_of_terminal(), sys.stdout.isatty()))


def echo_json(figures: Any) -> None:
    """Figures on the standard output, for another program."""
    echo(json.dumps(figures, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def echo_parts(*parts: "Part") -> None:
    """Tables and passages alone on the standard output."""
    from linnet.present.terminal import parts_lines, width_of_terminal

    lines = [*parts_lines(parts, width_of_terminal(), sys.stdout.isatty())]
    _write("".join(f"{line}\n" for line in lines[1:]))


def echo(text: str) -> None:
    """On the standard output at once, as UTF-8 whatever the terminal's encoding: a character is never cut.

    A terminal gets nothing that it would obey; a file or pipe gets the text as it is.
    """
    _write(printable(text) if sys.stdout.isatty() else text)


def _write(text: str) -> None:
    typer.echo(text.encode(errors="surrogateescape"), nl=False)


def echo_model_made(decoder: "Decoder", out: Path, as_json: bool) -> None:
    """A model folder that was made, as `echo_export_result` says it."""
    from linnet.interop.exported import ExportResult
    from linnet.model.store import WEIGHTS

    echo_export_result(ExportResult.of(out, decoder, out / WEIGHTS), as_json)


def echo_export_result(made: "ExportResult", as_json: bool) -> None:
    """A model that was written: its parameters, the bytes of its weights and what was measured, in lines or as JSON."""
    if as_json:
        size = {"parameters": made.parameters, "weights_bytes": made.weights_bytes}
        echo_json({"model": str(made.path), "name": made.name, **size, **made.figures})
        return
    echo(f"{made.path}: {made.name}, {made.parameters:,} parameters, {made.weights_bytes:,} bytes of weights\n")
    for line in made.messages:
        echo(f"{line}\n")
