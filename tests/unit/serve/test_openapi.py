"""Requests that are drawn from the published description of a server."""

import json
import urllib.request

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
    server = Running(folders, Limits(max_batch=4, timeout_s=10), Settings(state_dir=tmp_path_factory.mktemp("states")))
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
