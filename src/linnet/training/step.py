"""One optimization step: gradients of the mean over all tokens of the accumulated batches, clipped, applied.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from linnet.evaluation.likelihood import text_bytes
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.training.distributed import Batch
from linnet.training.objective import Objective
from linnet.training.optimizers.groups import Optimizer
from linnet.training.optimizers.optimizer import set_learning_rate
from linnet.training.sections import ClipSpec
from linnet.training.stop import Stopped

if TYPE_CHECKING:
    from linnet.training.parallel import Parallel

Judge = Callable[[float, float], Exception | None]
"""Of a step's loss (nats per token, of the whole objective) and gradient norm: why the update is not to be made."""

OneByOne = Callable[[Iterable[Batch]], Iterator[Batch]]


class NonFiniteError(ArithmeticError):
    """A step broke down: `loss` (nats per token, of the whole objective) or `gradient_norm` is not finite."""

    def __init__(self, loss: float, lr: float, gradient_norm: float) -> None:
        super().__init__(f"loss {loss:g}, learning rate {lr:g}, gradient norm {gradient_norm:g}")
        self.loss = loss


@dataclass(frozen=True)
class StepResult:
    """One step: nats (summed, without other terms of the objective), predicted tokens, their bytes of text.

    `gradient_norm` is the joint norm before clipping; `terms` are the objective's, summed over the tokens.
    """

    nats: float
    tokens: int
    bytes: int
    lr: float
    gradient_norm: float
    terms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stepper:
    """Everything that a step needs. `precision` is that of the products in the forward pass.

    What `judge` finds is raised in the place of the update.
    """

    parallel: "Parallel"
    objective: Objective
    optimizer: Optimizer
    clip: ClipSpec
    precision: torch.dtype
    token_bytes_V: Tensor
    judge: Judge | None = None

    def __call__(self, batches: Sequence[Batch], lr: float, one_by_one: OneByOne = iter) -> StepResult:
        """Update the weights from inputs and targets `[B, T]` of each batch; `IGNORE_INDEX` targets do not count.

        Of several processes each is given whole batches, and reads its rows. What comes out is of all of them.
        `one_by_one` hands the batches out; what it raises between two of them ends the step as if it had not begun.
        `NonFiniteError`, before anything is updated, where the loss or the gradient norm is not finite.
        """
        tokens = sum(int((targets != IGNORE_INDEX).sum()) for _, targets in batches)
        assert tokens, "a step without targets"
        own = [self.parallel.processes.shard_batch(batch) for batch in batches]
        try:
            sums, names = self._accumulate(one_by_one(own), len(own), tokens)
        except Stopped:
            self.optimizer.zero_grad()
            raise
        self.parallel.reduce_gradients()
        sums = self.parallel.processes.total(sums)
        parameters = [parameter for parameter in self.parallel.decoder.parameters() if parameter.grad is not None]
        norm = self.parallel.norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        # The one wait for the device in a step: what was measured decides whether the update is applied.
        total, nats, bytes_of_text, *terms, gradient_norm = torch.cat((sums, norm.double()[None])).tolist()
        loss = total / tokens
        problem = None if self.judge is None else self.judge(loss, gradient_norm)
        if problem is not None:
            self.optimizer.zero_grad()
            raise problem
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            self.optimizer.zero_grad()
            raise NonFiniteError(loss, lr, gradient_norm)
        self.parallel.clip(parameters, self.clip, norm)
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad()
        named = dict(zip(names, terms, strict=True))
        return StepResult(nats, tokens, int(bytes_of_text), lr, gradient_norm, named)

    def _accumulate(self, batches: Iterable[Batch], count: int, tokens: int) -> tuple[Tensor, tuple[str, ...]]:
        """Add up the gradients of the mean over `tokens` of so many batches.

        The sums of objective, nats, bytes and the objective's terms, float64, and the terms' names.
        """
        decoder = self.parallel.decoder
        device = decoder.device
        names: tuple[str, ...] = ()
        sums = torch.zeros((), dtype=torch.float64, device=device)
        for number, (inputs, targets) in enumerate(batches, 1):
            inputs_BT, targets_BT = (part.to(device, non_blocking=True) for part in (inputs, targets))
            with torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32):
                loss = self.objective(decoder, inputs_BT, targets_BT)
            if number == count:
                self.parallel.last_pass()
            (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
            bytes_of_text = text_bytes(targets_BT, self.token_bytes_V)
            names = tuple(loss.terms)
            measured = (loss.total.detach(), loss.nats, bytes_of_text, *loss.terms.values())
            sums = sums + torch.stack([value.double() for value in measured])
        return sums, names
