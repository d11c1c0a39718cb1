"""A progress bar with an ETA on standard error; silent when standard error is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, amount: float, note: str = "") -> None:
        """Move by `amount` and show `note`."""


def _ignore(amount: float, note: str = "") -> None:
    """What stands for a bar where nobody watches."""


@contextmanager
def progress(description: str, total: float | None, unit: str = "") -> Iterator[Advance]:
    """Yield `advance(amount, note)`: moves the bar by `amount` and shows `note` beside it.

    `total` is in units of `amount`; None shows a bar without an end. Prints nothing where there is no terminal.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float, note: str = "") -> None:
            bar.update(task, advance=amount, note=note)

        yield advance
