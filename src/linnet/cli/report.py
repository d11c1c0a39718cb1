"""An answer with tables: on the terminal, as JSON, and as a page with pictures."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from linnet.cli.console import invocation, note

if TYPE_CHECKING:
    from linnet.present.report import Picture, Table

MEANING_WIDTH, NEVER_CUT = 120, 10_000


def show(
    title: str,
    facts: dict[str, str],
    figures: dict[str, Any],
    tables: "Sequence[Table]",
    pictures: "Callable[[], Sequence[Picture]]",
    out: Path | None,
    as_json: bool,
    conclusion: str = "",
) -> None:
    """Print tables or JSON; draw and write the report where it is asked for. `conclusion`: what follows, in a line."""
    if out is not None:
        from linnet.present.report import Report, write_report

        path = write_report(Report(title, facts, tables, pictures(), invocation(), conclusion), out)
        note(f"report: {path}")
    if as_json:
        typer.echo(json.dumps(figures, indent=2, ensure_ascii=False, allow_nan=False).encode())
    else:
        _print(title, facts, tables, conclusion)


def _print(title: str, facts: dict[str, str], tables: "Sequence[Table]", conclusion: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from linnet.present.page import printable

    console = Console(highlight=False, markup=False)
    terminal_width = min(console.width, MEANING_WIDTH)
    console.width = NEVER_CUT  # a number is never shortened
    with console.capture() as captured:
        console.print(Text(printable(": ".join([title, *facts.values()]))))
        for table in tables:
            drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(table.columns))
            for number, column in enumerate(table.columns):
                drawn.add_column(column, justify="left" if table.text or not number else "right")
            for row in table.rows:
                drawn.add_row(*row)
            console.print()
            console.print(Text(table.title, style="bold"))
            console.print(drawn)
            console.print(Text(table.meaning), style="dim", width=terminal_width)
        if conclusion:
            console.print()
            console.print(Text(conclusion))
    typer.echo("\n".join(line.rstrip() for line in captured.get().split("\n")).encode(), nl=False)
