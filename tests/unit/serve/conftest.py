"""A real server on the loopback, in a thread of its own, with two tiny models."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from linnet.serve.app import Server, Settings
from linnet.serve.host import Hosts, Limits
from linnet.serve.process import configuration
from serve_models import CHATML, write_tiny


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("served")
    attention, recurrent = {"kind": "attention", "heads": 2}, {"kind": "rglru", "heads": 2}
    return {
        "tiny": str(write_tiny(root / "tiny", attention, 1, CHATML)),
        "recurrent": str(write_tiny(root / "recurrent", recurrent, 2)),
    }


class Running:
    """A server that runs in a thread until it is closed."""

    def __init__(self, folders: dict[str, str], limits: Limits, settings: Settings) -> None:
        self.server = Server(Hosts(folders, limits), settings)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self._uvicorn = uvicorn.Server(configuration(self.server))
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self._thread.start()
        while not self._uvicorn.started:
            time.sleep(0.01)

    def close(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(timeout=120)
        self.socket.close()


@pytest.fixture(scope="session")
def running(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = Settings(state_dir=tmp_path_factory.mktemp("states"))
    server = Running(folders, Limits(max_batch=8, max_queue=64, timeout_s=60), settings)
    yield server
    server.close()
