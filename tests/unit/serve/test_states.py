"""Sessions of a server: their bound, their origin, and the streams that continue them."""

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest
import torch

import linnet
from linnet.serve.app import Settings
from linnet.serve.conformance import Client
from linnet.serve.host import Limits

from .conftest import Running


def sent(server: Running, model: str, content: bytes) -> str:
    """The id of a session that is made of a file."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    connection.request("PUT", f"/v1/sessions?model={model}", content)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, body
    return body["id"]


@pytest.mark.parametrize("model", ["tiny", "recurrent"])
@pytest.mark.parametrize("by_name", [False, True], ids=["sent", "saved and loaded"])
def test_no_prompt_gets_the_states_of_a_file(model, by_name, folders, tmp_path):
    """Whose tensors may be anything, although the tokens are those of a prompt that others have."""
    prompt = "You are a helpful assistant. " * 20
    session = linnet.Session(linnet.load(folders[model], "cpu"))
    session.feed(prompt)
    session.read()
    session.save(honest := BytesIO())
    with torch.inference_mode():
        for tensor in session._state.tensors().values():
            if tensor.is_floating_point():
                tensor.mul_(-3.0)
    session.save(forged := BytesIO())
    server = Running(folders, Limits(), Settings(state_dir=tmp_path))
    try:
        client = Client(server.url, model)
        for content in (honest.getvalue(), forged.getvalue()):
            name = sent(server, model, content)
            if by_name:
                client.post(f"/v1/sessions/{name}/save", model=model, name="kept")
                name = client.post("/v1/sessions", name="kept")["id"]
            last = client.complete(" And", 5, from_state=name, return_state=True, ignore_eos=True)
            client.complete(" then", 5, from_state=last["state"], ignore_eos=True)
        found = client.complete(prompt + " And", 12, ignore_eos=True)
        expected = linnet.load(folders[model], "cpu").generate(prompt + " And", 12, temperature=0.0, ignore_eos=True)
        assert found["choices"][0]["text"] == expected
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    finally:
        server.close()


def test_a_session_that_would_be_too_large_is_not_fed(folders):
    server = Running(folders, Limits(max_state=400_000), Settings())
    try:
        client = Client(server.url, "tiny")
        session = client.post("/v1/sessions", text="Once")
        expected = client.complete(" upon", 5, from_state=session["id"])["choices"]
        for _ in range(2):
            feed = {"model": "tiny", "text": "a" * 4000}
            status, body = client.send("POST", f"/v1/sessions/{session['id']}/feed", feed)
            assert (status, json.loads(body)["error"]["code"]) == (429, "too_many_states")
        assert client.get(f"/v1/sessions/{session['id']}")["tokens"] == session["tokens"]
        assert client.complete(" upon", 5, from_state=session["id"])["choices"] == expected
        assert client.post(f"/v1/sessions/{session['id']}/feed", text=" upon")["tokens"] == session["tokens"] + 5
    finally:
        server.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_continuation_is_stopped_before_its_end_whether_it_is_streamed_or_not(running, stream):
    client = Client(running.url, "tiny")
    session = client.post("/v1/sessions", text="Once")["id"]
    body = {"from_state": session, "max_tokens": 100_000, "ignore_eos": True, "stream": stream, "model": "tiny"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.send, "POST", "/v1/completions", body)
        while client.post(f"/v1/sessions/{session}/stop")["stopped"] == 0:
            time.sleep(0.01)
        status, _ = answer.result(60)
    assert status == 200
    assert client.post(f"/v1/sessions/{session}/stop")["stopped"] == 0


def test_names_of_control_tokens_are_refused_in_the_text_of_a_session(running):
    client = Client(running.url, "tiny")
    for more in ({"return_state": True}, {"from_state": client.post("/v1/sessions", text="Once")["id"]}):
        body = {"model": "tiny", "prompt": "<|user|>", "parse_special": True, **more}
        status, answer = client.send("POST", "/v1/completions", body)
        assert (status, json.loads(answer)["error"]["param"]) == (400, "parse_special")
