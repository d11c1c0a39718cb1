"""Requests that are drawn from the published description of a server."""

import json
import urllib.request

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from linnet.serve.app import Settings
from linnet.serve.host import Limits
from linnet.serve.requests import MAX_CHOICES

from .conftest import Running

EXAMPLES = 20


@pytest.fixture(scope="module")
def described(folders, tmp_path_factory):
    """A server, and what it says of itself."""
    server = Running(folders, Limits(max_batch=4), Settings(state_dir=tmp_path_factory.mktemp("states")))
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    yield server, schema
    server.close()


@pytest.fixture(scope="module")
def document(described):
    with urllib.request.urlopen(f"{described[0].url}/openapi.json") as answer:
        return json.load(answer)


def test_the_description_has_all_paths_and_fields(document):
    assert set(document["paths"]["/v1/sessions"]) == {"get", "post", "put"}
    assert set(document["paths"]["/v1/sessions/{id}"]) == {"get", "delete"}
    assert len(document["paths"]) == 15
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["n"]["anyOf"][0]["maximum"] == MAX_CHOICES and "from_state" in fields
    assert set(document["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]) == {
        "application/json",
        "text/event-stream",
    }


REQUESTS = [
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 3, "logprobs": 2, "echo": True}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 0, "echo": True}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 2, "return_state": True}),
    ("POST", "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
                                      "logprobs": True, "top_logprobs": 2}),
    ("POST", "/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 2}),
    ("POST", "/v1/embeddings", {"model": "tiny", "input": ["one", "two"]}),
    ("POST", "/v1/embeddings", {"model": "tiny", "input": "one", "encoding_format": "base64"}),
    ("POST", "/tokenize", {"model": "tiny", "text": "one"}),
    ("POST", "/detokenize", {"model": "tiny", "tokens": [5]}),
    ("POST", "/v1/sessions", {"model": "tiny", "text": "one"}),
    ("GET", "/v1/sessions", None),
    ("GET", "/v1/sessions/{id}", None),
    ("POST", "/v1/sessions/{id}/stop", {}),
    ("POST", "/v1/sessions/{id}/fork", {}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/tiny", None),
    ("DELETE", "/v1/sessions/{id}", None),
]  # fmt: skip
PATTERNS = {"/v1/models/tiny": "/v1/models/{model}"} | {
    f"/v1/sessions/{{id}}/{action}": "/v1/sessions/{id}/{action}" for action in ("stop", "fork")
}


def test_answers_have_the_described_fields_and_no_others(described, document):
    server, session = described[0], None
    for method, path, body in REQUESTS:
        address = server.url + path.replace("{id}", str(session))
        request = urllib.request.Request(
            address, json.dumps(body).encode() if body is not None else None, method=method
        )
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            found = json.load(answer)
        session = found["id"] if path == "/v1/sessions" and method == "POST" else session
        operation = document["paths"][PATTERNS.get(path, path)][method.lower()]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema_rs.validate({**schema, "components": document["components"]}, found)
    assert "layers" in document["components"]["schemas"]["SessionObject"]["properties"]


def _shorten(case):
    """The same request for answers of a few tokens."""
    body = case.body
    if isinstance(body, dict):
        limits = {"max_tokens", "max_completion_tokens", "max_output_tokens"} & body.keys()
        case.body = body | dict.fromkeys(limits, 2) | ({"n": 2} if isinstance(body.get("n"), int) else {})
        path = case.operation.path
        if path == "/v1/responses":
            case.body["max_output_tokens"] = 2
        elif path.endswith("completions"):
            case.body["max_tokens"] = 2
        if "model" in body and path != "/v1/sessions/{id}/{action}":
            case.body["model"] = "tiny"


@pytest.mark.slow
def test_drawn_requests_are_answered_as_described(described):
    """No fault of the server, no status, media type or error object that the description does not have."""
    _, schema = described
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.CHECKS.get_one("status_code_conformance"),
        schemathesis.checks.CHECKS.get_one("content_type_conformance"),
        schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
    ]
    statuses: set[int] = set()
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case):
            _shorten(case)
            answer = case.call()
            statuses.add(answer.status_code)
            case.validate_response(answer, checks=checks)

        given(case=operation.as_strategy())(ask)()
    assert {200, 400, 404} <= statuses
