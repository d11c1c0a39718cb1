"""Reporters show a run's progress: none, a log, a bar in a terminal, or a caller's own."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from linnet.core.errors import print_error
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.training.objective_figures import held_out_rows


@dataclass(frozen=True)
class Progress:
    """The progress of a run after a step; means are over the steps since the last line of metrics.

    bits_per_byte: of the training loss. validation: the figures of the latest evaluation; None before the first.
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

    def __str__(self) -> str:
        return f"loss {self.nats_per_token:.2f}  {self.bits_per_byte:.3f} bits/byte  {self.tokens_per_s:,.0f} tokens/s"


class Reporter:
    """Receives the progress of a run. This class ignores it; subclasses override what they show."""

    def note(self, text: str) -> None:
        """A message for the user: a resumed checkpoint, a changed vocabulary, a stop."""

    def begin(self, step: int, steps: int) -> None:
        """The run starts or resumes after `step` of `steps`."""

    def step(self, progress: Progress) -> None:
        """A step was made."""

    def line(self, line: dict[str, Any]) -> None:
        """A line was written to `metrics.jsonl`."""


class TextReporter(Reporter):
    """Prints notes to the standard error."""

    _steps = 0

    def note(self, text: str) -> None:
        print_error(text)

    def begin(self, step: int, steps: int) -> None:
        self._steps = steps


class LogReporter(TextReporter):
    """A line on the standard error for each line of metrics, readable in a file."""

    def line(self, line: dict[str, Any]) -> None:
        parts = [
            f"step {line['step']}/{self._steps}",
            f"loss {line['loss']:.4f}",
            f"{line['bits_per_byte']:.4f} bits/byte",
            f"lr {line['lr']:.2e}",
            f"gradient norm {line['gradient_norm']:.3f}",
            *(f"{name} {value:.4g}" for name, value in line.get("terms", {}).items()),
            f"{line['tokens_per_s']:,.0f} tokens/s",
            *(f"{line[key]:.1%} of peak" for key in ("share_of_peak",) if line[key] is not None),
            *(f"Muon's share {line[key]:.1%}" for key in ("orthogonalizing_share",) if key in line),
            numbers.decimal(line["memory_bytes"]),
            f"ETA {numbers.duration(line['eta_s'])}",
        ]
        if "processes" in line:
            waited_s = [process["waiting_s"] for process in line["processes"]]
            parts.append(f"waiting {numbers.duration(min(waited_s))} to {numbers.duration(max(waited_s))}")
        if "validation" in line:
            parts += evaluation_parts(line)
        print_error("  ".join(parts))


class LineReporter(TextReporter):
    """A short line at each evaluation, for one model of several."""

    def __init__(self, title: str) -> None:
        self._title, self._latest = title, ""

    def step(self, progress: Progress) -> None:
        self._latest = str(progress)

    def line(self, line: dict[str, Any]) -> None:
        if "validation" in line:
            position = f"{line['step']}/{self._steps}"
            validation = f"held out {line['validation']['bits_per_byte']:.3f}"
            eta = f"ETA {numbers.duration(line['eta_s'])}"
            print_error(f"{self._title:<9} {position:>9}  {eta}  {self._latest}  {validation}")


class BarReporter(TextReporter):
    """A progress bar, which appears when training begins; notes are printed above it."""

    def __init__(self, title: str, evaluations: bool) -> None:
        """evaluations: print evaluations above the bar."""
        self._title, self._evaluations = title, evaluations
        self._open = ExitStack()
        self._at = 0

    def begin(self, step: int, steps: int) -> None:
        self._at = step
        self._advance = self._open.enter_context(progress(self._title, steps, completed=step))

    def step(self, progress: Progress) -> None:
        self._advance(progress.step - self._at, str(progress), progress.eta_s)
        self._at = progress.step

    def line(self, line: dict[str, Any]) -> None:
        if self._evaluations and "validation" in line:
            print_error(f"step {line['step']}: {'  '.join(evaluation_parts(line))}")

    def close(self) -> None:
        self._open.close()


@contextmanager
def terminal_reporter(title: str | None = None) -> Iterator[Reporter]:
    """A bar with an ETA if the standard error is a terminal, else a log. title: of one model among several."""
    if not sys.stderr.isatty():
        yield LogReporter() if title is None else LineReporter(title)
        return
    with closing(BarReporter(title or "train", evaluations=title is None)) as reporter:
        yield reporter


def evaluation_parts(line: dict[str, Any]) -> list[str]:
    """What was evaluated with a line of metrics: held-out text, and held-out pairs or prompts of a run on these."""
    return [
        f"validation {evaluation_text(line['validation'])}",
        *(f"{name}: {text}" for name, text in held_out_rows(line)),
    ]


def evaluation_text(figures: dict[str, Any]) -> str:
    """Bits per byte, and the leak if there is one."""
    text = f"{figures['bits_per_byte']:.4f} bits/byte"
    if "leak" in figures:
        leak = numbers.signed(figures["leak"], 4)
        text += f" (whole sequence {figures['whole_sequence_bits_per_byte']:.4f}, leak {leak})"
    return text
