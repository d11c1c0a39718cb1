"""The operations of a server, and their description as OpenAPI 3.1.

Each operation names the model that checks its body; the description has the JSON schema of the same model, so that it
says what the server accepts. Reference: https://spec.openapis.org/oas/v3.1.0.
"""

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from starlette.responses import Response

from linnet.core.spec import Spec
from linnet.serve.objects import schema_of
from linnet.serve.protocol import ERROR_TYPES, Body, Call, Endpoint

JSON, EVENTS, BYTES = "application/json", "text/event-stream", "application/octet-stream"

PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
"""A parameter in a path as Starlette writes it."""

ERRORS = {
    400: "The request has a mistake, which the message names.",
    401: "The key is missing or not accepted.",
    404: "There is no such model, session or response.",
    408: "The request took longer than the server allows.",
    413: "The body has too many bytes.",
    415: "The body is not declared as application/json.",
    429: "The queue is full, or the states take too much memory.",
    431: "The headers have too many bytes.",
    500: "A fault of the server, which its log describes.",
    503: "The server is about to end, or has no memory.",
}
"""What the statuses of errors mean."""

WITHOUT_KEY: Mapping[str, tuple[str, Mapping[int, str]]] = {
    "/health": ("Whether requests are accepted.", {200: "They are.", 503: "The server is about to end."}),
    "/openapi.json": ("This description.", {200: "The description."}),
}
"""Paths that are read without a key: what they are for, and what their statuses mean."""


@dataclass(frozen=True)
class HttpOperation:
    """One method of one path.

    body: the model that checks the body, or the media type of one that is not JSON. answers: media types of the answer.
    answer: the object of an answer in JSON (`serve.objects`). query: parameters behind the path. choices: accepted
    values of parameters in the path.
    """

    method: str
    path: str
    endpoint: Endpoint
    body: type[Spec] | str | None = None
    is_body_needed: bool = True
    answers: Sequence[str] = (JSON,)
    answer: Any = None
    query: Sequence[str] = ()
    choices: Mapping[str, Sequence[str]] | None = None
    summary: str = ""


def get(path: str, endpoint: Endpoint, **fields: Any) -> HttpOperation:
    """An operation without a body that only reads."""
    return HttpOperation("GET", path, endpoint, summary=_summary(endpoint), **fields)


def post(
    path: str, kind: type[Body], endpoint: Callable[[Call, Body], Coroutine[Any, Any, Response]], **fields: Any
) -> HttpOperation:
    """An operation whose body is JSON that the model `kind` checks."""
    is_needed = fields.get("is_body_needed", True)

    async def run(call: Call) -> Response:
        return await endpoint(call, await call.parse(kind) if call.body or is_needed else kind())

    return HttpOperation("POST", path, run, kind, summary=_summary(endpoint), **fields)


def _summary(endpoint: Callable[..., Any]) -> str:
    return (inspect.getdoc(endpoint) or "").partition("\n")[0]


def document(operations: Sequence[HttpOperation], models: Sequence[str], has_keys: bool) -> dict[str, Any]:
    """The description of a server with these models; has_keys: requests need a key."""
    schemas: dict[str, Any] = {"Error": _error_schema()}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, schemas)
    for path, (summary, statuses) in WITHOUT_KEY.items():
        content = {JSON: {"schema": {"type": "object"}}}
        responses = {str(status): {"description": meaning, "content": content} for status, meaning in statuses.items()}
        paths[path] = {"get": {"summary": summary, "security": [], "responses": responses}}
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "linnet",
            "version": version("linnet"),
            "description": f"OpenAI's interface to {', '.join(models)}, with states that clients keep.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if has_keys:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"key": []}]
    return described


def _described(operation: HttpOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    """One operation; adds the schemas that it refers to."""
    parameters = [
        _parameter(name, "path", (operation.choices or {}).get(name)) for name in PARAMETER.findall(operation.path)
    ]
    parameters += [_parameter(name, "query") for name in operation.query]
    error = {"content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    responses: dict[str, Any] = {
        "200": {
            "description": "The answer.",
            "content": {kind: {"schema": _answer(kind, operation, schemas)} for kind in operation.answers},
        }
    }
    responses |= {str(status): {"description": meaning, **error} for status, meaning in ERRORS.items()}
    described = {"summary": operation.summary, "parameters": parameters, "responses": responses}
    if operation.body is not None:
        content = {JSON: {"schema": _schema(operation.body, schemas)}}
        if isinstance(operation.body, str):
            content = {operation.body: {"schema": {"type": "string", "format": "binary"}}}
        described["requestBody"] = {"required": operation.is_body_needed, "content": content}
    return described


def _parameter(name: str, place: str, choices: Sequence[str] | None = None) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1} | ({} if choices is None else {"enum": list(choices)})
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _answer(media_type: str, operation: HttpOperation, schemas: dict[str, Any]) -> Mapping[str, Any]:
    """The schema of an answer; of a stream, that of each event, whose data is JSON or `[DONE]`."""
    if media_type == EVENTS:
        fields = {"event": {"type": "string"}, "data": {"type": "string"}}
        return {"type": "object", "properties": fields, "required": ["data"]}
    return schema_of(operation.answer, schemas) if media_type == JSON else {"type": "string"}


def _schema(kind: type[Spec] | str, schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a model, which is added with those of the models that it has."""
    if isinstance(kind, str):
        return {}
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs", {})
    schemas[kind.__name__] = schema
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _error_schema() -> dict[str, Any]:
    """OpenAI's error object."""
    text_or_null = {"type": ["string", "null"]}
    fields = {
        "message": {"type": "string"},
        "type": {"type": "string", "enum": sorted(set(ERROR_TYPES.values()))},
        "param": text_or_null,
        "code": text_or_null,
    }
    error = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
