"""What is saved of a run: averaged weights, when checkpoints are written, and the curves that are drawn with them.

Trained weights wander around a minimum, and their mean over some steps lies nearer to it. Evaluation, checkpoints'
`model.safetensors` and the model folder have the average. Training continues from the trained weights, which a
checkpoint holds beside it.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from linnet.model.decoder import Decoder
from linnet.training.callbacks import Callback
from linnet.training.callbacks.evaluation import Evaluate
from linnet.training.callbacks.guard import Guard
from linnet.training.checkpoint import CheckpointWriter, optimizer_tensors, prune
from linnet.training.distributed import local
from linnet.training.sections import AveragingSpec
from linnet.training.step import StepResult

TRAINED = "trained_weight"
"""The name of a parameter's trained value in a checkpoint."""

CURVES_INTERVAL_S = 30.0
"""During a run the curves are drawn with a checkpoint, but not more often than this, because it takes a while."""


class Averaging(Callback):
    """The average of a decoder's parameters over its steps."""

    def __init__(self, spec: AveragingSpec, decoder: Decoder) -> None:
        self._spec, self._decoder = spec, decoder
        self._mean: dict[str, Tensor] = {}

    def after_update(self, result: StepResult) -> None:
        step = self.context.state.step
        self.update(step, self.context.budget.of(step))

    @torch.no_grad()
    def update(self, step: int, steps: int) -> None:
        """Count the weights after update number `step` of `steps`."""
        weight = weight_of(self._spec, step, steps)
        if weight == 0:
            self._mean.clear()  # the mean of an extended run starts again
        elif weight == 1 or not self._mean:
            self._mean = {name: parameter.detach().clone() for name, parameter in self._decoder.named_parameters()}
        else:
            current = [local(parameter.detach()) for parameter in self._decoder.parameters()]
            torch._foreach_lerp_(list(map(local, self._mean.values())), current, weight)

    @contextmanager
    def saved_weights(self) -> Iterator[dict[str, Tensor]]:
        """The decoder has the average, if there is one; yields the trained weights as `parameter/trained_weight`."""
        parameters = dict(self._decoder.named_parameters()) if self._mean else {}
        trained = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self._mean[name])
        try:
            yield {f"{name}/{TRAINED}": tensor for name, tensor in trained.items()}
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(trained[name])

    def load_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """If there are trained weights among the tensors, the loaded weights are the average."""
        trained = {path: tensor for path, tensor in tensors.items() if path.endswith(f"/{TRAINED}")}
        self._mean = {}
        if trained:
            parameters = dict(self._decoder.named_parameters())
            self._mean = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            with torch.no_grad():
                for path, tensor in trained.items():
                    parameters[path.removesuffix(f"/{TRAINED}")].copy_(tensor)
        return {path: tensor for path, tensor in tensors.items() if path not in trained}


def weight_of(spec: AveragingSpec, step: int, steps: int) -> float:
    """The weight in the average of the parameters after update number `step`; 0 before it begins, 1 for the first.

    `ema`: `1 - decay`, and `9 / (10 + step)` if that is more, so that the first weights are soon forgotten. `mean`: the
    steps of the last share have equal weights (Izmailov et al., arXiv 1803.05407).
    """
    if spec.kind == "ema":
        return 1 - min(spec.decay, (1 + step) / (10 + step))
    first = steps - max(1, round(spec.share * steps)) + 1
    return 0.0 if step < first else 1 / (step - first + 1)


class DrawCurves(Callback):
    """Draws the curves of a run after a checkpoint, at most every `CURVES_INTERVAL_S`."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + CURVES_INTERVAL_S

    def after_save(self) -> None:
        context = self.context
        if context.processes.is_rank0 and time.monotonic() > self._due_s:
            context.folder.draw_curves(context.run.model.name, context.model.decoder.causal)
            self._due_s = time.monotonic() + CURVES_INTERVAL_S


class Checkpointing(Callback):
    """Saves a checkpoint every `checkpoint.every` steps, at a new best evaluation, at the end and at a stop."""

    def __init__(self, writer: CheckpointWriter, evaluate: Evaluate, guard: Guard | None) -> None:
        self.writer, self._evaluate, self._guard = writer, evaluate, guard
        self.saved: tuple[int, bool] | None = None  # step and `callbacks_done` of the latest checkpoint

    def after_step(self) -> None:
        context, step = self.context, self.context.state.step
        if context.budget.ends(step) or context.save_requested or step % context.spec.checkpoint.every == 0:
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
        with context.saved_weights() as trained:
            tensors = optimizer_tensors(context.optimizer, decoder) | trained
            state = context.state
            state.callbacks = {each.name: each.state_dict() for each in context.callbacks if each.name}
            self.writer.save(context.folder.checkpoints, decoder, tensors, tokenizer, state, self.pruning())
        self.saved = state.step, state.callbacks_done
        context.save_requested = False
        for callback in context.callbacks:
            callback.after_save()

    def pruning(self) -> Callable[[], None]:
        """A function that removes the checkpoints that are not kept any more, decided now."""
        context = self.context
        guarded = None if self._guard is None else self._guard.state.checkpoint
        best = self._evaluate.state.best_step
        return partial(prune, context.folder.checkpoints, context.spec.checkpoint.keep, best, guarded)
