"""The progress bar with an ETA on standard error; silent if standard error is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from linnet.present import numbers

if TYPE_CHECKING:
    from rich.progress import Progress

_shown: "Progress | None" = None
"""The bars on the terminal; there is one place for them, which two displays would draw over each other."""


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
    several processes. is_estimate: of the total, so that the bar is complete when the work ends below it. A bar within
    another one is a line below that, and goes when its work ends.
    """
    global _shown
    if not shown or not sys.stderr.isatty():
        yield _ignore
        return
    outer = _shown
    with _display() if outer is None else nullcontext(outer) as bars:
        task = bars.add_task(description, total=total, completed=completed, unit=unit, note="", eta_s=None)

        def advance(amount: float, note: str = "", eta_s: float | None = None) -> None:
            bars.update(task, advance=amount, note=note, eta_s=eta_s)

        _shown = bars
        try:
            yield advance
        finally:
            _shown = outer
            if outer is not None:
                outer.remove_task(task)
        if is_estimate and outer is None:
            bars.update(task, total=bars.tasks[0].completed)


def _display() -> "Progress":
    """An empty place for bars on standard error."""
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
            place = f"{place} {task.fields['unit']}".rstrip()
            return Text("  ".join(filter(None, (place, time_text, task.fields["note"]))))

    columns = TextColumn("{task.description}", markup=False), BarColumn(), BarLine(Column(no_wrap=True))
    return Progress(*columns, console=Console(stderr=True))
