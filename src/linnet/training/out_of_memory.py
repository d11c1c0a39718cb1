"""A step that ran out of memory: the batch that fits, found by steps that are really taken.

Usually one of several processes runs out, or all do, each at a place of its own. The others are in the middle of sums,
or of gathering weights, in which this one no longer takes part, and they cannot be called back (gloo and NCCL know no
way out but the end of a process or of its connections). So they are left waiting. The process that ran out leaves the
group and takes smaller steps with its own rows, in which nothing is sent, but what would be received has its place in
memory; FSDP is measured in the same way. The smallest result of those that ran out counts, and the first of them
reports it; the others end silently when it does. Meanwhile they hold their own step in memory. If the processes share
one memory, what fits beside that fits without it as well.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from linnet.core.errors import UserError, is_out_of_memory
from linnet.training.distributed import Batch
from linnet.training.step import NonFiniteError, Stepper

REFINEMENTS = 4


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
    """True if a step with so many sequences of each batch can be taken. It is taken, and spoils weights and moments."""
    part = [(inputs[:sequences], targets[:sequences]) for inputs, targets in batches]
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
