"""Averaged weights: trained weights wander around a minimum, and their mean over some steps lies nearer to it.

Evaluation, checkpoints' `model.safetensors` and the model folder have the average. Training continues from the trained
weights, which a checkpoint holds beside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from linnet.model.decoder import Decoder
from linnet.training.callbacks import Callback
from linnet.training.distributed import local
from linnet.training.sections import AveragingSpec
from linnet.training.step import StepResult

TRAINED = "trained_weight"
"""The name of a parameter's trained value in a checkpoint."""


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
