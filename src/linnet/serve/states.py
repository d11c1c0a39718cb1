"""Sessions: decode states as values that a client creates, forks, rewinds, saves, loads, fetches and sends.

A session is a `linnet.Session`; every one belongs to the key that made it, and no other key sees it. The states of all
sessions of a server have a bound in bytes. A file of a saved session is written atomically, so that a server that is
killed loses none that was saved before.
"""

import asyncio
import hashlib
import re
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from starlette.responses import Response

from linnet.core.errors import UserError
from linnet.inference.cache_policy import chooses, observe
from linnet.inference.constrained import Grammar, constraint_of
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.session import Session
from linnet.inference.streams import Request, Stream
from linnet.serve.answers import Answer, Piece
from linnet.serve.host import Host, Hosts
from linnet.serve.metrics import ServerMetrics
from linnet.serve.openai import CompletionShape, answer, prompt_events
from linnet.serve.protocol import ApiError
from linnet.serve.requests import CompletionRequest, SessionRequest, SessionStep

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of saved sessions, which are names of files."""

ACTIONS = ("feed", "rewind", "fork", "save", "stop")
"""What a client does with a session."""

OBSERVED_PIECES = 8
"""Pieces of a stream between two reports of what the layers hold."""

MAX_SESSIONS = 10_000
"""Sessions of a server, which may be empty and hold no bytes."""


@dataclass
class HeldSession:
    """A session that a server holds for a client. requests: of streams that continue it, ended ones among them."""

    session: Session
    owner: str
    host: Host
    requests: list[Request] = field(default_factory=list)

    def describe(self, session_id: str, layers: bool = False) -> dict[str, Any]:
        """What the client is told; layers: also what each layer holds."""
        about = {"id": session_id, "object": "session", "model": self.host.name, "tokens": self.session.tokens}
        about |= {"bytes": self.session.nbytes}
        if not layers:
            return about
        texts = [event.choice.text for event in prompt_events(self.host.model, self.session.token_ids, None)]
        about |= {"beginning": self.session.beginning, "token_texts": texts}
        return about | contents_of(self.session, self.host)


class Sessions:
    """The sessions of all clients of a server."""

    def __init__(self, hosts: Hosts, folder: Path | None, max_bytes: int) -> None:
        self.hosts, self.folder, self.max_bytes = hosts, folder, max_bytes
        self._held: dict[str, HeldSession] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(held.session.nbytes for held in self._held.values())

    def get(self, owner: str, session_id: str, field: str = "id") -> HeldSession:
        """A session of a client; `ApiError` for an id that is unknown to that client."""
        held = self._held.get(session_id)
        if held is None or held.owner != owner:
            raise ApiError(404, f"{field}: {session_id}: no such session", field, "session_not_found")
        return held

    def put(self, owner: str, host: Host, session: Session) -> str:
        """Keep a session, and return its id; `ApiError` if the states would take more than the server allows."""
        needed = self.nbytes + session.nbytes
        if needed > self.max_bytes or len(self._held) >= MAX_SESSIONS:
            raise self._too_many(needed)
        session_id = f"session-{uuid4().hex}"
        self._held[session_id] = HeldSession(session, owner, host)
        host.sessions += 1
        return session_id

    def feed(self, session: Session, text: str) -> None:
        """Add a text to a session, and read it now: what is saved or forked need not read it again.

        `ApiError` as of `put`; nothing changes then.
        """
        before = session.tokens
        session.feed(text)
        needed = self.nbytes - session.nbytes + session.needed_nbytes
        if needed > self.max_bytes:
            session.rewind(session.tokens - before)
            raise self._too_many(needed)
        session.read()

    def _too_many(self, needed: int) -> ApiError:
        problem = f"the sessions would take {needed:,} bytes, of {self.max_bytes:,} (--max-state); delete some"
        return ApiError(429, problem, code="too_many_states")

    def listed(self, owner: str) -> list[dict[str, Any]]:
        """The sessions of a client."""
        return [held.describe(session_id) for session_id, held in self._held.items() if held.owner == owner]

    async def describe(self, owner: str, session_id: str) -> dict[str, Any]:
        """One session, with what each of its layers holds."""
        held = self.get(owner, session_id)
        return await held.host.call(lambda: held.describe(session_id, layers=True))

    async def create(self, owner: str, body: SessionRequest) -> dict[str, Any]:
        """A new session, or the saved one of that name."""
        host = await self.hosts.get(body.model)
        before = None if body.from_state is None else self.get(owner, body.from_state, "from_state")
        if before is not None and (body.name is not None or before.host is not host):
            raise ApiError(400, f"from_state: {body.from_state}: expected a session of {host.name}, and no name")

        def make() -> Session:
            if before is not None:
                twin = before.session.with_cache_policy(body.cache_policy or host.cache_policy)
                twin.read()
                return twin
            if body.name is not None:
                path = self._file(owner, body.name, must_exist=True)
                try:
                    return _loaded(host, path)
                except UserError as error:
                    raise ApiError(400, str(error).replace(str(path), f"name: {body.name}"), "name") from None
            return Session(host.model, body.cache_policy or host.cache_policy, prefixes=host.prefixes)

        session = await host.call(make)
        if body.text:
            await host.call(partial(self.feed, session, body.text))
        session_id = self.put(owner, host, session)
        return self._held[session_id].describe(session_id)

    async def change(self, owner: str, session_id: str, action: str, body: SessionStep) -> dict[str, Any]:
        """Do one of `feed`, `rewind`, `fork`, `save` with a session."""
        held = self.get(owner, session_id)
        session = held.session
        if body.model not in ("", held.host.name):
            raise ApiError(400, f"model: {body.model}: the session is one of {held.host.name}", "model")
        if action == "fork":
            twin = self.put(owner, held.host, await held.host.call(session.fork))
            return self._held[twin].describe(twin)
        if action == "feed":
            text = _needed(body.text, "text")
            await held.host.call(partial(self.feed, session, text))
        elif action == "rewind":
            tokens = _needed(body.tokens, "tokens")
            try:
                await held.host.call(lambda: session.rewind(tokens))
            except UserError as error:
                raise ApiError(400, str(error).replace("rewind:", "tokens:", 1), "tokens") from None
        elif action == "stop":
            streams = held.host.hosted(held.requests)
            for stream in streams:
                stream.cancel()
            return held.describe(session_id) | {"stopped": len(streams)}
        elif action == "save":
            path = self._file(owner, _needed(body.name, "name"))
            await held.host.call(lambda: session.save(path))
        else:
            raise ApiError(404, f"{action}: expected one of {', '.join(ACTIONS)}", code="unknown_action")
        return held.describe(session_id)

    def delete(self, owner: str, session_id: str) -> None:
        """Forget a session; what was saved of it stays."""
        self.get(owner, session_id).host.sessions -= 1
        del self._held[session_id]

    async def file_of(self, owner: str, session_id: str) -> bytes:
        """A session as a file (safetensors), which Python and other servers of the model read."""
        held = self.get(owner, session_id)

        def write() -> bytes:
            held.session.save(content := BytesIO())
            return content.getvalue()

        return await held.host.call(write)

    async def receive(self, owner: str, model: str, content: bytes) -> dict[str, Any]:
        """A session from such a file; `UserError` for a file of another model, or none at all."""
        host = await self.hosts.get(model)

        session_id = self.put(owner, host, await host.call(lambda: _loaded(host, BytesIO(content))))
        return self._held[session_id].describe(session_id)

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


def _loaded(host: Host, source: Path | BinaryIO) -> Session:
    """A session from a file, whose states may be anything: no other session and no prompt gets them."""
    session = Session.load(host.model, source, prefixes=PrefixStore(1))
    session.is_stored = False
    return session


def _needed(value: Any, field: str) -> Any:
    if value is None:
        raise ApiError(400, f"{field}: missing", field)
    return value


async def continue_session(sessions: Sessions, owner: str, body: CompletionRequest, metrics: ServerMetrics) -> Response:
    """`POST /v1/completions` with `from_state` or `return_state`.

    The session of `from_state` does not change: its fork reads the prompt and goes on. With `return_state` the fork is
    kept, and the answer (of a stream: its last chunk) has its id in the field `state`.
    """
    if not isinstance(body.prompt, str) or (body.n or 1) != 1:
        raise ApiError(400, "prompt: expected one text, and n: 1, with from_state or return_state", "prompt")
    if body.parse_special:
        problem = "parse_special: the texts of a session have no names of control tokens; leave it out"
        raise ApiError(400, problem, "parse_special")
    held: HeldSession | None = None
    if body.from_state is None:
        host = await sessions.hosts.get(body.model)
        policies = body.cache_policy or host.cache_policy
        session = await host.call(lambda: Session(host.model, policies, prefixes=host.prefixes))
    else:
        held = sessions.get(owner, body.from_state, "from_state")
        host = held.host
        if body.model not in ("", host.name):
            raise ApiError(400, f"model: {body.model}: the session is one of {host.name}", "model")
        if body.cache_policy is not None:
            raise ApiError(400, "cache_policy: a session has its own; leave it out", "cache_policy")
        session = await host.call(held.session.fork)
    before = session.tokens
    await asyncio.to_thread(session.feed, body.prompt)  # long texts are tokenized beside the event loop
    grammar = await asyncio.to_thread(grammar_of, session, body)
    request = await host.call(lambda: request_of(host, session, body, grammar))
    if held is not None:
        held.requests = [*(one.request for one in host.hosted(held.requests)), request]
    added = session.token_ids[before:]
    echo = await asyncio.to_thread(prompt_events, host.model, added, None) if body.echo else []
    shape = CompletionShape(body, host.name, [echo])

    numbers = count()

    async def further(piece: Piece | Answer | None) -> dict[str, Any]:
        """The mark of an echo, what the layers hold now and then and at the end, and the id of the new session."""
        if piece is None:
            return {"is_echo": True}
        if isinstance(piece, Answer):
            observed = await host.call(partial(contents_of, session, host)) if body.observe and body.stream else {}
            return observed | ({"state": sessions.put(owner, host, session)} if body.return_state else {})
        if body.observe and next(numbers) % OBSERVED_PIECES == 0:
            return await host.call(partial(contents_of, piece.stream, host))
        return {}

    return await answer(host, [request], body.stops, shape, body, metrics, session, further)


def grammar_of(session: Session, body: CompletionRequest) -> Grammar | None:
    """What the next continuation of a session must be; None for anything."""
    constraint = constraint_of(json_schema=body.json_schema, regex=body.regex, choices=body.choices)
    return None if constraint is None else Grammar(session.model.tokenizer, constraint, session.token_ids)


def request_of(host: Host, session: Session, body: CompletionRequest, grammar: Grammar | None) -> Request:
    """What the next continuation of a session asks of the engine."""
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = host.room_behind(session.token_ids)
    return session.request(
        max_tokens,
        logprobs=body.logprobs,
        stop=body.stops,
        ignore_eos=body.ignore_eos,
        grammar=grammar,
        **body.sampling_settings(),
    )


def contents_of(source: Session | Stream, host: Host) -> dict[str, Any]:
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
    decoder = host.model.decoder
    specs = [block.parts for block in decoder.spec.blocks for _ in range(block.repeat)]
    layers = [
        {
            "layer": each.layer,
            "sublayer": each.sublayer,
            "kind": specs[each.layer][each.sublayer].kind,
            "has_choice": each.sublayer == "mixer" and chooses(decoder.mixers[each.layer]),
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
