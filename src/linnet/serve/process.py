"""The process of a server: its socket, its signals, and its end."""

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from linnet.core.errors import UserError
from linnet.serve.app import Server
from linnet.serve.protocol import HEAD_TOO_LONG, HEADER_BYTES, ApiError, error_response

LINGER_S, LINGER_BYTES = 2.0, 8 << 20
"""How long, and for how many bytes, a connection is still read whose head was refused: one that is closed with unread
bytes is reset, and its client would not see the answer."""


class HttpProtocol(H11Protocol):
    """Answers a head that is too long or malformed with OpenAI's error object, and the status that h11 gives it."""

    refused_bytes: int | None = None

    def send_400_response(self, msg: str) -> None:
        """The answer to what uvicorn catches here; afterwards the connection is closed."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        problem = HEAD_TOO_LONG if status == 431 else f"not a request of HTTP/1.1: {error or msg}"
        answer = error_response(ApiError(status, problem))
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.refused_bytes = 0
        self.loop.call_later(LINGER_S, self.transport.close)

    def data_received(self, data: bytes) -> None:
        """Feed the request; what comes after a refused head is dropped."""
        if self.refused_bytes is None:
            super().data_received(data)
            return
        self.refused_bytes += len(data)
        if self.refused_bytes > LINGER_BYTES:
            self.transport.close()


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
        http=HttpProtocol,
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
