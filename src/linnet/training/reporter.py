"""Who looks at a run while it goes: nobody, a log, a terminal, or a caller's own."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from linnet.core.errors import print_error
from linnet.present import numbers
from linnet.present.progress import progress


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


class Reporter:
    """Hears of a run's progress. This one ignores it; a caller overrides what it wants to show."""

    def note(self, text: str) -> None:
        """Something worth a line: a resumed checkpoint, a changed vocabulary, a stop."""

    def begin(self, step: int, steps: int) -> None:
        """The run starts, or goes on, after `step` of `steps`."""

    def step(self, progress: Progress) -> None:
        """A step was made."""

    def line(self, line: dict[str, Any]) -> None:
        """A line was written to `metrics.jsonl`."""


class LogReporter(Reporter):
    """A plain line on standard error for each line of figures: readable in a file."""

    def __init__(self) -> None:
        self._steps = 0

    def note(self, text: str) -> None:
        """Print it."""
        print_error(text)

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
            *(f"orthogonalizing {line[key]:.1%}" for key in ("orthogonalizing_share",) if key in line),
            numbers.decimal(line["memory_bytes"]),
            f"ETA {numbers.duration(line['eta_s'])}",
        ]
        if "processes" in line:
            parts.append(f"waiting {_waiting(line['processes'])}")
        if "validation" in line:
            parts.append(f"validation {evaluation_text(line['validation'])}")
        print_error("  ".join(parts))


class LineReporter(Reporter):
    """A short line at each evaluation, for one model of several."""

    def __init__(self, title: str) -> None:
        self._title, self._steps, self._latest = title, 0, ""

    def note(self, text: str) -> None:
        """Print it."""
        print_error(text)

    def begin(self, step: int, steps: int) -> None:
        """Remember the end."""
        self._steps = steps

    def step(self, progress: Progress) -> None:
        """Remember it for the next line."""
        self._latest = _short(progress)

    def line(self, line: dict[str, Any]) -> None:
        """Print where the model stands, if it was evaluated."""
        if "validation" not in line:
            return
        place = f"{line['step']}/{self._steps}"
        validation = f"held out {line['validation']['bits_per_byte']:.3f}"
        eta = f"ETA {numbers.duration(line['eta_s'])}"
        self.note(f"{self._title:<9} {place:>9}  {eta}  {self._latest}  {validation}")


class BarReporter(Reporter):
    """The progress bar; it appears when training begins: a model that is finished gets none."""

    def __init__(self, title: str, evaluations: bool) -> None:
        self._title, self._evaluations = title, evaluations
        self._open = ExitStack()
        self._at = 0

    def note(self, text: str) -> None:
        """Print it above the bar."""
        print_error(text)

    def begin(self, step: int, steps: int) -> None:
        """Show where the run goes on."""
        self._at = step
        self._advance = self._open.enter_context(progress(self._title, steps, completed=step))

    def step(self, progress: Progress) -> None:
        """Move on and show loss and speed, short enough for 80 columns."""
        self._advance(progress.step - self._at, _short(progress), progress.eta_s)
        self._at = progress.step

    def line(self, line: dict[str, Any]) -> None:
        """Print an evaluation above the bar, where they are asked for."""
        if self._evaluations and "validation" in line:
            self.note(f"step {line['step']}: validation {evaluation_text(line['validation'])}")

    def close(self) -> None:
        """Leave the bar as it is."""
        self._open.close()


@contextmanager
def terminal_reporter(title: str | None = None) -> Iterator[Reporter]:
    """A bar with an ETA where standard error is a terminal, else a log: of one run, or in short of one of several.

    title: names the model where there are several.
    """
    if not sys.stderr.isatty():
        yield LogReporter() if title is None else LineReporter(title)
        return
    with closing(BarReporter(title or "train", evaluations=title is None)) as reporter:
        yield reporter


def evaluation_text(figures: dict[str, Any]) -> str:
    """Bits per byte, and the leak where there is one."""
    text = f"{figures['bits_per_byte']:.4f} bits/byte"
    if "leak" in figures:
        leak = numbers.signed(figures["leak"], 4)
        text += f" (whole sequence {figures['whole_sequence_bits_per_byte']:.4f}, leak {leak})"
    return text


def _waiting(processes: list[dict[str, Any]]) -> str:
    """How long processes waited for each other since the last line: the least and the most."""
    each_s = sorted(process["waiting_s"] for process in processes)
    return f"{numbers.duration(each_s[0])} to {numbers.duration(each_s[-1])}"


def _short(progress: Progress) -> str:
    return (
        f"loss {progress.nats_per_token:.2f}  {progress.bits_per_byte:.3f} bits/byte"
        f"  {progress.tokens_per_s:,.0f} tokens/s"
    )
