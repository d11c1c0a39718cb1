"""Real processes that train one model, started as torchrun starts them."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warm_python import WarmPython

TESTS = Path(__file__).resolve().parent
SLOWED = TESTS / "slowed_training.py"
ROOT = TESTS.parent


def start(arguments: Sequence[str | Path], count: int, **settings: object) -> list[subprocess.Popen]:
    """`python ARGUMENTS`, so many times."""
    # The port stays bound until the first process listens at it, and longer: nothing else gets it meanwhile.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port, started = reserved.getsockname()[1], []
    for rank in range(count):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        place["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **{name: str(value) for name, value in (ranks | place).items()}}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(WarmPython([sys.executable, *arguments], env=environment, **{**pipes, **settings}))
    started[0].reserved = reserved
    return started


def finish(started: Sequence[subprocess.Popen], timeout_s: float = 120) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; none is left behind."""
    try:
        return [(process.wait(timeout_s), *process.communicate()) for process in started]
    finally:
        for process in started:
            process.kill()
        started[0].reserved.close()
