"""Who looks at a run while it goes: nobody, a log, a terminal, or a caller's own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from linnet.core import numbers
from linnet.present.progress import Advance, progress


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step; means are over the steps since the last line of figures.

    `bits_per_byte` is the training loss. `validation` holds the latest evaluation's figures, None before the first.
    """

    step: int
    steps: int
    tokens: int
    nats_per_token: float
    bits_per_byte: float
    lr: float
    gradient_norm: float
    tokens_per_s: float
    eta_s: float
    validation: dict[str, Any] | None


class Watch:
    """Hears of a run's progress. This one ignores it; a caller overrides what it wants to show."""

    def note(self, text: str) -> None:
        """Something worth a line: a resumed checkpoint, a changed vocabulary, a stop."""

    def begin(self, step: int, steps: int) -> None:
        """The run starts, or goes on, after `step` of `steps`."""

    def step(self, progress: Progress) -> None:
        """A step was made."""

    def line(self, line: dict[str, Any]) -> None:
        """A line was written to `metrics.jsonl`."""


class LogWatch(Watch):
    """A plain line on standard error for each line of figures: readable in a file."""

    def __init__(self) -> None:
        self._steps = 0

    def note(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, step: int, steps: int) -> None:
        """Remember the end."""
        self._steps = steps

    def line(self, line: dict[str, Any]) -> None:
        """Print step, loss, validation, speed, memory and ETA."""
        parts = [
            f"step {line['step']}/{self._steps}",
            f"loss {line['loss']:.4f}",
            f"{line['bits_per_byte']:.4f} bits/byte",
            f"lr {line['lr']:.2e}",
            f"gradient norm {line['gradient_norm']:.3f}",
            *(f"{name} {value:.4g}" for name, value in line.get("terms", {}).items()),
            f"{line['tokens_per_s']:,.0f} tokens/s",
            f"{line['share_of_peak']:.1%} of peak",
            f"{line['memory_bytes'] / 1e6:,.0f} MB",
            f"ETA {duration(line['eta_s'])}",
        ]
        if "validation" in line:
            parts.append(f"validation {evaluation_text(line['validation'])}")
        print("  ".join(parts), file=sys.stderr, flush=True)


class BarWatch(Watch):
    """A progress bar on the terminal; make one with `terminal_watch`."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._at = 0

    def note(self, text: str) -> None:
        """Print it above the bar."""
        print(text, file=sys.stderr, flush=True)

    def begin(self, step: int, steps: int) -> None:
        """Move to where the run goes on."""
        self._move(step, "")

    def step(self, progress: Progress) -> None:
        """Move by one and show loss and speed, short enough for 80 columns."""
        loss = f"loss {progress.nats_per_token:.3f}, {progress.bits_per_byte:.3f} bits/byte"
        self._move(progress.step, f"{loss}, {progress.tokens_per_s / 1000:.1f}k tok/s")

    def line(self, line: dict[str, Any]) -> None:
        """Print an evaluation above the bar."""
        if "validation" in line:
            self.note(f"step {line['step']}: validation {evaluation_text(line['validation'])}")

    def _move(self, step: int, text: str) -> None:
        self._advance(step - self._at, text)
        self._at = step


@contextmanager
def terminal_watch(steps: int) -> Iterator[Watch]:
    """A bar with an ETA where standard error is a terminal, else a log."""
    if not sys.stderr.isatty():
        yield LogWatch()
        return
    with progress("train", steps) as advance:
        yield BarWatch(advance)


def evaluation_text(figures: dict[str, Any]) -> str:
    """Bits per byte, and the leak where there is one."""
    text = f"{figures['bits_per_byte']:.4f} bits/byte"
    if "leak" in figures:
        leak = numbers.signed(figures["leak"], 4)
        text += f" (whole sequence {figures['whole_sequence_bits_per_byte']:.4f}, leak {leak})"
    return text


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
