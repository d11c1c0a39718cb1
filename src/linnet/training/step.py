"""One optimization step: gradients of the mean over all tokens of the accumulated batches, clipped and applied.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from linnet.evaluation.likelihood import text_bytes
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.training.distributed import Batch, Stopped
from linnet.training.objectives import Objective
from linnet.training.optimizers import set_learning_rate
from linnet.training.optimizers.adamw import Optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec

UpdateCheck = Callable[[float, float], Exception | None]
"""(loss in nats per token of the whole objective, gradient norm) -> why the update must not be made."""

Iterate = Callable[[Iterable[Batch]], Iterator[Batch]]


class NonFiniteError(ArithmeticError):
    """The `loss` of a step (nats per token, of the whole objective) or its gradient norm is not finite."""

    def __init__(self, loss: float, lr: float, gradient_norm: float) -> None:
        super().__init__(f"loss {loss:g}, learning rate {lr:g}, gradient norm {gradient_norm:g}")
        self.loss = loss


@dataclass(frozen=True)
class StepResult:
    """One step: nats (summed, without other terms of the objective), predicted tokens, and bytes of their text.

    gradient_norm: the joint norm before clipping. terms: those of the objective, summed over the tokens. elapsed_s: the
    whole step; of that data_wait_s: until its batches were read, and orthogonalizing_s: in Muon's iteration.
    """

    nats: float
    tokens: int
    bytes: int
    lr: float
    gradient_norm: float
    terms: dict[str, float] = field(default_factory=dict)
    elapsed_s: float = 0.0
    data_wait_s: float = 0.0
    orthogonalizing_s: float = 0.0


@dataclass(frozen=True)
class Stepper:
    """Everything that a step needs. precision: of the products in the forward pass.

    If `check_update` returns an error, it is raised instead of making the update.
    """

    model: ParallelModel
    objective: Objective
    optimizer: Optimizer
    clip: ClipSpec
    precision: torch.dtype
    token_bytes_V: Tensor
    check_update: UpdateCheck | None = None

    def __call__(self, batches: Sequence[Batch], lr: float, iterate: Iterate = iter) -> StepResult:
        """Update the weights from inputs and targets `[B, T]` of each batch; `IGNORE_INDEX` targets do not count.

        Each of several processes is given whole batches and reads its rows; the result is that of all. `iterate` yields
        the batches; what it raises between two of them ends the step as if it had not begun. `NonFiniteError`, before
        anything is updated, if the loss or the gradient norm is not finite.
        """
        tokens = sum(int((targets != IGNORE_INDEX).sum()) for _, targets in batches)
        assert tokens, "a step without targets"
        own = [self.model.processes.shard_batch(batch) for batch in batches]
        try:
            sums, names = self._accumulate(iterate(own), len(own), tokens)
        except Stopped:
            self.optimizer.zero_grad()
            raise
        self.model.reduce_gradients()
        sums = self.model.processes.total(sums)
        parameters = [parameter for parameter in self.model.decoder.parameters() if parameter.grad is not None]
        norm = self.model.norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        # The only wait for the device in a step: the measured values decide whether the update is made.
        total, nats, bytes_of_text, *terms, gradient_norm = torch.cat((sums, norm.double()[None])).tolist()
        loss = total / tokens
        problem = None if self.check_update is None else self.check_update(loss, gradient_norm)
        if problem is None and not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            problem = NonFiniteError(loss, lr, gradient_norm)
        if problem is not None:
            self.optimizer.zero_grad()
            raise problem
        self.model.clip(parameters, self.clip, norm)
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult(nats, tokens, int(bytes_of_text), lr, gradient_norm, dict(zip(names, terms, strict=True)))

    def _accumulate(self, batches: Iterable[Batch], count: int, tokens: int) -> tuple[Tensor, tuple[str, ...]]:
        """Add up the gradients of the mean over `tokens` of `count` batches.

        Returns the sums of objective, nats, bytes and the objective's terms, float64, and the names of the terms.
        """
        decoder = self.model.decoder
        device = decoder.device
        names: tuple[str, ...] = ()
        sums = torch.zeros((), dtype=torch.float64, device=device)
        for number, (inputs, targets) in enumerate(batches, 1):
            inputs_BT, targets_BT = (part.to(device, non_blocking=True) for part in (inputs, targets))
            with torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32):
                loss = self.objective(decoder, inputs_BT, targets_BT)
            if number == count:
                self.model.begin_last_pass()
            (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
            bytes_of_text = text_bytes(targets_BT, self.token_bytes_V)
            names = tuple(loss.terms)
            measured = (loss.total.detach(), loss.nats, bytes_of_text, *loss.terms.values())
            sums = sums + torch.stack([value.double() for value in measured])
        return sums, names
