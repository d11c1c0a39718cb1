"""`linnet serve` behind nginx with the configuration of docs/serving.md: what streams, who gets which server."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from linnet.serve.conformance import Client, run
from linnet.serve.protocol import event_stream
from serve_models import serving, write_tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
    pytest.mark.usefixtures("warm_python"),
]

NAME = "models.example.org"
PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("served") / "tiny", {"kind": "attention", "heads": 2}, 1)


def documented(begin: str) -> str:
    """The part of nginx's configuration that begins so in the documentation."""
    (found,) = re.findall(rf"```text\n({begin} .*?)```", PAGE.read_text(), flags=re.DOTALL)
    return found


@contextmanager
def nginx(root: Path, location: str, upstream: str = "") -> Iterator[str]:
    """The address of an nginx with these parts in its configuration."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = f"server {{ listen 127.0.0.1:{port}; {location} }}"
    temporary = "".join(
        f"{each}_temp_path {root}/{each}; " for each in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
    )
    http = f"http {{ access_log off; {temporary} {upstream} {server} }}"
    (root / "nginx.conf").write_text(f"daemon off; master_process off; pid {root}/pid; events {{}} {http}")
    command = ["nginx", "-c", f"{root}/nginx.conf", "-p", str(root), "-e", f"{root}/errors"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def client_of(url: str, key: str = "none") -> Client:
    client = Client(url, "tiny", key)
    client.headers["host"] = NAME
    return client


def test_an_event_passes_before_the_next_is_made(tmp_path):
    """The upstream has linnet's stream of events, and makes each when the client has the one before."""
    arrived = [threading.Event() for _ in range(3)]

    async def chunks():
        for number, each in enumerate(arrived):
            yield {"number": number}
            if not await asyncio.to_thread(each.wait, 60):
                return

    async def stream(request):
        return event_stream(chunks(), 60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/", stream)]), log_level="warning"))
        thread = threading.Thread(target=upstream.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            port = listener.getsockname()[1]
            location = documented("location").replace("8080", str(port))
            with nginx(tmp_path, location) as proxy, urllib.request.urlopen(f"{proxy}/", timeout=60) as answer:
                for number, each in enumerate(arrived):
                    assert [answer.readline(), answer.readline()] == [b'data: {"number": %d}\n' % number, b"\n"]
                    each.set()
                assert answer.read() == b"data: [DONE]\n\n"
        finally:
            upstream.should_exit = True
            thread.join()


def test_streams_end_with_their_clients_and_the_server_refuses(folder, tmp_path):
    with serving(folder, "--allow-host", NAME, "--state-dir", str(tmp_path / "states")) as (_, url):
        location = documented("location").replace("http://127.0.0.1:8080", url)
        with nginx(tmp_path, location) as proxy:
            client, direct = client_of(proxy), Client(url, "tiny")
            lines = client.lines("/v1/completions", prompt="a", max_tokens=10**6, ignore_eos=True)
            assert next(lines).startswith(b"data:")
            assert direct.get("/health")["streams"] == {"tiny": 1}
            lines.close()
            deadline = time.monotonic() + 120
            while direct.get("/health")["streams"]["tiny"] and time.monotonic() < deadline:
                time.sleep(0.05)
            assert direct.get("/health")["streams"] == {"tiny": 0}
            # The server, not nginx, refuses a body that is too large: the error is an object.
            status, answer = client.send("POST", "/v1/completions", {"prompt": "a" * 2_000_000, "temperature": "hot"})
            assert status == 400 and json.loads(answer)["error"]["param"] == "temperature"
            assert [outcome for outcome in run(client, []) if outcome.result != "passed"] == []


def test_a_key_has_one_server_and_keys_have_several(folder, tmp_path):
    keys = [f"key{number}" for number in range(8)]
    options = [word for key in keys for word in ("--api-key", key)]
    with serving(folder, *options, "--allow-host", NAME) as one, serving(folder, *options, "--allow-host", NAME) as two:
        urls = [url.removeprefix("http://") for _, url in (one, two)]
        upstream = documented("upstream")
        for port, url in zip(("8081", "8082"), urls, strict=True):
            upstream = upstream.replace(f"127.0.0.1:{port}", url)
        location = documented("location").replace("http://127.0.0.1:8080", "http://linnet")
        with nginx(tmp_path, location, upstream) as proxy:
            for key in keys:
                client = client_of(proxy, key)
                session = client.post("/v1/sessions", text="Once")["id"]
                for _ in range(6):
                    assert client.get(f"/v1/sessions/{session}")["id"] == session
            counts = [
                sum(len(Client(f"http://{url}", "tiny", key).get("/v1/sessions")["data"]) for key in keys)
                for url in urls
            ]
            assert sum(counts) == len(keys) and min(counts) > 0
