"""The progress bar, with an ETA, on standard error; silent when standard error is not a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from linnet.present import numbers


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, amount: float, note: str = "", eta_s: float | None = None) -> None:
        """Move by `amount` and show `note`. `eta_s`: the time that is left, where the caller knows better."""


def _ignore(amount: float, note: str = "", eta_s: float | None = None) -> None:
    """What stands for a bar where nobody watches."""


@contextmanager
def progress(description: str, total: float | None, unit: str = "", completed: int = 0) -> Iterator[Advance]:
    """Yield `advance(amount, note)`: moves the bar by `amount` and shows `note` beside it.

    `total` is in units of `amount`; None shows a bar without an end; `completed` was done before. Prints nothing where
    there is no terminal. The bar takes what room the text leaves.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class BarLine(ProgressColumn):
        """How far it is, how long it takes, the note."""

        def render(self, task: Task) -> Text:
            left_s = task.time_remaining if task.fields["eta_s"] is None else task.fields["eta_s"]
            if task.finished or left_s is None:
                time_said = f"in {numbers.duration(task.elapsed or 0.0)}"
            else:
                time_said = f"ETA {numbers.duration(left_s)}"
            place = "/".join(numbers.grouped(count) for count in (task.completed, total) if count is not None)
            return Text("  ".join(filter(None, (f"{place} {unit}".rstrip(), time_said, task.fields["note"]))))

    columns = TextColumn("{task.description}", markup=False), BarColumn(), BarLine(Column(no_wrap=True))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, completed=completed, note="", eta_s=None)

        def advance(amount: float, note: str = "", eta_s: float | None = None) -> None:
            bar.update(task, advance=amount, note=note, eta_s=eta_s)

        yield advance
