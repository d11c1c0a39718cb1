"""Evaluation on held-out text during a run, and the best checkpoint by it."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict

from linnet.data.loader import validation_batches
from linnet.data.pieces import ByteCounts
from linnet.data.token_data import TokenData
from linnet.evaluation.likelihood import Evaluation, Tokens
from linnet.evaluation.measure import evaluate_windows
from linnet.evaluation.models import calibration_tokens
from linnet.training.callbacks import Callback
from linnet.training.checkpoint import checkpoint_path
from linnet.training.spec import TrainingSpec


@dataclass
class EvaluationState:
    """step, sums: the latest evaluation. best_step, best_bits_per_byte: the best one so far."""

    step: int | None = None
    sums: dict[str, Any] | None = None
    best_step: int | None = None
    best_bits_per_byte: float | None = None
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


class Evaluate(Callback):
    """Evaluates the weights that are saved, every `evaluate.every` steps and at the end."""

    name = "evaluation"

    def __init__(
        self, data: TokenData, spec: TrainingSpec, byte_counts: ByteCounts[Tokens], separate_prefix: bool = False
    ) -> None:
        """byte_counts: of the data's tokenizer. separate_prefix: see `TokenData.spans`."""
        assert spec.context_length is not None, "an unresolved run"
        self._tokens = data.split("validation")
        self._spans = data.measured_spans(self._tokens, spec.context_length, separate_prefix)
        calibration_1T = calibration_tokens(data, spec.evaluate.calibrate_on, spec.context_length)
        self._reading = byte_counts, spec.context_length, calibration_1T
        self.state: EvaluationState = EvaluationState()

    @property
    def figures(self) -> dict[str, Any] | None:
        """The figures of the latest evaluation."""
        return None if self.state.sums is None else Evaluation.from_sums(self.state.sums).to_dict()

    def after_step(self) -> None:
        """Evaluate if it is due; `Stopped` if a stop is requested meanwhile. A new best evaluation is saved."""
        context, spec, state, processes = self.context, self.context.spec, self.state, self.context.processes
        step = context.state.step
        if not context.budget.ends(step) and step % context.budget.interval("evaluate", step, spec.evaluate.every):
            return
        # The same batches each time, in the precision of the weights; each process measures some of them.
        batches = validation_batches(self._tokens, self._spans, spec.batch_size, spec.evaluate.tokens)
        with context.saved_weights():
            decoder, own = context.model.whole(), processes.share_work(context.stop, batches)
            found = evaluate_windows(decoder, own, *self._reading, total=processes.total)
        if not math.isfinite(found.causal.nats):
            raise context.diverged(f"validation loss {found.causal.nats:g}")
        state.step, state.sums = step, found.sums()
        bits_per_byte = found.causal.bits_per_byte
        if state.best_bits_per_byte is None or bits_per_byte < state.best_bits_per_byte:
            state.best_step, state.best_bits_per_byte = step, bits_per_byte
            context.save_requested = True

    def summary(self) -> dict[str, Any]:
        """The latest evaluation and the best one with its checkpoint."""
        state, folder, best = self.state, self.context.folder, None
        if state.best_step is not None:
            path = checkpoint_path(folder.checkpoints, state.best_step).relative_to(folder.path)
            best = {"step": state.best_step, "bits_per_byte": state.best_bits_per_byte, "checkpoint": str(path)}
        return {"validation": self.figures and {"step": state.step, **self.figures}, "best": best}


@dataclass
class HeldOutState:
    """step, figures: of the latest measurement."""

    step: int | None = None
    figures: dict[str, Any] | None = None
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


class HeldOutMeasure(Callback):
    """Measures something besides the text, whenever that is evaluated; its lines of metrics are called `name`."""

    state: HeldOutState

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def measured(self) -> dict[str, Any]:
        """The figures of the weights that are saved; `Stopped` if a stop is requested meanwhile."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Measure where the text was evaluated at this step."""
        step, state = self.context.state.step, self.state
        if self._evaluate.state.step == step and state.step != step:
            with self.context.saved_weights():
                state.figures = self.measured()
            state.step = step

    def line_fields(self) -> dict[str, Any]:
        """The figures, in the line of the step at which they were measured."""
        return {self.name: self.state.figures} if self.state.step == self.context.state.step else {}

    @property
    def latest(self) -> dict[str, Any] | None:
        """The latest figures with their step; None before the first."""
        return None if self.state.figures is None else {"step": self.state.step, **self.state.figures}
