"""The progress bar with an ETA on standard error; silent if standard error is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from linnet.present import numbers


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, amount: float, note: str = "", eta_s: float | None = None) -> None:
        """Advance by `amount` and show `note`. `eta_s`: the remaining time if the caller knows it better."""


def _ignore(amount: float, note: str = "", eta_s: float | None = None) -> None:
    """Stand in for a bar where there is no terminal."""


@contextmanager
def progress(
    description: str,
    total: float | None,
    unit: str = "",
    completed: int = 0,
    shown: bool = True,
    is_estimate: bool = False,
) -> Iterator[Advance]:
    """Show a progress bar and yield the function that advances it.

    total, completed: in units of `amount`; a total of None shows a bar without an end. shown: False for all but one of
    several processes. is_estimate: of the total, so that the bar is complete when the work ends below it.
    """
    if not shown or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class BarLine(ProgressColumn):
        """The position, the remaining or elapsed time, and the note."""

        def render(self, task: Task) -> Text:
            left_s = task.time_remaining if task.fields["eta_s"] is None else task.fields["eta_s"]
            if task.finished or left_s is None:
                time_text = f"in {numbers.duration(task.elapsed or 0.0)}"
            else:
                time_text = f"ETA {numbers.duration(left_s)}"
            place = "/".join(numbers.grouped(count) for count in (task.completed, task.total) if count is not None)
            return Text("  ".join(filter(None, (f"{place} {unit}".rstrip(), time_text, task.fields["note"]))))

    columns = TextColumn("{task.description}", markup=False), BarColumn(), BarLine(Column(no_wrap=True))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, completed=completed, note="", eta_s=None)

        def advance(amount: float, note: str = "", eta_s: float | None = None) -> None:
            bar.update(task, advance=amount, note=note, eta_s=eta_s)

        yield advance
        if is_estimate:
            bar.update(task, total=bar.tasks[0].completed)
