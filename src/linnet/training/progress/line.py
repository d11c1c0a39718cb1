"""The figures of a run while it goes: one line of `metrics.jsonl`, and what a reporter is told after a step."""

from typing import TYPE_CHECKING, Any

from linnet.training.machine import peak_memory_bytes
from linnet.training.reporter import Progress

if TYPE_CHECKING:
    from linnet.training.trainer import Trainer


def line_of(trainer: "Trainer", evaluated: bool) -> dict[str, Any]:
    """A line of figures: means since the line before; what a stop and resume cannot change, and the speed."""
    progress, meter = progress_of(trainer), trainer.standing.meter
    # On a machine that was busy then, the peak was measured too low.
    speed = meter.tokens_per_s * trainer.work_of_token(progress.step - 1, progress.step)
    trainer.peak_tokens_per_s = max(trainer.peak_tokens_per_s, speed)
    line: dict[str, Any] = {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": progress.nats_per_token,
        "bits_per_byte": progress.bits_per_byte,
        "lr": progress.lr,
        "gradient_norm": progress.gradient_norm,
        "tokens_per_s": progress.tokens_per_s,
        "share_of_peak": speed / trainer.peak_tokens_per_s,
        "waiting_share": meter.waiting_share,
        "memory_bytes": peak_memory_bytes(trainer.device),
        "eta_s": progress.eta_s,
    }
    if trainer.spec.optimizer.kind == "muon":
        line["orthogonalizing_share"] = meter.orthogonalizing_s / meter.seconds
    if trainer.standing.guard is not None:
        line["spikes"] = trainer.standing.guard.count
    if meter.terms:
        line["terms"] = meter.means
    line |= trainer.shares.since_last_line()
    if evaluated:
        line["validation"] = progress.validation
    return line


def progress_of(trainer: "Trainer") -> Progress:
    """Where it stands after a step."""
    standing, meter = trainer.standing, trainer.standing.meter
    return Progress(
        step=standing.step,
        steps=trainer.steps,
        tokens=standing.tokens,
        nats_per_token=meter.nats_per_token,
        bits_per_byte=meter.bits_per_byte,
        lr=meter.lr,
        gradient_norm=meter.gradient_norm,
        tokens_per_s=meter.tokens_per_s,
        eta_s=trainer.pace.remaining_s(trainer.steps - standing.step, trainer.tokens_ahead()),
        validation=standing.validation,
    )
