"""Saving checkpoints during a run, and drawing its curves from time to time."""

import math
import time
from collections.abc import Callable
from functools import partial

from linnet.training.callbacks import Callback
from linnet.training.callbacks.evaluation import Evaluate
from linnet.training.callbacks.guard import Guard
from linnet.training.checkpoint import CheckpointWriter, prune
from linnet.training.optimizers import optimizer_tensors

CURVES_INTERVAL_S = 30.0
"""During a run the curves are drawn with a checkpoint, but not more often than this, because it takes a while."""


class Checkpointing(Callback):
    """Saves a checkpoint every `checkpoint.every` steps, at a new best evaluation, at the end and at a stop."""

    def __init__(self, writer: CheckpointWriter, evaluate: Evaluate, guard: Guard | None) -> None:
        self.writer, self._evaluate, self._guard = writer, evaluate, guard
        self._curves_due_s = time.monotonic() + CURVES_INTERVAL_S
        self.saved: tuple[int, bool] | None = None  # step and `callbacks_done` of the latest checkpoint

    def after_step(self) -> None:
        context, step = self.context, self.context.state.step
        if context.is_last_step or context.save_requested or step % context.spec.checkpoint.every == 0:
            context.state.callbacks_done = True  # this is the last of them
            self.save(scheduled=True)

    def save(self, scheduled: bool = False) -> None:
        """Write a checkpoint of this step, then remove those that are no longer kept."""
        context, processes = self.context, self.context.processes
        if not math.isfinite(context.model.norm(list(context.model.decoder.parameters())).item()):
            raise context.diverged("the norm of the weights is not finite")
        for callback in context.callbacks:
            callback.before_save(scheduled)
        # In a power cut a checkpoint must not outlive the lines of the steps before it.
        processes.broadcast_from_rank0(context.folder.metrics.push_to_disk)
        decoder, tokenizer = context.model.decoder, context.data.tokenizer
        with context.saved_weights() as beside:
            tensors = optimizer_tensors(context.optimizer, decoder) | beside
            state = context.collect_state()
            self.writer.save(context.folder.checkpoints, decoder, tensors, tokenizer, state, self.pruning())
        self.saved = state.step, state.callbacks_done
        context.save_requested = False
        if processes.is_rank0 and time.monotonic() > self._curves_due_s:
            context.folder.draw_curves(context.run.model.name, decoder.causal)
            self._curves_due_s = time.monotonic() + CURVES_INTERVAL_S

    def pruning(self) -> Callable[[], None]:
        """The removal of the checkpoints that are no longer kept as the run stands now."""
        context = self.context
        guarded = None if self._guard is None else self._guard.state.checkpoint
        best = self._evaluate.state.best_step
        return partial(prune, context.folder.checkpoints, context.spec.checkpoint.keep, best, guarded)
