"""Recorded decoding steps (`inference.cuda_graphs`) on devices without graphs."""

from collections.abc import Callable

import pytest
from torch import Tensor

from linnet.inference import cuda_graphs
from linnet.inference.compiled_step import BUILDS
from linnet.inference.cuda_graphs import RecordedGraph


def rerun(function: Callable[[], Tensor], _: RecordedGraph | None) -> RecordedGraph:
    """A recorder that runs the function again, and writes what it returned the first time."""
    out = function()

    def replay() -> None:
        out.copy_(function())

    return RecordedGraph(replay, out)


def record_from_the_first_token(patch: pytest.MonkeyPatch, device: str = "cpu", min_room: int = 16) -> None:
    """Let the decoding steps of a device be recorded, on one without graphs by `rerun`."""
    if device not in cuda_graphs.RECORDERS:
        patch.setitem(cuda_graphs.RECORDERS, device, rerun)
    patch.setattr(cuda_graphs, "RECORD_AFTER_TOKENS", 0)
    patch.setattr(cuda_graphs, "MIN_ROOM", min_room)
    patch.setattr(BUILDS, "enabled", True)
