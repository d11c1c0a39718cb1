"""Clients of the servers of `serve.py`: one asyncio program, which takes little of the processors that servers need."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from serve_servers import RunningServer


@dataclass(frozen=True)
class Reply:
    """What a client got: the text, seconds to its first piece and to its end, and the usage that the server counts."""

    text: str
    first_s: float
    all_s: float
    usage: dict[str, Any]


async def stream(server: RunningServer, path: str, body: dict[str, Any]) -> Reply:
    """Send a request on a connection of its own, and read its events to the end."""
    payload = json.dumps({"model": server.model, "stream": True, **server.fields, **body}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    begun_s = time.perf_counter()
    writer.write(head.encode() + payload)
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    first_s: float | None = None
    try:
        async for data in _events(reader):
            chunk = json.loads(data)
            if "error" in chunk:
                raise SystemExit(f"{server.name}: {chunk['error']}")
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                if text and first_s is None:
                    first_s = time.perf_counter() - begun_s
                pieces.append(text)
    finally:
        writer.close()
    all_s = time.perf_counter() - begun_s
    return Reply("".join(pieces), all_s if first_s is None else first_s, all_s, usage)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The data of the events of an answer up to `[DONE]`; the body comes in chunks, which may cut lines."""
    status = await reader.readline()
    while (await reader.readline()).strip():
        pass
    rest = b""
    while size := int((await reader.readline()).strip() or b"0", 16):
        rest += await reader.readexactly(size)
        await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"status {status.decode().strip()}: {rest[:300]!r}")
        *lines, rest = rest.split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield data


async def complete(server: RunningServer, prompt: str, max_tokens: int) -> Reply:
    """A greedy completion."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream_options": {"include_usage": True}}
    return await stream(server, "/v1/completions", body)


async def together(
    server: RunningServer, prompts: Sequence[Sequence[str]], max_tokens: int
) -> tuple[list[Reply], float]:
    """The replies to as many clients as there are lists of prompts, each of which sends one after the other."""

    async def client(own: Sequence[str]) -> list[Reply]:
        return [await complete(server, prompt, max_tokens) for prompt in own]

    begun_s = time.perf_counter()
    replies = await asyncio.gather(*map(client, prompts))
    return [reply for each in replies for reply in each], time.perf_counter() - begun_s


def figures(replies: Sequence[Reply], elapsed_s: float) -> dict[str, float]:
    """Tokens a second of all clients, and milliseconds to the first token: the median, and that of the slowest 5 %."""
    first_ms = sorted(reply.first_s * 1e3 for reply in replies)
    return {
        "tokens_per_s": round(sum(reply.usage["completion_tokens"] for reply in replies) / elapsed_s, 2),
        "first_token_ms": round(statistics.median(first_ms), 1),
        "first_token_p95_ms": round(first_ms[min(len(first_ms) - 1, int(0.95 * len(first_ms)))], 1),
    }
