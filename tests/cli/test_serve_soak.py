"""A server under many requests: flat memory, no open files left, and a slow reader that holds nobody up."""

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from linnet.serve.conformance import Client
from serve_models import serving, write_tiny

pytestmark = pytest.mark.slow

REQUESTS, CLIENTS = 10_000, 8
GROWTH_BYTES = 16 << 20
"""Of the memory over all but the first fifth of the requests; 2 KiB that each request lost would be more."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("soak") / "tiny", {"kind": "attention", "heads": 2}, 1)
    # The store of prefixes is full early, so that what grows later is a leak.
    with serving(folder, "--max-state", "2MiB") as (process, url):
        yield process, url


def _ask(url: str, numbers: range) -> None:
    """Short requests of every kind, a connection for every fifty of them."""
    address, connection = url.removeprefix("http://"), None
    for number in numbers:
        if connection is None or number % 50 == 0:
            if connection is not None:
                connection.close()
            connection = http.client.HTTPConnection(address, timeout=60)
        path = "/v1/chat/completions" if number % 7 == 0 else "/v1/completions"
        body = {"max_tokens": 2, "seed": number, "stream": number % 3 == 0}
        text = f"{number} once"
        body |= {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
        body |= {"temperature": "hot"} if number % 11 == 0 else {}
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == (400 if number % 11 == 0 else 200), content
    connection.close()


def test_ten_thousand_requests_leave_nothing_behind(served):
    process, url = served
    about = psutil.Process(process.pid)
    _ask(url, range(50))
    files, threads, memory = about.num_fds(), about.num_threads(), []
    start_s, part = time.monotonic(), REQUESTS // 5
    with ThreadPoolExecutor(CLIENTS) as pool:
        for begin in range(0, REQUESTS, part):
            share = part // CLIENTS
            runs = [range(begin + share * client, begin + share * (client + 1)) for client in range(CLIENTS)]
            list(pool.map(lambda numbers: _ask(url, numbers), runs))
            memory.append(about.memory_info().rss)
    print(f"{REQUESTS / (time.monotonic() - start_s):.0f} requests/s, MiB: {[bytes_ >> 20 for bytes_ in memory]}")
    deadline = time.monotonic() + 60
    while about.num_fds() > files and time.monotonic() < deadline:
        time.sleep(0.1)
    print(f"files {files}, then {about.num_fds()}; threads {threads}, then {about.num_threads()}")
    assert about.num_fds() <= files and memory[-1] - memory[0] < GROWTH_BYTES
    assert about.num_threads() <= threads + 8  # the pool of asyncio's helpers


def test_a_slow_reader_holds_nobody_up(served):
    """Clients that do not read their streams, while others are answered at once; then they get all of it."""
    _, url = served
    host, _, port = url.removeprefix("http://").partition(":")
    client = Client(url, "tiny")
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True, "logprobs": 5, "seed": 1})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    readers = []
    for _ in range(4):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((host, int(port)))
        raw.settimeout(60)
        raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        readers.append(raw)
    start_s = time.monotonic()
    for number in range(20):
        assert client.complete(f"{number}", 4)["choices"][0]["finish_reason"] == "length"
    assert time.monotonic() - start_s < 120  # without end if a stream waited for its reader
    for raw in readers:
        answer = http.client.HTTPResponse(raw)
        answer.begin()
        *chunks, end = [line[5:] for line in answer.read().splitlines() if line.startswith(b"data:")]
        raw.close()
        choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
        tokens = [token for choice in choices for token in (choice["logprobs"] or {"tokens": []})["tokens"]]
        assert len(tokens) == 3000 and end.strip() == b"[DONE]" and choices[-1]["finish_reason"] == "length"
    assert client.get("/health")["streams"] == {"tiny": 0}
