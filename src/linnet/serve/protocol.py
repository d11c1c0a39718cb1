"""What all endpoints share: reading a request, errors in OpenAI's form, streams of events, clients that go away."""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from linnet.core.errors import LOG, UserError, is_out_of_memory, one_line
from linnet.core.files import parse_json
from linnet.core.spec import Spec
from linnet.serve.host import OverloadedError

Chunk = Mapping[str, Any]
"""One event of a stream, which is sent as JSON."""

Body = TypeVar("Body", bound=Spec)

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    503: "service_unavailable_error",
}
"""The types of OpenAI's error objects by status."""


FIELD = re.compile(r"([^\W\d]\w*(?:\[\d+\]|\.[^\W\d]\w*)*):")
"""The field at the beginning of a message, as OpenAI writes it: `messages[0].content`."""

HEADER_BYTES = 64 << 10
"""Of the head of a request; longer ones are refused."""

HEAD_TOO_LONG = f"the headers have more than {HEADER_BYTES:,} bytes, the most that this server accepts"


class ApiError(Exception):
    """An error with a status, written as OpenAI writes errors."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, Any]:
        """The error object."""
        message, kind = one_line(str(self), 2000), ERROR_TYPES.get(self.status, "server_error")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: BaseException) -> ApiError:
    """The error as the client gets it; the log has the traceback of one that is a fault of the server."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        unknown_model = error.field == "model"
        code = "model_not_found" if unknown_model else None
        return ApiError(404 if unknown_model else 400, str(error), error.field, code)
    if isinstance(error, OverloadedError):
        overloaded = ApiError(503 if error.closing else 429, str(error), code="overloaded")
        overloaded.headers["retry-after"] = str(error.retry_after_s)
        return overloaded
    if isinstance(error, TimeoutError):
        return ApiError(408, "the request took longer than the server's --timeout", code="timeout")
    if isinstance(error, Exception) and is_out_of_memory(error):
        return ApiError(503, "no memory for this request at the moment", code="out_of_memory")
    LOG.error("a request failed", exc_info=error)
    return ApiError(500, f"{type(error).__name__}: the log of the server has the details")


def error_response(error: BaseException) -> JSONResponse:
    """The answer to a request that failed."""
    described = api_error(error)
    return JSONResponse(described.body(), described.status, headers=described.headers)


class HeaderCheck:
    """Refuses requests with too many bytes of headers, or a `Host` header that is none of `names`.

    Of the names `*.example.org` has all below it. Starlette's own check decides; what it refuses is answered with
    OpenAI's error object. The server itself refuses a head of which it has read too much without an end.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self.app, self.names = app, list(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(len(name) + len(value) for name, value in scope.get("headers", ())) > HEADER_BYTES:
            await error_response(ApiError(431, HEAD_TOO_LONG))(scope, receive, send)
            return
        is_accepted = False

        async def accept(*_: Any) -> None:
            nonlocal is_accepted
            is_accepted = True

        async def drop(_: Message) -> None:
            """The text that Starlette sends when it refuses."""

        await TrustedHostMiddleware(accept, self.names, www_redirect=False)(scope, receive, drop)
        answer: ASGIApp = self.app if is_accepted else error_response(self._refusal(scope))
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError:
        found = Headers(scope=scope).get("host", "")
        problem = f"Host: {found!r}: expected one of {', '.join(self.names)}; --allow-host NAME accepts another"
        return ApiError(400, problem, "Host", "invalid_host")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body of a request; `ApiError` if it has more bytes than a server accepts, before they are read."""
    problem = f"the body has more than {max_bytes:,} bytes, the most that this server accepts (--max-body)"
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise ApiError(413, problem)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise ApiError(413, problem)
        parts.append(part)
    return b"".join(parts)


@dataclass(frozen=True)
class Call:
    """One request: its key and its body, which has been read."""

    request: Request
    owner: str
    body: bytes

    async def parse(self, kind: type[Body]) -> Body:
        """The body as a typed object; `ApiError` names the field that is wrong."""
        media_type = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise ApiError(415, f"content-type: {media_type!r}: expected application/json")
        try:
            return await asyncio.to_thread(self._parsed, kind) if len(self.body) > 1 << 16 else self._parsed(kind)
        except UserError as error:
            message = str(error).removeprefix("body: ")
            if message == "must be a mapping":
                message = "the body: expected a JSON object"
            field = FIELD.match(message)
            raise ApiError(400, message, None if field is None else field[1]) from None

    def _parsed(self, kind: type[Body]) -> Body:
        try:
            text = self.body.decode()
        except UnicodeDecodeError as error:
            raise ApiError(400, f"the body is not UTF-8: {error}") from None
        return kind.parse(parse_json(text, "body", unique_keys=True), "body")


def owner_of(request: Request, keys: Collection[str]) -> str:
    """The key of a request, whose sessions no other key sees; `ApiError` without an accepted one."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if not keys:
        return ""
    known = [accepted for accepted in keys if hmac.compare_digest(accepted.encode(), key.strip().encode())]
    if scheme.lower() != "bearer" or not known:
        raise ApiError(
            401, "expected the header `Authorization: Bearer KEY` with an accepted key", code="invalid_api_key"
        )
    return known[0]


async def while_connected(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """The answer to a request whose body has been read; `ClientDisconnect`, and no answer, if the client goes away."""
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(request.receive())  # behind the body, only the end of the connection comes
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


Endpoint = Callable[[Call], Coroutine[Any, Any, Response]]
"""From a request to its answer."""


async def first_taken(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """The same chunks, of which the first has been made: an error before it is an answer with a status of its own."""
    first = await anext(chunks)

    async def others() -> AsyncGenerator[Chunk]:
        async with aclosing(chunks):
            yield first
            async for chunk in chunks:
                yield chunk

    return others()


def event_stream(chunks: AsyncGenerator[Chunk], send_timeout_s: float, named: bool = False) -> Response:
    """A response of server-sent events; `named`: each event has the name in its field `type`, and no end is marked.

    JSON is written in ASCII: clients that split lines at every line end of Unicode would break a chunk. An error ends
    the stream with an event that describes it. A client that does not read for `send_timeout_s` is given up.
    """

    async def events() -> AsyncIterator[ServerSentEvent]:
        try:
            async with aclosing(chunks) as each:
                async for chunk in each:
                    yield ServerSentEvent(json.dumps(chunk), event=str(chunk["type"]) if named else None, sep="\n")
        except Exception as error:
            yield ServerSentEvent(json.dumps(api_error(error).body()), event="error" if named else None, sep="\n")
        if not named:
            yield ServerSentEvent("[DONE]", sep="\n")

    return EventSourceResponse(
        events(),
        media_type="text/event-stream; charset=utf-8",
        sep="\n",
        send_timeout=send_timeout_s,
        # A server that is about to end finishes what runs.
        shutdown_event=anyio.Event(),
        shutdown_grace_period=send_timeout_s,
    )
