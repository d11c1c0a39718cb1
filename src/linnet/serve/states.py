"""Sessions: decode states as values that a client creates, forks, rewinds, saves, loads, fetches and sends.

A session is a `linnet.Session`; every one belongs to the key that made it, and no other key sees it. The states of all
sessions of a server have a bound in bytes. A file of a saved session is written atomically, so that a server that is
killed loses none that was saved before.
"""

import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response

from linnet.inference.cache_policy import observe
from linnet.inference.constrained import Grammar, constraint_of
from linnet.inference.session import Session
from linnet.inference.streams import Request, Stream
from linnet.serve.answers import Answer, Answers
from linnet.serve.host import Host, Hosts
from linnet.serve.metrics import ServerMetrics
from linnet.serve.openai import CompletionShape, prompt_events
from linnet.serve.protocol import ApiError, Chunk, event_stream, first_taken
from linnet.serve.requests import MAX_TOKENS_WITHOUT_LIMIT, CompletionRequest, SessionRequest, SessionStep

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of saved sessions, which are names of files."""

OBSERVED_PIECES = 8
"""Pieces of a stream between two reports of what the layers hold."""

MAX_SESSIONS = 10_000
"""Sessions of a server, which may be empty and hold no bytes."""


@dataclass
class Kept:
    """A session that a server holds for a client."""

    session: Session
    owner: str
    host: Host

    def describe(self, session_id: str, layers: bool = False) -> dict[str, Any]:
        """What the client is told; layers: also what each layer holds."""
        about = {"id": session_id, "object": "session", "model": self.host.name, "tokens": self.session.tokens}
        about |= {"bytes": self.session.nbytes}
        if not layers:
            return about
        texts = [event.choice.text for event in prompt_events(self.host.model, self.session.token_ids, None)]
        return about | {"token_texts": texts} | contents_of(self.session)


class Sessions:
    """The sessions of all clients of a server."""

    def __init__(self, hosts: Hosts, folder: Path | None, max_bytes: int) -> None:
        self.hosts, self.folder, self.max_bytes = hosts, folder, max_bytes
        self._kept: dict[str, Kept] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(kept.session.nbytes for kept in self._kept.values())

    def get(self, owner: str, session_id: str, field: str = "id") -> Kept:
        """A session of a client; `ApiError` for an id that is unknown to that client."""
        kept = self._kept.get(session_id)
        if kept is None or kept.owner != owner:
            raise ApiError(404, f"{field}: {session_id}: no such session", field, "session_not_found")
        return kept

    def put(self, owner: str, host: Host, session: Session) -> str:
        """Keep a session, and return its id; `ApiError` if the states would take more than the server allows."""
        needed = self.nbytes + session.nbytes
        if needed > self.max_bytes or len(self._kept) >= MAX_SESSIONS:
            problem = f"the sessions would take {needed:,} bytes, of {self.max_bytes:,} (--max-state); delete some"
            raise ApiError(429, problem, code="too_many_states")
        session_id = f"session-{uuid4().hex}"
        self._kept[session_id] = Kept(session, owner, host)
        return session_id

    def listed(self, owner: str) -> list[dict[str, Any]]:
        """The sessions of a client."""
        return [kept.describe(session_id) for session_id, kept in self._kept.items() if kept.owner == owner]

    async def describe(self, owner: str, session_id: str) -> dict[str, Any]:
        """One session, with what each of its layers holds."""
        kept = self.get(owner, session_id)
        return await kept.host.call(lambda: kept.describe(session_id, layers=True))

    async def create(self, owner: str, asked: SessionRequest) -> dict[str, Any]:
        """A new session, or the saved one of that name."""
        host = await self.hosts.get(asked.model)

        def make() -> Session:
            if asked.name is not None:
                return Session.load(host.model, self._file(owner, asked.name, must_exist=True), prefixes=host.prefixes)
            return Session(host.model, asked.cache_policy or "full", prefixes=host.prefixes)

        session = await host.call(make)
        if asked.text:
            await host.call(partial(_feed, session, asked.text))
        session_id = self.put(owner, host, session)
        return self._kept[session_id].describe(session_id)

    async def change(self, owner: str, session_id: str, action: str, asked: SessionStep) -> dict[str, Any]:
        """Do one of `feed`, `rewind`, `fork`, `save` with a session."""
        kept = self.get(owner, session_id)
        session = kept.session
        if asked.model not in ("", kept.host.name):
            raise ApiError(400, f"model: {asked.model}: the session is one of {kept.host.name}", "model")
        if action == "fork":
            twin = self.put(owner, kept.host, await kept.host.call(session.fork))
            return self._kept[twin].describe(twin)
        if action == "feed":
            text = _needed(asked.text, "text")
            await kept.host.call(partial(_feed, session, text))
        elif action == "rewind":
            tokens = _needed(asked.tokens, "tokens")
            await kept.host.call(lambda: session.rewind(tokens))
        elif action == "save":
            path = self._file(owner, _needed(asked.name, "name"))
            await kept.host.call(lambda: session.save(path))
        else:
            raise ApiError(404, f"{action}: expected feed, rewind, fork or save", code="unknown_action")
        return kept.describe(session_id)

    def delete(self, owner: str, session_id: str) -> None:
        """Forget a session; what was saved of it stays."""
        self.get(owner, session_id)
        del self._kept[session_id]

    async def file_of(self, owner: str, session_id: str) -> bytes:
        """A session as a file (safetensors), which Python and other servers of the model read."""
        kept = self.get(owner, session_id)

        def write() -> bytes:
            kept.session.save(content := BytesIO())
            return content.getvalue()

        return await kept.host.call(write)

    async def receive(self, owner: str, model: str, content: bytes) -> dict[str, Any]:
        """A session from such a file; `UserError` for a file of another model, or none at all."""
        host = await self.hosts.get(model)

        def read() -> Session:
            return Session.load(host.model, BytesIO(content), prefixes=host.prefixes)

        session_id = self.put(owner, host, await host.call(read))
        return self._kept[session_id].describe(session_id)

    def _file(self, owner: str, name: str, must_exist: bool = False) -> Path:
        """The file of a saved session, in a folder for each key."""
        if self.folder is None:
            raise ApiError(400, "name: this server saves no sessions; start it with --state-dir DIR", "name")
        if NAME.fullmatch(name) is None:
            raise ApiError(400, f"name: {name!r}: expected letters, digits, dots, hyphens and underscores", "name")
        folder = self.folder / (hashlib.sha256(owner.encode()).hexdigest()[:16] if owner else "all")
        path = folder / f"{name}.safetensors"
        if must_exist and not path.is_file():
            raise ApiError(404, f"name: {name}: no session was saved under this name", "name", "session_not_found")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path


def _feed(session: Session, text: str) -> None:
    """Add a text, and read it now: what is saved or forked need not read it again."""
    session.feed(text)
    session.read()


def _needed(value: Any, field: str) -> Any:
    if value is None:
        raise ApiError(400, f"{field}: missing", field)
    return value


async def continue_session(
    sessions: Sessions, owner: str, asked: CompletionRequest, metrics: ServerMetrics
) -> Response:
    """`POST /v1/completions` with `from_state` or `return_state`.

    The session of `from_state` does not change: its fork reads the prompt and goes on. With `return_state` the fork is
    kept, and the answer (of a stream: its last chunk) has its id in the field `state`.
    """
    if not isinstance(asked.prompt, str) or (asked.n or 1) != 1:
        raise ApiError(400, "prompt: expected one text, and n: 1, with from_state or return_state", "prompt")
    if asked.from_state is None:
        host = await sessions.hosts.get(asked.model)
        session = await host.call(lambda: Session(host.model, asked.cache_policy or "full", prefixes=host.prefixes))
    else:
        kept = sessions.get(owner, asked.from_state, "from_state")
        host = kept.host
        if asked.model not in ("", host.name):
            raise ApiError(400, f"model: {asked.model}: the session is one of {host.name}", "model")
        if asked.cache_policy is not None:
            raise ApiError(400, "cache_policy: a session has its own; leave it out", "cache_policy")
        session = await host.call(kept.session.fork)
    before = session.token_ids
    session.feed(asked.prompt)
    request = await host.call(lambda: request_of(host, session, asked))
    added = session.token_ids[len(before) :]
    echo = prompt_events(host.model, added, None) if asked.echo else []
    shape = CompletionShape(asked, host.name, [echo])

    def end() -> dict[str, Any]:
        return {"state": sessions.put(owner, host, session)} if asked.return_state else {}

    async def chunks() -> AsyncGenerator[Chunk]:
        async with Answers.of(host, [request], asked.stops, metrics, session) as answers:
            for chunk in shape.first(answers.answers):
                yield {**chunk, "is_echo": True}
            async with aclosing(answers.pieces()) as pieces:
                number = 0
                async for piece in pieces:
                    if isinstance(piece, Answer):
                        contents = await host.call(lambda: contents_of(session)) if asked.observe else {}
                        yield {**shape.end(piece), **contents, **end()}
                        continue
                    number += 1
                    stream = answers.answers[0].hosted.stream
                    contents = {}
                    if asked.observe and number % OBSERVED_PIECES == 1 and stream is not None:
                        contents = await host.call(partial(contents_of, stream))
                    yield {**shape.piece(piece), **contents}
            if asked.stream_options is not None and asked.stream_options.include_usage:
                yield shape.usage(answers.usage)

    if asked.stream:
        return event_stream(await first_taken(chunks()), host.limits.timeout_s)
    async with Answers.of(host, [request], asked.stops, metrics, session) as answers:
        return JSONResponse(shape.whole(await answers.finished(), answers.usage) | end())


def request_of(host: Host, session: Session, asked: CompletionRequest) -> Request:
    """What the next continuation of a session asks of the engine."""
    constraint = constraint_of(json_schema=asked.json_schema, regex=asked.regex, choices=asked.choices)
    tokenizer = host.model.tokenizer
    return session.request(
        MAX_TOKENS_WITHOUT_LIMIT if asked.max_tokens is None else asked.max_tokens,
        logprobs=asked.logprobs,
        stop=asked.stops,
        ignore_eos=asked.ignore_eos,
        grammar=None if constraint is None else Grammar(tokenizer, constraint, session.token_ids),
        **asked.sampling_settings(),
    )


def contents_of(source: Session | Stream) -> dict[str, Any]:
    """What the layers of a stream hold: `layers`, and `held`: for each token, how much of it the layers still have.

    `held` is the mean over the layers that keep single tokens: 1 where all do, 0 where none does; absent if no layer
    keeps any. It runs in the engine's thread.
    """
    if isinstance(source, Session):
        found, tokens = source.observe(), source.tokens
    else:
        state = source.state
        if state is None:
            return {}
        found, tokens = observe(state), state.position
    layers = [
        {
            "layer": each.layer,
            "kind": each.sublayer,
            "cache_policy": each.cache_policy.label,
            "entries": each.contents.entries,
            "bytes": each.contents.held_nbytes,
        }
        for each in found
    ]
    keeping = [each.contents for each in found if each.contents.ages]
    if not keeping:
        return {"layers": layers}
    held = [0.0] * tokens
    for contents in keeping:
        most = max(contents.relevance or (1.0,), default=1.0) or 1.0
        shares = contents.relevance or (1.0,) * len(contents.ages)
        for age, share in zip(contents.ages, shares, strict=True):
            if 0 <= (place := tokens - 1 - age) < tokens:
                held[place] += share / most / len(keeping)
    return {"layers": layers, "held": [round(share, 3) for share in held]}
