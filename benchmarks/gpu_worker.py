"""A process that measures row after row for `gpu.py`; it is restarted if a row takes too long."""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import torch

from gpu_kernels import measure_kernels
from gpu_rows import Row, bandwidth, build_steps, guarded, measure, peak

START_S = 120.0
"""Time limit of the start of a process: imports, the device, its peaks."""


def machine_of(device: torch.device) -> dict[str, Any]:
    """The device and its peak rates."""
    found: dict[str, Any] = {"device": str(device)}
    if device.type == "cuda":
        of_device = torch.cuda.get_device_properties(device)
        capability = f"{of_device.major}.{of_device.minor}"
        memory = round(of_device.total_memory / 1e9, 1)
        found |= {"name": of_device.name, "capability": capability, "memory_gb": memory, "cuda": torch.version.cuda}
    precisions = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    found["peak_tflops_per_s"] = {name: round(peak(device, dtype) / 1e12, 3) for name, dtype in precisions.items()}
    found["plain_read_gb_per_s"] = round(bandwidth(device) / 1e9, 1)
    return found


def serve(pipe: Connection, device_name: str) -> None:
    """Report the device, then answer rows, and compile the steps of lists of them; float32 is without TF32."""
    device = torch.device(device_name)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    pipe.send(machine_of(device))
    while True:
        request: Row | tuple[list[Row], float] = pipe.recv()
        if isinstance(request, Row):
            pipe.send(figures_of(request, device))
        else:
            rows, limit_s = request
            pipe.send(build_steps(rows, device, limit_s))


def figures_of(row: Row, device: torch.device) -> dict[str, Any]:
    if row.table == "kernels":
        return guarded(device, lambda: measure_kernels(row, device))
    return measure(row, device)


class Worker:
    """One process at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.machine: dict[str, Any] | None = None
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, limit_s: float) -> dict[str, Any] | None:
        """Start the process unless it runs; returns an error, if any."""
        if self._process is not None:
            return None
        spawning = multiprocessing.get_context("spawn")  # a device does not survive a fork
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=serve, args=(theirs, str(self.device)), daemon=True)
        self._process.start()
        theirs.close()
        answer = self._answer(min(limit_s, START_S))
        if "error" in answer:
            return answer
        self.machine = answer
        return None

    def build_steps(self, rows: list[Row], limit_s: float) -> dict[str, Any]:
        """Let processes compile the steps of the rows; `packages` are there in time."""
        problem = self.start(limit_s)
        if problem is not None:
            return problem
        self._pipe.send((rows, limit_s))
        return self._answer(limit_s + START_S)

    def measure(self, row: Row, limit_s: float) -> dict[str, Any]:
        """The row's figures, or its `error`."""
        self._pipe.send(row)
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            if self._pipe.poll(limit_s):
                answer: dict[str, Any] = self._pipe.recv()
                return answer
            problem = f"took longer than {limit_s:.0f} s"
        except (EOFError, OSError):
            problem = "the process ended"
        self.stop()
        return {"error": problem}

    def stop(self) -> None:
        """Terminate the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None
