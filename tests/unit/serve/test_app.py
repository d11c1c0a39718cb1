"""What a server refuses, and that it goes on afterwards."""

import asyncio
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import pytest

import linnet
from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Request
from linnet.serve import openai
from linnet.serve.answers import Answers
from linnet.serve.app import Settings
from linnet.serve.conformance import Client
from linnet.serve.host import Hosts, Limits
from serve_models import write_tiny

from .conftest import Running


@pytest.fixture(scope="module")
def guarded(folders, tmp_path_factory):
    settings = Settings(("first", "second"), ("127.0.0.1", "localhost"), tmp_path_factory.mktemp("states"))
    limits = Limits(max_batch=2, max_queue=2, max_body=100_000, max_state=1 << 20)
    server = Running(folders, limits, settings)
    yield server
    server.close()


def _post(server, path, body, **headers):
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    headers = {"content-type": "application/json", "authorization": "Bearer first", **headers}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    read = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return read


def _completion(server, **fields):
    return _post(server, "/v1/completions", json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 2} | fields))


@pytest.mark.parametrize("key", ["Bearer wrong", "Basic first", "", "Bearer ", "Bearer firs", "first"])
def test_a_wrong_key_is_refused(guarded, key):
    status, _, body = _post(guarded, "/v1/completions", "{}", authorization=key)
    assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key"


def test_sessions_belong_to_a_key(guarded):
    status, _, body = _post(guarded, "/v1/sessions", json.dumps({"model": "tiny", "text": "secret"}))
    assert status == 200
    path = f"/v1/sessions/{json.loads(body)['id']}/fork"
    assert _post(guarded, path, "", authorization="Bearer second")[0] == 404
    assert _post(guarded, path, "")[0] == 200
    other = Client(guarded.url, "tiny", "second")
    assert other.get("/v1/sessions")["data"] == []


@pytest.mark.parametrize("host", ["evil.example", "a b", ""])
def test_a_foreign_host_header_is_refused(guarded, host):
    status, headers, body = _post(guarded, "/v1/completions", "{}", host=host)
    error = json.loads(body)["error"]
    assert status == 400 and headers["content-type"] == "application/json" and error["param"] == "Host"
    assert error["message"].startswith(f"Host: {host!r}: expected one of 127.0.0.1, localhost; --allow-host")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * 10_000_000, 413),
        (b'{"prompt": ', 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"model": "tiny", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400),
        (b'{"model": "tiny", "prompt": "a", "max_tokens": 1e400}', 400),
        (b'{"model": "tiny", "prompt": "\\ud800"}', 400),
    ],
)
def test_a_malformed_body_is_refused(guarded, body, status):
    assert _post(guarded, "/v1/completions", body)[0] == status
    assert _completion(guarded)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/embeddings", {"input": [1, 99999]}, "input"),
        ("/v1/completions", {"prompt": [1, 99999], "echo": True, "logprobs": 1, "max_tokens": 0}, "prompt"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/completions", {"prompt": "a", "n": 5}, "prompt"),
        ("/v1/completions", {"prompt": "a", "observe": True}, "observe"),
        ("/v1/completions", {"prompt": "a", "model": ""}, "model"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": 1}},
            "chat_template_kwargs",
        ),
    ],
)
def test_what_the_model_cannot_read_is_named(guarded, path, body, field):
    status, _, answer = _post(guarded, path, json.dumps({"model": "tiny"} | body))
    assert status == (404 if field == "model" else 400) and json.loads(answer)["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"suffix": "b"}, "suffix: 'b': must be null"),
        ("/v1/completions", {"model": ""}, "model: missing; expected one of tiny, recurrent"),
        ("/v1/completions", {"n": 5}, "prompt: 5 answers (n for each prompt) at once; expected at most 4"),
        ("/v1/completions", [], "the body: expected a JSON object"),
        ("/v1/sessions/ID/rewind", {"tokens": 9}, "tokens: 9: expected 0 to 1"),
        ("/v1/sessions", {"model": "recurrent", "name": "one"}, "name: one: a stream of another model; expected"),
    ],
)
def test_messages_name_field_value_and_what_is_accepted(guarded, path, body, message):
    held = json.loads(_post(guarded, "/v1/sessions", json.dumps({"model": "tiny", "text": "a"}))[2])["id"]
    assert _post(guarded, f"/v1/sessions/{held}/save", json.dumps({"name": "one"}))[0] == 200
    if path == "/v1/completions" and body:
        body = {"model": "tiny", "prompt": "a"} | body
    _, _, answer = _post(guarded, path.replace("ID", held), json.dumps(body))
    assert json.loads(answer)["error"]["message"].startswith(message)


BODY = '{"model": "tiny", "prompt": "a", "max_tokens": 1, '


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("completions", BODY + '"model": "tiny"}', "model", "model: given twice in one object; expected once"),
        ("completions", BODY + '"logit_bias": {"5": 1, "5": 2}}', None, "'5': given twice in one object"),
        ("completions", BODY + '"stream": "yes"}', "stream", "stream: 'yes': must be true or false"),
        ("completions", BODY + '"echo": 1}', "echo", "echo: 1: must be true or false"),
        ("completions", BODY + '"temperature": "0.5"}', "temperature", "temperature: '0.5': must be a valid number"),
        ("completions", BODY + '"n": 1.0}', "n", "n: 1.0: must be a whole number"),
        ("completions", BODY + '"user": 5}', "user", "user: 5: must be a valid string"),
        ("completions", BODY + '"stop": 5}', "stop", "stop: 5: expected a text or a list of at most 16 texts"),
        ("completions", BODY + '"stop": ["a", 5]}', "stop", "stop: ['a', 5]: expected a text or a list"),
        ("completions", '{"prompt": ["a", 1]}', "prompt", "prompt: ['a', 1]: [1] is a token id, but [0] is a text; ex"),
        ("completions", '{"prompt": [1, true]}', "prompt", "prompt: [1, True]: [1] is neither a text nor a token id"),
        ("completions", '{"prompt": [[1], [-1]]}', "prompt", "prompt: [[1], [-1]]: [1] is neither a text nor a list"),
        ("completions", '{"prompt": 5}', "prompt", "prompt: 5: expected a text, a list of token ids"),
        ("embeddings", '{"input": [[1], "a"]}', "input", "input: [[1], 'a']: [1] is a text, but [0] is a list of tok"),
        (
            "chat/completions",
            '{"messages": [{"role": "user", "content": 5}]}',
            "messages[0].content",
            "messages[0].content: 5: must be a valid string",
        ),
    ],
)
def test_types_and_keys_are_checked_as_openai_does(guarded, path, body, param, message):
    status, _, answer = _post(guarded, f"/v1/{path}", body)
    error = json.loads(answer)["error"]
    assert (status, error["param"]) == (400, param) and error["message"].startswith(message)


def test_keys_of_logit_bias_are_text_and_no_temperature_is_the_default(guarded):
    status, _, answer = _completion(guarded, logit_bias={"65": 100}, temperature=None, max_tokens=3)
    assert status == 200 and json.loads(answer)["choices"][0]["text"] == "AAA"


@pytest.mark.parametrize(("size", "piece"), [(2_000_000, 1000), (70_000, 40_000)])
def test_too_many_headers_are_refused_with_a_status(guarded, size, piece):
    """Far too many, whose client still sends when it is refused; or whose end comes with the first byte too many."""
    head = f"GET /health HTTP/1.1\r\nhost: localhost\r\nx: {'y' * size}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", int(guarded.url.rpartition(":")[2])), timeout=120) as raw:
        for begin in range(0, len(head), piece):
            raw.sendall(head[begin : begin + piece])
            time.sleep(0.1 if size == 70_000 else 0)
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        error = json.loads(answer.read())["error"]
        assert (answer.status, error["type"]) == (431, "invalid_request_error")
        assert error["message"].startswith("the headers have more than 65,536 bytes")
    assert _completion(guarded)[0] == 200


def test_what_is_no_http_is_answered_and_closed(guarded):
    with socket.create_connection(("127.0.0.1", int(guarded.url.rpartition(":")[2])), timeout=120) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost : localhost\r\n\r\n")
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        assert answer.status == 400 and answer.getheader("connection") == "close"
        assert json.loads(answer.read())["error"]["message"].startswith("not a request of HTTP/1.1: ")
        assert raw.recv(1) == b""


def test_another_content_type_is_refused(guarded):
    status, _, body = _post(guarded, "/v1/completions", "{}", **{"content-type": "text/plain"})
    assert status == 415 and "application/json" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v1/nothing", 404, None),
        ("POST", "/v1/moderations", 404, None),
        ("POST", "/v1/completions/", 404, None),
        ("GET", "/app.py", 404, None),
        ("GET", "/v1/completions", 405, "POST"),
        ("DELETE", "/v1/completions", 405, "POST"),
        ("DELETE", "/v1/sessions", 405, "GET, HEAD, POST, PUT"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("POST", "/page.js", 405, "GET, HEAD"),
        ("GET", "/", 200, None),
        ("HEAD", "/page.js", 200, None),
    ],
)
def test_unknown_paths_and_methods_are_errors_of_the_same_form(guarded, method, path, status, allowed):
    connection = http.client.HTTPConnection(guarded.url.removeprefix("http://"), timeout=120)
    connection.request(method, path, headers={"authorization": "Bearer first"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert (answer.status, answer.getheader("allow")) == (status, allowed)
    if status == 200:
        return
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    error = json.loads(body)["error"]
    assert error["type"] == kind and error["message"].startswith(f"{method} {path}: ")


def test_a_full_queue_is_told_at_once_and_empties(guarded):
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: _completion(guarded, max_tokens=200, ignore_eos=True), range(12)))
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    refused = next(answer for answer in answers if answer[0] == 429)
    assert refused[1]["retry-after"] == "1" and json.loads(refused[2])["error"]["code"] == "overloaded"
    assert _completion(guarded)[0] == 200


def test_states_have_a_bound(guarded):
    statuses = []
    for _ in range(40):
        body = json.dumps({"model": "tiny", "text": "a" * 200})
        statuses.append(_post(guarded, "/v1/sessions", body)[0])
    assert statuses[0] == 200 and statuses[-1] == 429
    client = Client(guarded.url, "tiny", "first")
    for session in client.get("/v1/sessions")["data"]:
        client.send("DELETE", f"/v1/sessions/{session['id']}")
    assert _post(guarded, "/v1/sessions", json.dumps({"model": "tiny"}))[0] == 200


def test_a_request_that_takes_too_long_is_ended(folders, monkeypatch):
    server = Running(folders, Limits(), Settings())
    try:
        client = Client(server.url, "tiny")
        client.complete("warm", 1)
        endless = {"model": "tiny", "prompt": "a", "max_tokens": 100_000, "ignore_eos": True}
        with monkeypatch.context() as patched:  # the requests before and behind take the time that the machine needs
            host = server.server.hosts.loaded["tiny"]
            patched.setattr(host, "limits", replace(host.limits, timeout_s=0.3))
            status, body = client.send("POST", "/v1/completions", endless)
        assert status == 408 and json.loads(body)["error"]["code"] == "timeout"
        assert client.complete("after", 1)["choices"][0]["finish_reason"] == "length"
    finally:
        server.close()


def slowed(step):
    """A step of the engine that takes a tenth of a second more."""

    def slow() -> None:
        time.sleep(0.1)
        step()

    return slow


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 60, "n": 2}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 60, "return_state": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 60}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 60}),
    ],
    ids=["completion", "session", "chat", "response"],
)
def test_a_stream_that_takes_too_long_ends_with_an_error(running, monkeypatch, path, body):
    client = Client(running.url, "tiny")
    client.complete("warm", 1)
    host = running.server.hosts.loaded["tiny"]
    with monkeypatch.context() as patched:
        patched.setattr(host, "limits", replace(host.limits, timeout_s=0.8))
        patched.setattr(host.engine, "step", slowed(host.engine.step))
        lines = list(client.lines(path, **body, seed=1))
    errors = [json.loads(line[5:])["error"] for line in lines if line.startswith(b'data: {"error"')]
    assert [error["code"] for error in errors] == ["timeout"]
    assert _is_empty_soon(host)


def test_streams_are_ended_in_time_though_nobody_takes_their_pieces(running, monkeypatch):
    """As behind a client that reads nothing: the task that would take the pieces waits for it."""
    client = Client(running.url, "tiny")
    client.complete("warm", 1)
    host = running.server.hosts.loaded["tiny"]
    request = Request([5], 30_000, Sampling(seed=1), keep_state=False)

    async def wait_in_the_block() -> str | None:
        async with Answers.of(host, [request], (), running.server.metrics) as answers:
            hosted = answers.answers[0].hosted
            async for _ in hosted.events():  # until the engine has ended it: its thread needs this event loop
                pass
            with pytest.raises(TimeoutError):
                await answers.finished()
            return hosted.stream and hosted.stream.finish_reason

    monkeypatch.setattr(host, "limits", replace(host.limits, timeout_s=0.2))
    assert asyncio.run(wait_in_the_block()) == "cancelled"


def _is_empty_soon(host) -> bool:
    deadline = time.monotonic() + 60
    while host.load and time.monotonic() < deadline:
        time.sleep(0.01)
    return host.load == 0


def test_many_clients_get_what_each_gets_alone(running, folders):
    own = linnet.load(folders["tiny"])
    client = Client(running.url, "tiny")
    prompts = [f"{chr(97 + index % 26)}{index} once" for index in range(64)]

    def ask(index):
        body = {"prompt": prompts[index], "max_tokens": 5 + index % 20, "temperature": 1.0, "seed": index}
        return client.post("/v1/completions", **body)["choices"][0]["text"]

    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(ask, range(64)))
    expected = [own.generate(prompt, 5 + i % 20, temperature=1.0, seed=i) for i, prompt in enumerate(prompts)]
    assert texts == expected


def test_a_client_that_goes_away_frees_its_row(running):
    client = Client(running.url, "tiny")
    client.post("/v1/completions", prompt="a", max_tokens=1)  # loads the model, if this is the first test here
    host = running.server.hosts.loaded["tiny"]
    for stream in (True, False):
        connection = client.connection()
        body = {"model": "tiny", "prompt": "a", "max_tokens": 10**6, "stream": stream, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), client.headers)
        deadline = time.monotonic() + 60
        while host.load == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert host.load == 1
        if stream:
            connection.getresponse().readline()
        connection.sock.close() if connection.sock else connection.close()
        connection.close()
        assert _is_empty_soon(host), f"stream={stream}"


def test_a_stream_is_stopped_with_its_state(running):
    client = Client(running.url, "tiny")
    before = client.post("/v1/sessions", text="Once")["id"]
    body = {"prompt": " upon", "from_state": before, "return_state": True, "max_tokens": 100_000, "ignore_eos": True}
    chunks = client.lines("/v1/completions", **body, seed=1, logprobs=0)
    lines = [next(chunks)]
    assert client.post(f"/v1/sessions/{before}/stop")["stopped"] == 1
    lines += [line for line in chunks if line.startswith(b"data:")]
    *pieces, end = [json.loads(line[5:]) for line in lines[:-1]]
    written = [token for piece in pieces for token in (piece["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
    about = client.get(f"/v1/sessions/{end['state']}")
    held = about["tokens"] - len("\0Once upon") - len(written)  # bytes of a character that is not whole yet
    assert 0 <= held <= 3 and 0 < len(written) < 100_000
    assert client.post(f"/v1/sessions/{before}/stop")["stopped"] == 0


def test_usage_counts_the_tokens_before_an_answer(running):
    client = Client(running.url, "tiny")
    before = client.post("/v1/sessions", text="Once")["id"]
    first = client.complete(" upon", 9, from_state=before, return_state=True, ignore_eos=True)
    second = client.complete(" a", 7, from_state=first["state"], ignore_eos=True)
    counts = [(one["usage"]["prompt_tokens"], one["usage"]["completion_tokens"]) for one in (first, second)]
    assert counts == [(10, 9), (21, 7)]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 18


@pytest.mark.parametrize("name", ["tiny", "recurrent"])
def test_tokens_that_the_request_itself_has_read_do_not_count_as_cached(running, name):
    client = Client(running.url, name)
    prompts = [[230, *range(60, 70)], [231, *range(70, 80)]]  # which nobody has asked before, nor a beginning of them
    length, before = sum(map(len, prompts)), _cached_tokens(running, name)
    cold, warm = (client.complete(prompts, 2, n=3)["usage"] for _ in range(2))
    assert cold["prompt_tokens"] == warm["prompt_tokens"] == length
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["prompt_tokens_details"]["cached_tokens"] == length - 2
    assert _cached_tokens(running, name) - before == length - 2


def _cached_tokens(server, model: str) -> float:
    return _figure(server, "linnet_cached_prompt_tokens_total", model=model)


def _figure(server, name: str, **labels: str) -> float:
    return server.server.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_request_ends_when_its_answer_has_been_sent(running, monkeypatch, stream):
    client, route = Client(running.url, "tiny"), "/v1/completions"
    client.complete("warm", 1)
    host = running.server.hosts.loaded["tiny"]
    before = _figure(running, "linnet_request_seconds_sum", route=route)
    with monkeypatch.context() as patched:
        patched.setattr(host.engine, "step", slowed(host.engine.step))
        body = {"model": "tiny", "prompt": "a", "max_tokens": 5, "ignore_eos": True, "stream": stream}
        assert client.send("POST", route, body)[0] == 200
    deadline = time.monotonic() + 10
    while (taken_s := _figure(running, "linnet_request_seconds_sum", route=route) - before) < 0.4:
        assert time.monotonic() < deadline, taken_s
        time.sleep(0.01)


def test_a_session_is_read_anew_under_another_policy(tmp_path):
    folder = write_tiny(tmp_path / "ted", {"kind": "ted"}, 3)
    server = Running({"ted": str(folder)}, Limits(), Settings())
    try:
        client = Client(server.url)
        text = "Once upon a time there was a bird"
        full = client.post("/v1/sessions", text=text)
        few = client.post("/v1/sessions", from_state=full["id"], cache_policy="top_k=4")
        expected = client.post("/v1/sessions", text=text, cache_policy="top_k=4")
        assert few["tokens"] == full["tokens"]
        found = [client.complete("", from_state=one["id"], logprobs=2)["choices"] for one in (full, few, expected)]
        assert found[1] == found[2] != found[0]
        back = client.post("/v1/sessions", from_state=few["id"])
        assert client.complete("", from_state=back["id"], logprobs=2)["choices"] == found[0]
        status, answer = client.send("POST", "/v1/sessions", {"from_state": full["id"], "cache_policy": "top_k=x"})
        assert status == 400 and json.loads(answer)["error"]["param"] == "cache_policy"
    finally:
        server.close()


def test_the_server_has_a_policy_for_requests_that_name_none(folders, tmp_path, told):
    models = {"ted": str(write_tiny(tmp_path / "ted", {"kind": "ted"}, 3)), "tiny": folders["tiny"]}
    server = Running(models, Limits(cache_policy="bank"), Settings())
    try:
        assert [note for note in told() if "keeps the full cache" in note] == [
            "tiny keeps the full cache: cache_policy: bank: no layer of the model (attention) has it; expected full"
        ]
        client, text = Client(server.url, "ted"), "Once upon a time there was a bird " * 9
        session = client.post("/v1/sessions", text=text)
        assert _policies(client, session) == {"bank"}
        longer = client.complete("and then", 300, from_state=session["id"], return_state=True)
        assert _policies(client, {"id": longer["state"]}) == {"bank"}  # it grows beyond what it began with
        given = {"temperature": 0.0, "ignore_eos": True}
        first, again, alone = (
            client.complete(text, 60, **given, **more) for more in ({}, {}, {"cache_policy": "bank:length=65536"})
        )
        assert first["choices"] == again["choices"] == alone["choices"]
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again, alone)]
        assert cached == [len(text)] * 3  # the session has read it
        kept = {policy.label for key in server.server.hosts.loaded["ted"].prefixes._roots for policy in key[1]}
        assert kept == {"bank"}
        assert _policies(client, client.post("/v1/sessions", text=text, cache_policy="full")) == {"full"}
        assert Client(server.url, "tiny").complete("a", 2)["usage"]["completion_tokens"] <= 2
    finally:
        server.close()
    with pytest.raises(UserError, match=r"^cache_policy: bank: no layer of the model \(attention\) has it"):
        Hosts({"tiny": folders["tiny"]}, Limits(cache_policy="bank"))


def _policies(client: Client, session: dict) -> set[str]:
    """The policies of the mixers that have a choice, or of all layers."""
    return {layer["cache_policy"] for layer in client.get(f"/v1/sessions/{session['id']}")["layers"]}


def test_a_model_is_unloaded_for_another(folders):
    others = set(threading.enumerate())
    server = Running(folders, Limits(max_memory=1), Settings())
    try:
        for name in ("tiny", "recurrent", "tiny"):
            Client(server.url, name).complete("a", 1)
            assert list(server.server.hosts.loaded) == [name]
        own = set(threading.enumerate()) - others
        assert sum(thread.name.startswith("engine of") for thread in own) <= 1
    finally:
        server.close()


MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("path", "body", "made"),
    [
        ("/v1/completions", {"prompt": "a", "regex": "[ab]+", "n": 2}, ["prompt_tokens", "Grammar", "Grammar"]),
        ("/v1/chat/completions", {"messages": MESSAGES, "regex": "[ab]+"}, ["render", "prompt_tokens", "Grammar"]),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "json_object"}}},
            ["render", "prompt_tokens", "Grammar"],
        ),
        ("/tokenize", {"messages": MESSAGES}, ["render", "prompt_tokens"]),
        ("/v1/embeddings", {"input": "a"}, ["prompt_tokens"]),
        ("/detokenize", {"tokens": [5]}, ["decode"]),
    ],
)
def test_prompts_and_grammars_are_made_beside_the_event_loop(running, monkeypatch, path, body, made):
    """In whose thread a long prompt, or a large schema, would keep all other streams waiting."""
    client = Client(running.url, "tiny")
    client.complete("warm", 1)
    found: list[tuple[str, bool]] = []

    def watch(owner, name: str) -> None:
        called = getattr(owner, name)

        def watched(*given, **named):
            found.append((name, threading.current_thread() is running._thread))
            return called(*given, **named)

        monkeypatch.setattr(owner, name, watched)

    places = [(openai, "Grammar"), (ChatTemplate, "render"), (LanguageModel, "prompt_tokens"), (Tokenizer, "decode")]
    for owner, name in places:
        watch(owner, name)
    limit = {"max_output_tokens": 2} if path == "/v1/responses" else {"max_tokens": 2}
    status, answer = client.send("POST", path, {"model": "tiny", **body, **(limit if "Grammar" in made else {})})
    assert status == 200, answer
    assert [one for one in found if one[0] in made] == [(name, False) for name in made]


@pytest.mark.parametrize("method", ["submit", "step"])
def test_a_fault_of_the_engine_ends_its_streams_and_not_the_server(folders, monkeypatch, method):
    server = Running(folders, Limits(), Settings())
    try:
        client = Client(server.url, "tiny")
        client.complete("a", 1)
        with monkeypatch.context() as patched:
            engine = server.server.hosts.loaded["tiny"].engine
            patched.setattr(engine, method, Mock(side_effect=RuntimeError("broken")))
            status, body = client.send("POST", "/v1/completions", {"model": "tiny", "prompt": "a"})
            assert status == 500 and json.loads(body)["error"]["type"] == "server_error"
        assert client.complete("a", 1)["choices"][0]["finish_reason"] == "length"
    finally:
        server.close()
