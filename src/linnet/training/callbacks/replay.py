"""What a run on conversations forgets of a text: held-out text of the data that it replays, measured as it goes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from linnet.core.system import Stopped
from linnet.data.loader import Batch, validation_batches
from linnet.data.replay import ReplayBatches
from linnet.data.token_data import TokenData
from linnet.evaluation.measure import evaluate_windows
from linnet.evaluation.models import calibration_tokens
from linnet.present.progress import Advance, progress
from linnet.training.callbacks.evaluation import Evaluate, HeldOutMeasure, HeldOutState
from linnet.training.spec import RunSpec


@dataclass
class ReplayState(HeldOutState):
    """before: the figures of the held-out text before the first step; figures: those at `step`."""

    before: dict[str, Any] | None = None


class Replay(HeldOutMeasure):
    """Tells how much of a run is text, and measures held-out text before the first step and with each evaluation."""

    name = "replay"

    def __init__(
        self, run: RunSpec, data: TokenData, text: TokenData, batches: ReplayBatches, evaluate: Evaluate
    ) -> None:
        """data: the rows of the run. text: what it replays."""
        super().__init__(evaluate)
        spec = run.training
        assert spec.context_length is not None and spec.replay is not None, "an unresolved run"
        self._batches, self._folder = batches, spec.replay.data
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
                state.before = self.measured(advance)
            except Stopped:  # the next start measures it
                return
        shares = f"{self._batches.share:.1%} of the sequences, {self._batches.share_of_targets:.1%} of the targets"
        held_out = f"{state.before['bits_per_byte']:.4f} bits/byte of its held-out text before the first step"
        context.reporter.note(f"training.replay: {self._folder}: {shares}; {held_out}")

    def measured(self, advance: Advance = lambda *_: None) -> dict[str, Any]:
        """The figures of the text; `Stopped` if a stop is requested meanwhile."""
        context, processes = self.context, self.context.processes
        batches = validation_batches(self._tokens, self._spans, self._size, self._limit)

        def own() -> Iterator[Batch]:
            for batch in processes.share_work(context.stop, batches):
                yield batch
                advance(processes.count * batch.count)

        return evaluate_windows(context.model.whole(), own(), *self._reading, total=processes.total).to_dict()

    def summary(self) -> dict[str, Any]:
        return {"replay": {"before": self.state.before, "after": self.latest}}
