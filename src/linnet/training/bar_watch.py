"""Shows a model's training: a bar on a terminal, a few plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from linnet.training.watch import Progress, Watch, duration


@contextmanager
def model_watch(title: str, steps: int) -> Iterator[Watch]:
    """What watches the training of one model; its bar stays when it is done."""
    if not sys.stderr.isatty():
        yield LineWatch(title, steps)
        return
    watch = BarWatch(title)
    try:
        yield watch
    finally:
        watch.close()


class BarWatch(Watch):
    """A bar, progress, ETA, loss, bits per byte and speed in a line that 80 columns hold.

    The bar takes what room the text leaves; `present.progress` has columns of its own, too many beside all that. It
    appears when training begins: a model that is finished gets none.
    """

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.fields[text]}")
        self._bar = Bar(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(title, total=1.0, text="")

    def note(self, text: str) -> None:
        """Print it above the bar."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, step: int, steps: int) -> None:
        """Show where the run goes on."""
        self._begun_s = time.monotonic()
        self._show(step / steps, "")
        self._bar.start()

    def step(self, progress: Progress) -> None:
        """Show it."""
        share = progress.step / progress.steps
        elapsed_s = time.monotonic() - self._begun_s
        remaining = f"ETA {duration(progress.eta_s)}" if share < 1 else f" in {duration(elapsed_s)}"
        self._show(share, f"{remaining:<8}  {_short(progress)}")

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def _show(self, share: float, text: str) -> None:
        self._bar.update(self._task, completed=share, text=f"{share:4.0%} {text}")


class LineWatch(Watch):
    """A plain line at each evaluation."""

    def __init__(self, title: str, steps: int) -> None:
        self._title, self._steps = title, steps
        self._latest = ""

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def step(self, progress: Progress) -> None:
        """Remember it for the next line."""
        self._latest = _short(progress)

    def line(self, line: dict[str, Any]) -> None:
        """Print where the model stands, if it was evaluated."""
        if "validation" not in line:
            return
        place = f"{line['step']}/{self._steps}"
        validation = f"held out {line['validation']['bits_per_byte']:.3f}"
        text = f"{self._title:<9} {place:>9}  ETA {duration(line['eta_s'])}  {self._latest}  {validation}"
        print(text, file=sys.stderr, flush=True)


def _short(progress: Progress) -> str:
    return (
        f"loss {progress.nats_per_token:.2f}  {progress.bits_per_byte:.3f} bits/byte"
        f"  {progress.tokens_per_s:>6,.0f} tokens/s"
    )
