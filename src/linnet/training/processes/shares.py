"""What each of several processes did, for the lines of figures and the final table. One alone is the run itself."""

from typing import Any

import torch

from linnet.training.distributed import Processes
from linnet.training.machine import peak_memory_bytes
from linnet.training.step import StepResult


class Shares:
    """Counts this process's steps, and gathers what all of them counted."""

    def __init__(self, processes: Processes, device: torch.device, peak_tokens_per_s: float) -> None:
        """peak_tokens_per_s: of this process."""
        self._processes, self._device, self._peak = processes, device, peak_tokens_per_s
        self._of_line, self._of_run = Share(processes.waited_s), Share(processes.waited_s)

    def add(self, result: StepResult, seconds: float) -> None:
        """Count a step, of which this process's part is as large as everybody's."""
        for share in (self._of_line, self._of_run):
            share.tokens += result.tokens / self._processes.count
            share.seconds += seconds

    def since_last_line(self) -> dict[str, Any]:
        """`processes`: the figures of each since the line before; nothing where there is one. Called by all of them."""
        share, self._of_line = self._of_line, Share(self._processes.waited_s)
        return self._gathered(share)

    def in_all(self) -> dict[str, Any]:
        """`processes`: the figures of each since it was started; nothing where there is one. Called by all of them."""
        return self._gathered(self._of_run)

    def _gathered(self, share: "Share") -> dict[str, Any]:
        if self._processes.count == 1:
            return {}
        tokens_per_s = share.tokens / share.seconds if share.seconds else 0.0
        own = {
            "process": self._processes.rank,
            "tokens_per_s": tokens_per_s,
            "share_of_peak": tokens_per_s / max(self._peak, tokens_per_s),
            "memory_bytes": peak_memory_bytes(self._device),
            "waiting_s": self._processes.waited_s - share.waited_before_s,
        }
        return {"processes": self._processes.gather(own)}


class Share:
    """Sums over some steps. waited_before_s: what the process had waited before the first of them."""

    def __init__(self, waited_before_s: float) -> None:
        self.tokens, self.seconds, self.waited_before_s = 0.0, 0.0, waited_before_s
