"""Averaged weights: what is trained wanders around what is good, and the mean over some of its way lies nearer.

Evaluation, checkpoints' `model.safetensors` and the model folder have the average; training goes on from the trained
weights, which a checkpoint holds beside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from linnet.model.decoder import Decoder
from linnet.training.processes.shards import local
from linnet.training.sections import AveragingSpec

TRAINED = "trained_weight"
"""The name of a parameter's trained value in a checkpoint."""


class Averaging:
    """The average of a decoder's parameters over its steps, or, with no description, none."""

    def __init__(self, spec: AveragingSpec | None, decoder: Decoder) -> None:
        self._spec, self._decoder = spec, decoder
        self._mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, step: int, steps: int) -> None:
        """Count the weights after update number `step` of `steps`."""
        weight = 0.0 if self._spec is None else weight_of(self._spec, step, steps)
        if weight == 0:
            self._mean.clear()  # the mean of a run that was given more steps begins anew
        elif weight == 1 or not self._mean:
            self._mean = {name: parameter.detach().clone() for name, parameter in self._decoder.named_parameters()}
        else:
            current = [local(parameter.detach()) for parameter in self._decoder.parameters()]
            torch._foreach_lerp_(list(map(local, self._mean.values())), current, weight)

    @contextmanager
    def applied(self) -> Iterator[dict[str, Tensor]]:
        """The decoder has the averaged weights, if there are any; the trained ones, as `parameter/trained_weight`."""
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

    def resume(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Go on from what a checkpoint holds, whose weights the decoder has: those are the average, if any is there.

        What is left of `tensors`.
        """
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
    """What the weights after update number `step` count in the average; 0 before it begins, 1 for the first.

    `ema`: `1 - decay`, and more at first, `9 / (10 + step)`, so that the first weights are soon forgotten. `mean`: all
    of the last share count alike (Izmailov et al., arXiv 1803.05407).
    """
    if spec.kind == "ema":
        return 1 - min(spec.decay, (1 + step) / (10 + step))
    first = steps - max(1, round(spec.share * steps)) + 1
    return 0.0 if step < first else 1 / (step - first + 1)
