"""A step that ran out of memory: the batch that fits, found by steps that are really taken."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from linnet.core.errors import UserError, is_about_memory
from linnet.training.processes.group import Batch
from linnet.training.step import NonFiniteError, Stepper

REFINED = 4


def largest_that_fits(fits: Callable[[int], bool], failed: int) -> int:
    """The largest size below `failed` of which `fits` is true, of those tried; 0 where not even 1 is.

    Halves are tried until one fits, then so many sizes between it and the smallest that did not: within a sixteenth.
    """
    low, high = failed // 2, failed
    while low and not fits(low):
        low, high = low // 2, low
    for _ in range(REFINED if low else 0):
        middle = (low + high) // 2
        if middle == low:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fits(step: Stepper, batches: Sequence[Batch], sequences: int) -> bool:
    """Whether a step of so many sequences of each batch can be taken. It is taken: weights and moments are spent."""
    part = [(inputs[:sequences], targets[:sequences]) for inputs, targets in batches]
    _free(step)
    try:
        replace(step, judge=None)(part, lr=0.0)
    except NonFiniteError:
        return True
    except Exception as error:
        if not is_about_memory(error):
            raise
        return False
    return True


def _free(step: Stepper) -> None:
    """Let go of what the failed step held."""
    step.optimiser.zero_grad()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def too_large(step: Stepper, batches: Sequence[Batch], batch_size: int, number: int, saved: str) -> UserError:
    """What is said of a batch that does not fit, with the largest that does. The run in memory cannot go on."""
    most = largest_that_fits(lambda sequences: fits(step, batches, sequences), batch_size)
    problem = f"out of memory in step {number} (saved: {saved})"
    if most == 0:
        accepted = "a smaller model, or a shorter training.context_length: not even one sequence fits"
    else:
        times = -(-batch_size // most)
        as_large = f"accumulate {times} times as many batches for as large a step"
        accepted = f"at most {most}, which was measured to fit ({as_large})"
    return UserError(problem, field="training.batch_size", value=batch_size, accepted=accepted)
