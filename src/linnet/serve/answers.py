"""Answers as they grow: streams of an engine, their text, and what a client is told of them.

A request has one answer for each of its prompts and each of `n`. Each is one stream of the engine; the text of its
tokens is assembled as in Python (`inference.language_model`), so that stop texts never leak and no character is broken.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from linnet.inference.session import Session
from linnet.inference.streams import Event, Request, Stream
from linnet.inference.text_events import TextEvent, TextEvents
from linnet.serve.host import Host, HostedStream
from linnet.serve.metrics import ServerMetrics


@dataclass(frozen=True)
class Piece:
    """What an answer grows by: text that is certain, the tokens that it is from, and their stream."""

    index: int
    text: str
    events: Sequence[TextEvent]
    stream: Stream


@dataclass
class Answer:
    """One answer: its stream, its text so far, and how it ended. texts: assembles the text."""

    index: int
    host: Host
    hosted: HostedStream
    texts: TextEvents | Session
    text: str = ""
    events: list[TextEvent] = field(default_factory=list)
    finish_reason: str | None = None
    tokens: int = 0

    @property
    def prompt(self) -> Sequence[int]:
        """The token ids that the request adds to what was read before."""
        return self.hosted.request.prompt

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not read again."""
        return 0 if self.hosted.stream is None else self.hosted.stream.cached_tokens

    async def pieces(self) -> AsyncGenerator[Piece]:
        """The pieces of the text as they become certain."""
        async with aclosing(self.hosted.events()) as batches:
            async for events in batches:  # behind a stop text too: a session takes all tokens that its state has read
                if piece := self._push(events):
                    yield piece
                if self.texts.has_stopped:
                    self.hosted.cancel()
        stream = self.hosted.stream
        assert stream is not None
        rest = await self._finish(stream)
        self.finish_reason = "length" if stream.finish_reason == "length" and not self.texts.has_stopped else "stop"
        if piece := self._piece(rest):
            yield piece

    async def _finish(self, stream: Stream) -> list[TextEvent]:
        """The events that were held back; a session also takes the state, in the thread of the engine."""
        if isinstance(self.texts, Session):
            return await self.host.call(partial(self.texts.finish, stream))
        return self.texts.finish()

    def _push(self, events: list[Event]) -> Piece | None:
        take = self.texts.accept if isinstance(self.texts, Session) else self.texts.push
        parts: list[TextEvent] = []
        for event in events:
            self.tokens += not self.texts.has_stopped
            parts += take(event)
        return self._piece(parts)

    def _piece(self, parts: list[TextEvent]) -> Piece | None:
        if not parts:
            return None
        self.events += parts
        text = "".join(part.text for part in parts)
        self.text += text
        assert self.hosted.stream is not None
        return Piece(self.index, text, parts, self.hosted.stream)


class Answers:
    """The answers to one request, which end together with it."""

    def __init__(self, host: Host, answers: list[Answer], metrics: ServerMetrics) -> None:
        self.host, self.answers, self.metrics = host, answers, metrics
        self._start_s, self._has_text = monotonic(), False
        self._queue: asyncio.Queue[Piece | Answer | Exception] = asyncio.Queue()

    @classmethod
    @asynccontextmanager
    async def of(
        cls,
        host: Host,
        requests: Sequence[Request],
        stops: Sequence[str],
        metrics: ServerMetrics,
        session: Session | None = None,
    ) -> "AsyncIterator[Answers]":
        """Begin the streams of requests; when the block is left, those that still run are cancelled.

        session: the one that the only request is of. `TimeoutError`, here or from `pieces`, when the server's limit is
        over. A timer ends the streams then, and no `asyncio.timeout` around the block, which would end one task alone:
        the first chunk of a stream is made in another task than the rest.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + host.limits.timeout_s
        streams = host.submit(*requests)
        made = [
            Answer(index, host, hosted, session or TextEvents(host.model.tokenizer, hosted.request.prompt, stops))
            for index, hosted in enumerate(streams)
        ]
        answers = cls(host, made, metrics)
        timer = loop.call_at(deadline_s, answers._expire)
        try:
            async with asyncio.timeout_at(deadline_s):
                for hosted in streams:
                    await hosted.begun.wait()
                    if hosted.error is not None:
                        raise hosted.error
            yield answers
        finally:
            timer.cancel()
            for hosted in streams:
                hosted.cancel()
            answers.count()

    def _expire(self) -> None:
        """End the streams, also if nobody takes their pieces at the moment; the error stands before their ends."""
        self._queue.put_nowait(TimeoutError())
        for answer in self.answers:
            answer.hosted.cancel()

    async def pieces(self) -> AsyncGenerator[Piece | Answer]:
        """The pieces of all answers as they come; an answer itself when it has ended."""
        queue = self._queue

        async def follow(answer: Answer) -> None:
            try:
                async with aclosing(answer.pieces()) as pieces:
                    async for piece in pieces:
                        queue.put_nowait(piece)
                queue.put_nowait(answer)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(follow(answer)) for answer in self.answers]
        try:
            running = len(tasks)
            while running:
                found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                if not self._has_text:
                    self._has_text = True
                    self.metrics.first_token_s.labels(self.host.name).observe(monotonic() - self._start_s)
                running -= isinstance(found, Answer)
                yield found
        finally:
            for task in tasks:
                task.cancel()

    async def finished(self) -> "list[Answer]":
        """All answers when they have ended."""
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass
        return self.answers

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens of the prompts, each once, and of the answers.

        Of the answers to one prompt the first counts for what was read before: the others find what it has read.
        """
        prompts = {id(answer.prompt): answer for answer in reversed(self.answers)}
        before = {key: len(one.hosted.request.read_tokens) for key, one in prompts.items()}
        prompt = sum(before[key] + len(one.prompt) for key, one in prompts.items())
        cached = sum(before[key] + one.cached_tokens for key, one in prompts.items())
        completion = sum(answer.tokens for answer in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def count(self) -> None:
        """Add the tokens of the request to the metrics."""
        usage = self.usage
        self.metrics.prompt_tokens.labels(self.host.name).inc(usage["prompt_tokens"])
        self.metrics.cached_tokens.labels(self.host.name).inc(usage["prompt_tokens_details"]["cached_tokens"])
        self.metrics.generated_tokens.labels(self.host.name).inc(usage["completion_tokens"])
