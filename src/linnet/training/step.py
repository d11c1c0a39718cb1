"""One optimization step: gradients of the mean over all targets of the accumulated batches, clipped and applied.

Where targets have weights, it is the weighted mean: the sum over all of them, divided by the sum of their weights.

If a step runs out of memory, the largest batch that fits is found by steps that are really taken (`too_large`).

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from linnet.core.errors import UserError, is_out_of_memory
from linnet.core.system import Stopped
from linnet.data.loader import Batch
from linnet.data.pieces import ByteCounts
from linnet.evaluation.likelihood import text_bytes
from linnet.training.objectives import Objective
from linnet.training.optimizers import set_learning_rate
from linnet.training.optimizers.adamw import Optimizer
from linnet.training.parallel import ParallelModel
from linnet.training.sections import ClipSpec

UpdateCheck = Callable[[float, float], Exception | None]
"""(loss in nats per token of the whole objective, gradient norm) -> why the update must not be made."""

Iterate = Callable[[Iterable[Batch]], Iterator[Batch]]


REFINEMENTS = 4


class NonFiniteError(ArithmeticError):
    """The `loss` of a step (nats per token, of the whole objective) or its gradient norm is not finite."""

    def __init__(self, loss: float, lr: float, gradient_norm: float) -> None:
        super().__init__(f"loss {loss:g}, learning rate {lr:g}, gradient norm {gradient_norm:g}")
        self.loss = loss


@dataclass(frozen=True)
class StepResult:
    """One step: nats (summed, without other terms of the objective), predicted tokens, and bytes of their text.

    gradient_norm: the joint norm before clipping. terms: those of the objective, summed over the tokens; example_terms:
    summed over the examples. elapsed_s: the
    whole step; of that data_wait_s: until its batches were read, and orthogonalizing_s: in Muon's iteration.
    """

    nats: float
    tokens: int
    bytes: int
    lr: float
    gradient_norm: float
    terms: dict[str, float] = field(default_factory=dict)
    examples: int = 0
    example_terms: dict[str, float] = field(default_factory=dict)
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
    byte_counts: ByteCounts[Tensor]
    check_update: UpdateCheck | None = None

    def __call__(self, batches: Sequence[Batch], lr: float, iterate: Iterate = iter) -> StepResult:
        """Update the weights from all targets of the batches that are not ignored.

        Each of several processes gets whole batches and reads its rows; the result is that of all. `iterate` yields the
        batches; if it raises `Stopped` between two of them, the step has no effect. `NonFiniteError`, before anything
        is updated, if the loss or the gradient norm is not finite.
        """
        tokens, weight = sum(batch.count for batch in batches), math.fsum(batch.total_weight for batch in batches)
        assert tokens, "a step without targets"
        own = [self.model.processes.shard_batch(batch) for batch in batches]
        try:
            sums, *names = self._accumulate(iterate(own), len(own), weight)
        except Stopped:
            self.optimizer.zero_grad()
            raise
        self.model.reduce_gradients()
        sums = self.model.processes.total(sums)
        parameters = [parameter for parameter in self.model.decoder.parameters() if parameter.grad is not None]
        norm = self.model.norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        # The only wait for the device in a step: the measured values decide whether the update is made.
        total, nats, bytes_of_text, *terms, gradient_norm = torch.cat((sums, norm.double()[None])).tolist()
        loss = total / weight
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
        values = iter(terms)
        of_tokens, of_examples = ({name: next(values) for name in each} for each in names)
        examples = sum(batch.examples for batch in batches)
        return StepResult(
            nats, tokens, int(bytes_of_text), lr, gradient_norm, of_tokens, examples, example_terms=of_examples
        )

    def _accumulate(
        self, batches: Iterable[Batch], count: int, weight: float
    ) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
        """Add up the gradients of the mean over `count` batches, whose targets have so much weight together.

        Returns the sums of objective, nats, bytes and the objective's terms, float64, and the names of the terms: of
        those of tokens, and of those of examples.
        """
        decoder = self.model.decoder
        device = decoder.device
        names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        sums = torch.zeros((), dtype=torch.float64, device=device)
        for number, batch in enumerate(batches, 1):
            on_device = batch.to(device)
            with torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32):
                loss = self.objective(decoder, on_device)
            if number == count:
                self.model.begin_last_pass()
            (loss.total / weight).backward()  # type: ignore[no-untyped-call]
            bytes_of_text = text_bytes(on_device.tokens, on_device.labels, self.byte_counts)
            names = tuple(loss.terms), tuple(loss.example_terms)
            terms = (*loss.terms.values(), *loss.example_terms.values())
            measured = (loss.total.detach(), loss.nats, bytes_of_text, *terms)
            sums = sums + torch.stack([value.double() for value in measured])
        return sums, *names


def largest_that_fits(fits: Callable[[int], bool], failed: int) -> int:
    """The largest size below `failed` for which `fits` is true, of those tried; 0 if not even 1 fits.

    Halves are tried until one fits, then sizes between it and the smallest that did not: within a sixteenth.
    """
    low, high = failed // 2, failed
    while low and not fits(low):
        low, high = low // 2, low
    for _ in range(REFINEMENTS if low else 0):
        middle = (low + high) // 2
        if middle == low:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fits(step: Stepper, batches: Sequence[Batch], sequences: int) -> bool:
    """True if a step with `sequences` sequences of each batch fits in memory. Taking it changes weights and moments."""
    part = [batch.part(0, sequences) for batch in batches]
    # Release what the failed step held.
    step.model.abandon_step()
    step.optimizer.zero_grad()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        replace(step, check_update=None)(part, lr=0.0)
    except NonFiniteError:
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def too_large(step: Stepper, batches: Sequence[Batch], batch_size: int, number: int, saved: str) -> UserError:
    """The error for a batch that does not fit, with the largest that does. The run in memory cannot continue.

    number: of the step. saved: the newest checkpoint, in words.

    Either one of several processes runs out of memory, or all do, at different points of the step. The others wait in a
    collective operation that this process no longer joins, and only the end of a process or of its connections
    interrupts gloo and NCCL. The process therefore leaves the group and takes smaller steps with its own rows: nothing
    is sent, but memory for what would be received is allocated, for FSDP as well. The smallest result of the processes
    that ran out is reported by the first of them; the others exit silently when it does. Meanwhile they hold the memory
    of their own step, so a batch that fits now fits without them as well.
    """
    processes = step.model.processes
    processes.leave_group()
    own = largest_that_fits(lambda rows: fits(step, batches, rows * processes.count), batch_size // processes.count)
    most = processes.smallest_of_leavers(own) * processes.count
    where = "" if processes.count == 1 else f" of process {processes.rank}"
    problem = f"out of memory in step {number}{where} (saved: {saved})"
    if most == 0:
        each = "" if processes.count == 1 else " for each process"
        accepted = f"a smaller model, or a shorter training.context_length: not even one sequence{each} fits"
    else:
        times = -(-batch_size // most)
        as_large = f"accumulate {times} times as many batches for as large a step"
        accepted = f"at most {most}, which was measured to fit ({as_large})"
    return UserError(problem, field="training.batch_size", value=batch_size, accepted=accepted)
