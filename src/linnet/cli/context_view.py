"""`linnet generate --show-context`: what each layer with a choice of cache policies holds, live beneath the text."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from linnet.core.system import DeferredSignals

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

    from linnet.model.state import DecoderState

REFRESH_S = 0.1
"""Shortest time between two pictures."""

WAITS = 20
"""The pause between pictures is at least this many times the time of drawing: at most 5 % of the time is drawing."""

NEVER_CUT = 1000
"""Columns of the last table, so that numbers are never shortened."""

LEAST_TEXT = 3
"""Lines of the screen that the table leaves to the text."""


class ContextView:
    """A picture on the terminal that follows a generation until it is closed, and then is gone.

    Drawn between two pieces of text, never in another thread: it shows one moment of the state, and takes no time
    from the model but its own.
    """

    def __init__(self, state: "DecoderState | None", prompt: str, streams: bool) -> None:
        """On the standard output, with the text, where that is a terminal and `streams`; else on the standard error.

        No picture where neither is a terminal, or the state is None.
        """
        self._state, self._tail = state, prompt
        self.has_text = state is not None and streams and _is_screen(sys.stdout)
        """Whether the picture shows the text; then nothing else may be written before it is closed."""
        self._live: Live | None = None
        if self.has_text or (state is not None and _is_screen(sys.stderr)):
            self._live = _live(sys.stdout if self.has_text else sys.stderr)

    def follow(self, pieces: Iterable[str]) -> Iterator[str]:
        """The pieces themselves, each shown as soon as it is there, but not too often."""
        if self._live is None:
            yield from pieces
            return
        next_s = self._draw(self._live)
        for piece in pieces:
            yield piece
            self._tail += piece if self.has_text else ""
            if time.monotonic() >= next_s:
                next_s = self._draw(self._live)

    def close(self) -> None:
        """Take the picture away."""
        if self._live is not None:
            with DeferredSignals():
                # What is drawn last is taken away line by line: with one line nothing can have left the screen.
                self._live.update("")
                self._live.stop()

    def _draw(self, live: "Live") -> float:
        """Draw a new picture in the place of the last; the time from which the next may be drawn."""
        start_s = time.monotonic()
        with DeferredSignals():  # half a picture could not be taken away
            live.start()
            live.update(self._picture(*live.console.size), refresh=True)
        end_s = time.monotonic()
        return end_s + max(REFRESH_S, WAITS * (end_s - start_s))

    def _picture(self, width: int, height: int) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        assert self._state is not None
        # The last line of the screen stays free, or drawing would move all others up.
        height -= 1
        table = context_table(self._state, height - (LEAST_TEXT + 1 if self.has_text else 0))
        if not self.has_text:
            return table
        lines = _folded(self._tail, width)[-max(height - table.row_count - 2, 1) :]
        self._tail = "\n".join(lines)
        return Group(Text(self._tail, no_wrap=True), "", table)

    def print_table(self) -> None:
        """The last picture's table, whole, on the standard error."""
        if self._state is not None:
            from rich.console import Console

            Console(stderr=True, width=NEVER_CUT, highlight=False, markup=False).print(context_table(self._state))


def context_table(state: "DecoderState", height: int | None = None) -> "Table":
    """One row per layer that has a choice; no more lines than `height`, heading included, but at least two."""
    from rich.table import Table

    from linnet.inference.cache_policy import layer_sizes

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", "context", "size", "average size"):
        table.add_column(heading, justify="left" if heading == "context" else "right", no_wrap=True)
    sizes = layer_sizes(state)
    room = len(sizes) if height is None else max(height - 1, 1)
    for layer in sizes[: room if len(sizes) <= room else room - 1]:
        table.add_row(str(layer.layer), layer.cache_policy.name, f"{layer.size:,}", f"{layer.mean_size:,.2f}")
    if len(sizes) > room:
        table.add_row("...")
    return table


def context_figures(state: "DecoderState") -> list[dict[str, Any]]:
    """The same for JSON, with all settings."""
    from linnet.inference.cache_policy import layer_sizes

    return [
        {"layer": layer.layer, **layer.cache_policy.to_dict(), "size": layer.size, "average_size": layer.mean_size}
        for layer in layer_sizes(state)
    ]


def _is_screen(stream: TextIO) -> bool:
    """Whether pictures can be drawn there."""
    from rich.console import Console

    return stream.isatty() and Console(file=stream).is_interactive


def _live(stream: TextIO) -> "Live":
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream, highlight=False, markup=False)
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)


def _folded(text: str, width: int) -> list[str]:
    """The lines that a terminal of this width makes of the text."""
    from rich.cells import chop_cells

    from linnet.core.errors import printable

    lines = (printable(line.expandtabs()) for line in text.split("\n"))
    return [part for line in lines for part in chop_cells(line, width) or [""]]
