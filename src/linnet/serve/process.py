"""The process of a server: its socket, its signals, and its end."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from linnet.core.errors import UserError
from linnet.serve.app import Server

HEADER_BYTES = 64 << 10
"""Of the head of a request; longer ones are refused."""


class UvicornServer(uvicorn.Server):
    """A server whose end by a signal is no error: uvicorn raises the signal again, as if it had not been handled."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def configuration(server: Server) -> uvicorn.Config:
    """How uvicorn runs a server."""
    return uvicorn.Config(
        server.application(),
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=max(1, int(server.hosts.limits.timeout_s)),
        http="h11",
        loop="asyncio",
        ws="none",
    )


def run(server: Server, host: str, port: int) -> None:
    """Serve until a signal; what runs is finished. `UserError` for an address that cannot be listened at."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        problem = f"cannot listen: {error.strerror or error}; expected a free port and an address of this machine"
        raise UserError(problem, field="port", value=f"{host}:{port}") from None
    with listener:
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{listener.getsockname()[1]}", flush=True)
        UvicornServer(configuration(server)).run(sockets=[listener])
