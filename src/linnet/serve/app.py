"""The HTTP application: the routes, and what is counted of each; what is behind them is in the modules beside."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from linnet.serve.host import Hosts
from linnet.serve.metrics import ServerMetrics
from linnet.serve.objects import (
    ChatCompletion,
    CompletionObject,
    DecodedText,
    Deleted,
    Embeddings,
    ModelList,
    ModelObject,
    ResponseObject,
    SessionList,
    SessionObject,
    Tokens,
)
from linnet.serve.openai import chat, check_ids, complete, embed, tokens_of
from linnet.serve.openapi import BYTES, EVENTS, JSON, HttpOperation, document, get, post
from linnet.serve.protocol import (
    ApiError,
    Call,
    Endpoint,
    HeaderCheck,
    error_response,
    owner_of,
    read_body,
    while_connected,
)
from linnet.serve.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ResponseRequest,
    SessionRequest,
    SessionStep,
    TokenizeRequest,
)
from linnet.serve.responses import Conversations, respond
from linnet.serve.states import ACTIONS, Sessions, continue_session

PAGE = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Settings:
    """How the server is reached. api_keys: accepted keys; none: no key is needed. state_dir: of saved sessions."""

    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ("*",)
    state_dir: Path | None = None


class Server:
    """The endpoints of the models of a server."""

    def __init__(self, hosts: Hosts, settings: Settings) -> None:
        self.hosts, self.settings = hosts, settings
        self.metrics = ServerMetrics(hosts)
        self.sessions = Sessions(hosts, settings.state_dir, hosts.limits.max_state // 2)
        self.conversations = Conversations()
        self.started_s = int(time())

    def application(self) -> Starlette:
        """The application, as uvicorn runs it."""
        routes: list[BaseRoute] = [
            Route(operation.path, self._guarded(operation.path, operation.endpoint), methods=[operation.method])
            for operation in self.operations()
        ]
        routes += [
            Route("/health", self.health, methods=["GET"]),
            Route("/openapi.json", self.describe, methods=["GET"]),
        ]
        # Each file is a route: one for all paths would match those that exist with other methods, or not at all.
        files = StaticFiles(directory=PAGE, html=True)
        names = ("", *sorted(path.name for path in PAGE.iterdir()))
        routes += [Route(f"/{name}", files, methods=["GET"]) for name in names]
        application = Starlette(
            routes=routes,
            middleware=[Middleware(HeaderCheck, names=self.settings.allowed_hosts)],
            exception_handlers={HTTPException: _http_error, Exception: _unexpected},
            lifespan=self._lifespan,
        )
        application.router.redirect_slashes = False
        return application

    def operations(self) -> list[HttpOperation]:
        """All operations that need a key, if the server has keys."""
        streams = {"answers": (JSON, EVENTS)}
        actions = {"choices": {"action": ACTIONS}, "is_body_needed": False}
        return [
            post("/v1/completions", CompletionRequest, self.completions, answer=CompletionObject, **streams),
            post("/v1/chat/completions", ChatRequest, self.chat_completions, answer=ChatCompletion, **streams),
            post("/v1/responses", ResponseRequest, self.create_response, answer=ResponseObject, **streams),
            post("/v1/embeddings", EmbeddingRequest, self.embeddings, answer=Embeddings),
            post("/tokenize", TokenizeRequest, self.tokenize, answer=Tokens),
            post("/detokenize", DetokenizeRequest, self.detokenize, answer=DecodedText),
            post("/v1/sessions", SessionRequest, self.create_session, answer=SessionObject),
            post("/v1/sessions/{id}/{action:str}", SessionStep, self.change_session, answer=SessionObject, **actions),
            get("/v1/models", self.models, answer=ModelList),
            get("/v1/models/{model:path}", self.one_model, answer=ModelObject),
            get("/v1/sessions", self.list_sessions, answer=SessionList),
            get("/v1/sessions/{id}", self.one_session, answer=SessionObject),
            get("/v1/sessions/{id}/state", self.session_state, answers=(BYTES,)),
            get("/metrics", self.report_metrics, answers=("text/plain",)),
            HttpOperation(
                "DELETE", "/v1/sessions/{id}", self.delete_session, answer=Deleted, summary="Forget a session."
            ),
            HttpOperation(
                "PUT",
                "/v1/sessions",
                self.receive_session,
                BYTES,
                answer=SessionObject,
                query=("model",),
                summary="A session from its file.",
            ),
        ]

    async def describe(self, request: Request) -> Response:
        """`GET /openapi.json`: all operations as OpenAPI describes them."""
        return JSONResponse(document(self.operations(), list(self.hosts.sources), bool(self.settings.api_keys)))

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.hosts.close()

    def _guarded(self, path: str, endpoint: "Endpoint") -> Callable[[Request], Awaitable[ASGIApp]]:
        """An endpoint behind the check of the key, whose errors become OpenAI's error objects; it is counted.

        Its time ends when the answer has been sent, a stream with its last chunk.
        """

        async def run(request: Request) -> ASGIApp:
            start_s, limits = monotonic(), self.hosts.limits
            try:
                owner = owner_of(request, self.settings.api_keys)
                async with asyncio.timeout(limits.timeout_s):
                    body = await read_body(request, limits.max_body)
                response = await while_connected(request, endpoint(Call(request, owner, body)))
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception as error:
                response = error_response(error)
            self.metrics.requests.labels(path, response.status_code).inc()

            async def send_timed(scope: Scope, receive: Receive, send: Send) -> None:
                try:
                    await response(scope, receive, send)
                finally:
                    self.metrics.request_s.labels(path).observe(monotonic() - start_s)

            return send_timed

        return run

    async def health(self, request: Request) -> Response:
        """`GET /health`: 200 while the server accepts requests, 503 when it is about to end."""
        if self.hosts.is_closing:
            return JSONResponse({"status": "closing"}, 503)
        loads = {name: host.load for name, host in self.hosts.loaded.items()}
        return JSONResponse({"status": "ok", "models": list(self.hosts.sources), "streams": loads})

    async def report_metrics(self, call: Call) -> Response:
        """`GET /metrics`: figures for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, call: Call) -> Response:
        """`GET /v1/models`."""
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self.hosts.sources]})

    async def one_model(self, call: Call) -> Response:
        """`GET /v1/models/NAME`."""
        name = call.request.path_params["model"]
        if name not in self.hosts.sources:
            raise ApiError(404, f"model {name}: unknown", "model", "model_not_found")
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        host = self.hosts.loaded.get(name)
        about: dict[str, Any] = {"id": name, "object": "model", "created": self.started_s, "owned_by": "linnet"}
        if host is not None:
            spec = host.model.spec
            about["meta"] = {
                "layers": list(spec.layer_kinds),
                "context_length": spec.context_length,
                "vocab_size": spec.vocab_size,
                "weights_bytes": host.weights_bytes,
                "chat_template": "plain" if host.template.is_plain else "of the model",
            }
        return about

    async def completions(self, call: Call, body: CompletionRequest) -> Response:
        """`POST /v1/completions`."""
        if body.from_state is not None or body.return_state:
            return await continue_session(self.sessions, call.owner, body, self.metrics)
        return await complete(await self.hosts.get(body.model), body, self.metrics)

    async def chat_completions(self, call: Call, body: ChatRequest) -> Response:
        """`POST /v1/chat/completions`."""
        return await chat(await self.hosts.get(body.model), body, self.metrics)

    async def create_response(self, call: Call, body: ResponseRequest) -> Response:
        """`POST /v1/responses`."""
        host = await self.hosts.get(body.model)
        return await respond(host, body, call.owner, self.conversations, self.metrics)

    async def embeddings(self, call: Call, body: EmbeddingRequest) -> Response:
        """`POST /v1/embeddings`."""
        return await embed(await self.hosts.get(body.model), body, self.metrics)

    async def tokenize(self, call: Call, body: TokenizeRequest) -> Response:
        """`POST /tokenize`: token ids, and the text of each."""
        host = await self.hosts.get(body.model)
        return JSONResponse(await asyncio.to_thread(tokens_of, host, body))

    async def detokenize(self, call: Call, body: DetokenizeRequest) -> Response:
        """`POST /detokenize`: the text of token ids."""
        host = await self.hosts.get(body.model)
        check_ids(host.model, body.tokens, "tokens")
        return JSONResponse({"text": await asyncio.to_thread(host.model.tokenizer.decode, body.tokens)})

    async def list_sessions(self, call: Call) -> Response:
        """`GET /v1/sessions`."""
        return JSONResponse({"object": "list", "data": self.sessions.listed(call.owner)})

    async def one_session(self, call: Call) -> Response:
        """`GET /v1/sessions/ID`."""
        return JSONResponse(await self.sessions.describe(call.owner, call.request.path_params["id"]))

    async def create_session(self, call: Call, body: SessionRequest) -> Response:
        """`POST /v1/sessions`."""
        return JSONResponse(await self.sessions.create(call.owner, body))

    async def change_session(self, call: Call, body: SessionStep) -> Response:
        """`POST /v1/sessions/ID/feed`, `rewind`, `fork`, `save` or `stop`."""
        place = call.request.path_params
        return JSONResponse(await self.sessions.change(call.owner, place["id"], place["action"], body))

    async def delete_session(self, call: Call) -> Response:
        """`DELETE /v1/sessions/ID`."""
        self.sessions.delete(call.owner, call.request.path_params["id"])
        return JSONResponse({"deleted": True})

    async def session_state(self, call: Call) -> Response:
        """`GET /v1/sessions/ID/state`: the session as a file."""
        content = await self.sessions.file_of(call.owner, call.request.path_params["id"])
        return Response(content, media_type="application/octet-stream")

    async def receive_session(self, call: Call) -> Response:
        """`PUT /v1/sessions?model=NAME`: a session from such a file, which is the body."""
        model = call.request.query_params.get("model", "")
        return JSONResponse(await self.sessions.receive(call.owner, model, call.body))


async def _http_error(request: Request, error: Exception) -> Response:
    """An error of the router, such as a path that does not exist."""
    assert isinstance(error, HTTPException)
    problem, headers = f"{request.method} {request.url.path}: {error.detail}", dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods_of(request))
        problem += f"; expected {headers['Allow']}"
    response = error_response(ApiError(error.status_code, problem))
    response.headers.update(headers)
    return response


def _methods_of(request: Request) -> list[str]:
    """All methods of a path: the router knows those of one of its routes."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes if isinstance(route, Route) for method in route.methods or ()})


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of the server outside the endpoints."""
    return error_response(error)
