"""Lines of metrics, the progress shown to the user, figures of speed in `run.json`, and notes about slow steps."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict

from linnet.core.system import SCATTER_LIMIT, OtherPrograms, busy_advice, is_overloaded, scatter
from linnet.data.mixed_batches import MixedBatches
from linnet.model.cost import model_cost
from linnet.present import numbers
from linnet.training.callbacks import Callback
from linnet.training.callbacks.evaluation import Evaluate
from linnet.training.data import TrainingBatches
from linnet.training.distributed import Processes
from linnet.training.machine import peak_memory_bytes
from linnet.training.reporter import Progress
from linnet.training.spec import RunSpec
from linnet.training.step import StepResult
from linnet.training.timing import Pace

WARMUP_STEPS = 5
"""The first steps, which warm up or compile, are not counted."""

MIN_STEPS, MIN_S = 20, 10.0
"""The number of steps, and their time, that are evaluated together."""

BUSY = "busy"
"""The kind of problem that concerns the machine, not the run."""

WAIT_SHARE, MIN_WAIT_S = 0.1, 2e-3
"""A longer wait for data, as a share of a step and in seconds, is reported."""


@dataclass
class Meter:
    """Sums since the last line of metrics."""

    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0
    elapsed_s: float = 0.0
    data_wait_s: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    orthogonalizing_s: float = 0.0
    examples: int = 0
    example_terms: dict[str, float] = field(default_factory=dict)
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


@dataclass
class LogState:
    """meter: since the last line. orthogonalizing_s: in Muon's iteration, over all processes of the run."""

    meter: Meter = field(default_factory=Meter)
    orthogonalizing_s: float = 0.0
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


class Workload:
    """FLOPs and tokens of a resolved run's steps, whose windows and batches may grow."""

    def __init__(self, run: RunSpec, batches: TrainingBatches) -> None:
        self._run, self._growth, self._cost = run, run.growth, model_cost(run.model)
        self._pairs, self._counted_share = batches.mean_lengths, batches.counted_share
        assert run.training.context_length is not None, "an unresolved run"
        self.flops_per_token = self._flops_per_token(run.training.context_length)

    def _flops_per_token(self, length: int) -> float:
        """FLOPs of a forward pass per predicted token, in windows of a length, or for a pair of mean lengths."""
        if self._pairs is None:
            return self._cost.flops_per_token(length, with_head=True) / self._counted_share
        inputs, targets = (max(1, round(mean)) for mean in self._pairs)
        if self._run.model.encoder is not None:
            return self._cost.flops(targets, with_head=True, inputs=inputs) / targets
        return self._cost.flops(inputs + targets, with_head=True) / targets

    def relative_flops(self, first: int, last: int) -> float:
        """FLOPs per token of the steps after `first`, up to `last`, relative to the longest windows."""
        return self._growth.mean(self._flops_per_token, first, last) / self.flops_per_token

    def tokens(self, first: int, last: int) -> int:
        """Tokens predicted by the steps after `first`, up to `last`; for pairs an estimate."""
        if self._pairs is not None:
            spec = self._run.training
            return round((last - first) * spec.gradient_accumulation * spec.batch_size * self._pairs[1])
        return round(self._growth.tokens(first, last) * self._counted_share)


def share_of_peak(tokens_per_s: float, peak_tokens_per_s: float | None) -> float | None:
    """A speed relative to the peak; None if the peak is unknown, or cannot be one because the speed is higher."""
    return None if peak_tokens_per_s is None or tokens_per_s > peak_tokens_per_s else tokens_per_s / peak_tokens_per_s


class ProcessStats:
    """What each of several processes did, for lines of metrics and the final table; nothing for a single process."""

    def __init__(self, processes: Processes, device: torch.device, peak_tokens_per_s: float | None) -> None:
        """peak_tokens_per_s: of this process; None if unknown."""
        self._processes, self._device, self._peak = processes, device, peak_tokens_per_s
        # Tokens, seconds, and the time waited before: since the last line of metrics, and since the start.
        self._line, self._total = ([0.0, 0.0, processes.waits.seconds] for _ in range(2))

    def add(self, result: StepResult) -> None:
        """Count a step, whose tokens are divided equally among the processes."""
        for sums in (self._line, self._total):
            sums[0] += result.tokens / self._processes.count
            sums[1] += result.elapsed_s

    def figures(self, since_last_line: bool) -> dict[str, Any]:
        """`processes`: the figures of each since the last line, or since it was started. Called by all processes."""
        if self._processes.count == 1:
            return {}
        tokens, seconds, waited_before_s = self._line if since_last_line else self._total
        if since_last_line:
            self._line = [0.0, 0.0, self._processes.waits.seconds]
        tokens_per_s = tokens / seconds if seconds else 0.0
        own = {
            "process": self._processes.rank,
            "tokens_per_s": tokens_per_s,
            "share_of_peak": share_of_peak(tokens_per_s, self._peak),
            "memory_bytes": peak_memory_bytes(self._device),
            "waiting_s": self._processes.waits.seconds - waited_before_s,
        }
        return {"processes": self._processes.gather(own)}


class Log(Callback):
    """Writes a line of metrics every `log.every` steps and with each evaluation, and reports progress at each step."""

    name = "log"

    def __init__(
        self, evaluate: Evaluate, workload: Workload, stats: ProcessStats, peak_tokens_per_s: float | None
    ) -> None:
        """peak_tokens_per_s: of all processes, from the speed of one large matrix product in each; None if unknown."""
        self._evaluate, self._workload, self._stats = evaluate, workload, stats
        self._peak_tokens_per_s = peak_tokens_per_s
        self.state: LogState = LogState()
        self._pace = Pace(0.0)

    def on_load(self) -> None:
        state = self.context.state
        self._pace = Pace(state.elapsed_s / max(1, state.tokens))

    def after_update(self, result: StepResult) -> None:
        meter = self.state.meter
        for name in ("nats", "tokens", "bytes", "elapsed_s", "data_wait_s", "orthogonalizing_s", "examples"):
            setattr(meter, name, getattr(meter, name) + getattr(result, name))
        for sums, terms in ((meter.terms, result.terms), (meter.example_terms, result.example_terms)):
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value
        self.state.orthogonalizing_s += result.orthogonalizing_s
        self._stats.add(result)
        self._pace.add(result.elapsed_s, result.tokens)
        self.context.reporter.step(self._progress())

    def after_step(self) -> None:
        step = self.context.state.step
        interval = self.context.budget.interval("log", step, self.context.spec.log.every)
        if self._evaluate.state.step != step and step % interval:
            return
        line = self._line(evaluated=self._evaluate.state.step == step)
        if self.context.processes.is_rank0:
            self.context.folder.metrics.append(line)
            for callback in self.context.callbacks:
                callback.on_log(line)
        self.state.meter = Meter()
        self.context.reporter.line(line)

    def _progress(self) -> Progress:
        meter, state, steps = self.state.meter, self.context.state, self.context.budget.steps
        return Progress(
            step=state.step,
            steps=steps,
            tokens=state.tokens,
            nats_per_token=meter.nats / meter.tokens,
            bits_per_byte=meter.nats / math.log(2) / max(1, meter.bytes),  # tokens may hold no text
            lr=state.lr,
            gradient_norm=state.gradient_norm,
            tokens_per_s=meter.tokens / meter.elapsed_s,
            eta_s=self._pace.remaining_s(steps - state.step, self._workload.tokens(state.step, steps)),
            validation=self._evaluate.figures,
        )

    def _line(self, evaluated: bool) -> dict[str, Any]:
        """Means since the line before. Interrupting a run changes only the figures of speed and memory."""
        progress, meter = self._progress(), self.state.meter
        speed = progress.tokens_per_s * self._workload.relative_flops(progress.step - 1, progress.step)
        line: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.tokens,
            "loss": progress.nats_per_token,
            "bits_per_byte": progress.bits_per_byte,
            "lr": progress.lr,
            "gradient_norm": progress.gradient_norm,
            "tokens_per_s": progress.tokens_per_s,
            "share_of_peak": share_of_peak(speed, self._peak_tokens_per_s),
            "waiting_share": meter.data_wait_s / meter.elapsed_s,
            "memory_bytes": peak_memory_bytes(self.context.device),
            "eta_s": progress.eta_s,
        }
        if self.context.spec.optimizer.kind == "muon":
            line["orthogonalizing_share"] = meter.orthogonalizing_s / meter.elapsed_s
        for callback in self.context.callbacks:
            line |= callback.line_fields()
        means = {name: value / meter.tokens for name, value in meter.terms.items()}
        means |= {name: value / meter.examples for name, value in meter.example_terms.items()}
        if means:
            line["terms"] = means
        line |= self._stats.figures(since_last_line=True)
        if evaluated:
            line["validation"] = progress.validation
        return line

    def summary(self) -> dict[str, Any]:
        """Means over all steps; `share_of_peak` is relative to a large matrix product on this device."""
        state = self.context.state
        tokens_per_s = state.tokens / state.elapsed_s if state.elapsed_s else None
        speed = tokens_per_s and tokens_per_s * self._workload.relative_flops(0, state.step)
        is_muon = self.context.spec.optimizer.kind == "muon" and state.elapsed_s
        return {
            "tokens_per_s": tokens_per_s,
            "orthogonalizing_share": self.state.orthogonalizing_s / state.elapsed_s if is_muon else None,
            "share_of_peak": speed and share_of_peak(speed, self._peak_tokens_per_s),
            "memory_bytes": peak_memory_bytes(self.context.device),
            **self._stats.figures(since_last_line=False),
        }


class MixtureReport(Callback):
    """Says what a run reads of each source of a mixture: all in all when it begins, and so far in `run.json`."""

    def __init__(self, batches: MixedBatches) -> None:
        self._batches = batches

    def on_load(self) -> None:
        context = self.context
        total = context.budget.steps * context.spec.gradient_accumulation
        for source in self._batches.shares(total):
            context.reporter.note(f"mixture: {source.describe()} in {context.budget.steps:,} steps")

    def summary(self) -> dict[str, Any]:
        read = self.context.state.data_position * self.context.spec.gradient_accumulation
        return {"sources": [asdict(source) for source in self._batches.shares(read)]}


class Steadiness(Callback):
    """Notes what makes steps slower than they could be, each problem once, and a change of the sizes of a step."""

    reported_by_process: ClassVar[set[str]] = set()
    """What concerns the machine is reported by the first run of a process: once in a comparison."""

    def __init__(self, threads: int, on_processors: bool = True) -> None:
        """threads: that compute. on_processors: they take the steps, not a GPU."""
        self._threads, self._on_processors, self._warmup = threads, on_processors, WARMUP_STEPS
        self._reported: set[str] = set()
        self._begin()

    def before_step(self) -> None:
        step = self.context.state.step
        stage = self.context.run.growth.stage(step + 1)
        if stage.begins == step > 0:
            sequences = stage.gradient_accumulation * stage.batch_size
            sizes = f"{sequences:,} sequences of {stage.context_length:,} tokens"
            self.context.reporter.note(f"step {step + 1}: {sizes} from here on")
            self._warmup = WARMUP_STEPS

    def after_update(self, result: StepResult) -> None:
        for note in self.add(result.elapsed_s, result.data_wait_s):
            self.context.reporter.note(note)

    def _begin(self) -> None:
        self._steps_s, self._waits_s, self._others = list[float](), list[float](), OtherPrograms()

    def add(self, seconds: float, data_wait_s: float) -> list[str]:
        """Count a step and the wait for its data, which is part of it; returns what is to be reported."""
        if self._warmup:
            self._warmup -= 1
            if not self._warmup:
                self._begin()
            return []
        self._steps_s.append(seconds)
        self._waits_s.append(data_wait_s)
        if len(self._steps_s) < MIN_STEPS or sum(self._steps_s) < MIN_S:
            return []
        found = dict(self._problems())
        notes = [text for kind, text in found.items() if kind not in self._reported | self.reported_by_process]
        self._reported |= found.keys()
        self.reported_by_process.update({BUSY} & found.keys())
        self._begin()
        return notes

    def _problems(self) -> Iterator[tuple[str, str]]:
        computed_s = [step - wait for step, wait in zip(self._steps_s, self._waits_s, strict=True)]
        scattered = scatter(computed_s)
        others = self._others.processors()
        if scattered > SCATTER_LIMIT or (self._on_processors and is_overloaded(others, self._threads)):
            median = numbers.duration(sorted(computed_s)[len(computed_s) // 2])
            steps = f"a tenth of {len(computed_s)} steps took over {scattered:.1f} times the median of {median}; "
            steps = steps if scattered > SCATTER_LIMIT else ""
            helps = f"or train with fewer threads than {self._threads} (training.threads)"
            helps = "or wait for their end" if self._threads == 1 else helps
            yield BUSY, f"note: the machine is busy: {steps}{busy_advice(others, helps)}"
        share, wait_s = sum(self._waits_s) / sum(self._steps_s), sum(self._waits_s) / len(self._waits_s)
        if share > WAIT_SHARE and wait_s > MIN_WAIT_S:
            yield (
                "data",
                f"note: steps wait for their data: {share:.0%} of their time, {numbers.duration(wait_s)} each; a data"
                " folder on a faster disk, or one that fits into memory, helps",
            )
