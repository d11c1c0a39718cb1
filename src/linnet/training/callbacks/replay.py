"""What a run on conversations forgets of a text: held-out text of the data that it replays, measured as it goes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict

from linnet.core.system import Stopped
from linnet.data.loader import Batch, validation_batches
from linnet.data.replay import ReplayBatches
from linnet.data.token_data import TokenData
from linnet.evaluation.measure import evaluate_windows
from linnet.evaluation.models import calibration_tokens
from linnet.present.progress import Advance, progress
from linnet.training.callbacks import Callback
from linnet.training.callbacks.evaluation import Evaluate
from linnet.training.spec import RunSpec


@dataclass
class ReplayState:
    """before: the figures of the held-out text before the first step; figures: those at `step`."""

    before: dict[str, Any] | None = None
    figures: dict[str, Any] | None = None
    step: int | None = None
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")


class Replay(Callback):
    """Tells how much of a run is text, and measures held-out text before the first step and with each evaluation."""

    name = "replay"

    def __init__(
        self, run: RunSpec, data: TokenData, text: TokenData, batches: ReplayBatches, evaluate: Evaluate
    ) -> None:
        """data: the rows of the run. text: what it replays."""
        spec = run.training
        assert spec.context_length is not None and spec.replay is not None, "an unresolved run"
        self._batches, self._evaluate, self._folder = batches, evaluate, spec.replay.data
        self._tokens, self._size, self._limit = text.split("validation"), spec.batch_size, spec.evaluate.tokens
        self._spans = text.spans(self._tokens, spec.context_length)
        calibration_1T = calibration_tokens(text, spec.evaluate.calibrate_on, spec.context_length)
        self._reading = data.tokenizer.byte_counts(), spec.context_length, calibration_1T
        self.state: ReplayState = ReplayState()

    def on_load(self) -> None:
        """Measure the model that the run starts from."""
        context, state = self.context, self.state
        if context.state.step > 0 or state.before is not None:
            return
        shown, total = context.processes.is_rank0, min(self._limit, int(self._spans.counts_N.sum()))
        with progress("held-out text", total, "tokens", shown=shown, is_estimate=True) as advance:
            try:
                state.before = self._measured(advance)
            except Stopped:  # the next start measures it
                return
        shares = f"{self._batches.share:.1%} of the sequences, {self._batches.share_of_targets:.1%} of the targets"
        held_out = f"{state.before['bits_per_byte']:.4f} bits/byte of its held-out text before the first step"
        context.reporter.note(f"training.replay: {self._folder}: {shares}; {held_out}")

    def after_step(self) -> None:
        """Measure the text where conversations were evaluated at this step."""
        step, state = self.context.state.step, self.state
        if self._evaluate.state.step == step and state.step != step:
            with self.context.saved_weights():
                figures = self._measured()
            state.step, state.figures = step, figures

    def _measured(self, advance: Advance = lambda *_: None) -> dict[str, Any]:
        """The figures of the text; `Stopped` if a stop is requested meanwhile."""
        context, processes = self.context, self.context.processes
        batches = validation_batches(self._tokens, self._spans, self._size, self._limit)

        def own() -> Iterator[Batch]:
            for batch in processes.share_work(context.stop, batches):
                yield batch
                advance(processes.count * batch.count)

        return evaluate_windows(context.model.whole(), own(), *self._reading, total=processes.total).to_dict()

    def line_fields(self) -> dict[str, Any]:
        """The figures of the text, in the line of the step at which they were measured."""
        return {"replay": self.state.figures} if self.state.step == self.context.state.step else {}

    def summary(self) -> dict[str, Any]:
        figures = self.state.figures and {"step": self.state.step, **self.state.figures}
        return {"replay": {"before": self.state.before, "after": figures}}
