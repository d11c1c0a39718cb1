"""A run that broke down: where, by what, and from which checkpoint it could go on."""

from pathlib import Path

from linnet.training.checkpoint import checkpoint_path, checkpoint_steps


class DivergedError(ArithmeticError):
    """A loss, gradient or weight is not finite: one line with step, learning rate, gradient norm, last checkpoint.

    `step` is where training stopped, `reason` what was measured there.
    """

    def __init__(self, step: int, reason: str, last_good: Path | None) -> None:
        checkpoint = "none yet" if last_good is None else last_good
        super().__init__(f"not finite, stopped at step {step}: {reason}; last good checkpoint: {checkpoint}")
        self.step, self.reason = step, reason


def diverged_error(checkpoints: Path, step: int, reason: str, good_until: int) -> DivergedError:
    """What the user is told; the newest checkpoint of at most step `good_until` is the last good one."""
    good = [step for step in checkpoint_steps(checkpoints) if step <= good_until]
    return DivergedError(step, reason, checkpoint_path(checkpoints, good[-1]) if good else None)
