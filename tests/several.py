"""Real processes that train one model, started as torchrun starts them."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warm_python import WarmPython

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent


def start(arguments: Sequence[str | Path], count: int, **settings: object) -> list[subprocess.Popen]:
    """`python ARGUMENTS`, so many times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(count):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        place["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **{name: str(value) for name, value in (ranks | place).items()}}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(WarmPython([sys.executable, *arguments], env=environment, **{**pipes, **settings}))
    return started


def finish(started: Sequence[subprocess.Popen], timeout_s: float = 120) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; none is left behind."""
    try:
        return [(process.wait(timeout_s), *process.communicate()) for process in started]
    finally:
        for process in started:
            process.kill()
