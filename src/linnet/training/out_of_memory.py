"""A step that ran out of memory: the batch that fits, found by steps that are really taken.

Of several processes mostly one runs out, or all do, each at a place of its own. The others are in the midst of sums, or
of weights that are gathered, in which it no longer takes part; they cannot be called back from there (gloo and NCCL
know no way out but the end of a process or of its connections). So they are left to wait. Who ran out goes apart, and
takes smaller steps of its own rows, in which nothing is sent, but what would be received has its place in memory: FSDP
is measured so, too. Of those who ran out the least counts, and the first of them says it; the others end when it does,
without a word. Meanwhile they hold their own step. Where the processes share one memory, what fits beside that fits
all the more without.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from linnet.core.errors import UserError, is_out_of_memory
from linnet.training.distributed import Batch
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
        if not is_out_of_memory(error):
            raise
        return False
    return True


def _free(step: Stepper) -> None:
    """Let go of what the failed step held."""
    step.parallel.give_up_step()
    step.optimizer.zero_grad()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def too_large(step: Stepper, batches: Sequence[Batch], batch_size: int, number: int, saved: str) -> UserError:
    """What is said of a batch that does not fit, with the largest that does. The run in memory cannot go on."""
    several = step.parallel.processes
    several.leave_group()
    own = largest_that_fits(lambda rows: fits(step, batches, rows * several.count), batch_size // several.count)
    most = several.least(own) * several.count
    where = "" if several.count == 1 else f" of process {several.rank}"
    problem = f"out of memory in step {number}{where} (saved: {saved})"
    if most == 0:
        each = "" if several.count == 1 else " for each process"
        accepted = f"a smaller model, or a shorter training.context_length: not even one sequence{each} fits"
    else:
        times = -(-batch_size // most)
        as_large = f"accumulate {times} times as many batches for as large a step"
        accepted = f"at most {most}, which was measured to fit ({as_large})"
    return UserError(problem, field="training.batch_size", value=batch_size, accepted=accepted)
