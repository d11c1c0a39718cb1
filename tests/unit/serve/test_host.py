"""Models in the memory of a server: when they are loaded, and when they make room for others."""

import asyncio
import json
import threading

import pytest

from linnet.inference.language_model import load
from linnet.serve.app import Settings
from linnet.serve.conformance import Client
from linnet.serve.host import Limits

from .conftest import Running


def test_a_model_whose_sessions_are_held_does_not_make_room(folders):
    server = Running(folders, Limits(max_memory=1), Settings())
    try:
        one, other = Client(server.url, "tiny"), Client(server.url, "recurrent")
        session = one.post("/v1/sessions", text="Once")["id"]
        expected = one.complete(" upon", 5, from_state=session)["choices"]
        status, body = other.send("POST", "/v1/completions", {"model": "recurrent", "prompt": "a", "max_tokens": 1})
        assert status == 429 and "sessions of them are held" in json.loads(body)["error"]["message"]
        assert one.complete(" upon", 5, from_state=session)["choices"] == expected
        one.send("DELETE", f"/v1/sessions/{session}")
        assert other.complete("a", 1)["choices"][0]["finish_reason"] == "length"
        assert list(server.server.hosts.loaded) == ["recurrent"]
    finally:
        server.close()


def test_a_client_that_leaves_while_a_model_is_loaded_leaves_the_load_to_the_next(folders, monkeypatch):
    begun, may_end = list[str](), threading.Event()

    def slowly(folder, *given):
        begun.append(str(folder))
        assert may_end.wait(60)
        return load(folder, *given)

    monkeypatch.setattr("linnet.serve.host.load", slowly)
    monkeypatch.setattr("linnet.serve.conformance.TIMEOUT_S", 0.3)
    server = Running(folders, Limits(), Settings())
    try:
        client = Client(server.url, "tiny")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                client.complete("a", 1)
        may_end.set()
        monkeypatch.setattr("linnet.serve.conformance.TIMEOUT_S", 60)
        assert client.complete("a", 1)["choices"][0]["finish_reason"] == "length"
        assert len(begun) == 1
    finally:
        may_end.set()
        server.close()


def test_calls_run_while_no_row_is_freed(folders):
    """Rows of a client that goes away are freed by the event loop, which must not change what a call reads."""
    server = Running(folders, Limits(), Settings())
    try:
        client = Client(server.url, "tiny")
        client.complete("a", 1)
        host, found = server.server.hosts.loaded["tiny"], list[bool]()

        async def call() -> None:
            await host.call(lambda: found.append(host.engine._stepping.locked()))

        asyncio.run(call())
        assert found == [True]
    finally:
        server.close()
