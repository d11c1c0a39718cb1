"""`POST /v1/responses`: answers whose conversation the server keeps, so that the next request names only its message.

What is kept is the list of messages. The state of the conversation is found by its tokens in the prefix store, as for
every other prompt, so that a template which rewrites earlier turns costs time and never the right answer. Reference:
https://platform.openai.com/docs/api-reference/responses.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import time
from typing import Any

from starlette.responses import JSONResponse, Response

from linnet.inference.streams import Request
from linnet.serve.answers import Answer, Answers, Piece
from linnet.serve.host import Host
from linnet.serve.metrics import ServerMetrics
from linnet.serve.openai import chat_prompt, new_id, requests_of
from linnet.serve.protocol import ApiError, Chunk, event_stream, first_taken
from linnet.serve.requests import JsonSchema, ResponseRequest, SamplingFields

MAX_KEPT = 1000
"""Conversations that are kept of all clients; the oldest are forgotten first."""

Messages = list[dict[str, Any]]


@dataclass
class Conversations:
    """The messages of responses by the key of the client and their id."""

    kept: OrderedDict[tuple[str, str], Messages] = field(default_factory=OrderedDict)

    def get(self, owner: str, response_id: str) -> Messages:
        """The conversation up to a response; `ApiError` if there is none."""
        if (owner, response_id) not in self.kept:
            problem = f"previous_response_id: {response_id}: not found: unknown, not stored, or forgotten since"
            raise ApiError(404, problem, "previous_response_id", "previous_response_not_found")
        self.kept.move_to_end((owner, response_id))
        return list(self.kept[owner, response_id])

    def put(self, owner: str, response_id: str, messages: Messages) -> None:
        """Keep a conversation, and forget the oldest beyond the limit."""
        self.kept[owner, response_id] = messages
        while len(self.kept) > MAX_KEPT:
            self.kept.popitem(last=False)


@dataclass
class ResponseShape:
    """The objects and events of one response."""

    body: ResponseRequest
    model: str
    id: str = field(default_factory=lambda: new_id("resp"))
    message_id: str = field(default_factory=lambda: new_id("msg"))
    created_at: int = field(default_factory=lambda: int(time()))
    _number: int = 0

    def whole(self, answer: Answer | None = None, usage: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The response; without an answer, as it is before one."""
        is_cut = answer is not None and answer.finish_reason == "length"
        status = "in_progress" if answer is None else "incomplete" if is_cut else "completed"
        counts = usage or {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "model": self.model,
            "output": [] if answer is None else [self._message(answer.text, "incomplete" if is_cut else "completed")],
            "parallel_tool_calls": False,
            "previous_response_id": self.body.previous_response_id,
            "store": self.body.store is not False,
            "temperature": self.body.temperature,
            "text": {"format": {"type": "text"} if self.body.text is None else self.body.text.format},
            "tool_choice": "none",
            "tools": [],
            "top_p": self.body.top_p,
            "truncation": "disabled",
            "metadata": self.body.metadata or {},
            "usage": None
            if usage is None
            else {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }

    def opening(self) -> list[Chunk]:
        """The events before the text."""
        item, part = self._message("", "in_progress") | {"content": []}, self._part("")
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return [
            self._event("response.created", response=self.whole()),
            self._event("response.in_progress", response=self.whole()),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **place, part=part),
        ]

    def delta(self, piece: Piece) -> Chunk:
        """A piece of the text."""
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", **place, delta=piece.text, logprobs=[])

    def closing(self, answer: Answer, usage: Mapping[str, Any]) -> list[Chunk]:
        """The events behind the text."""
        whole = self.whole(answer, usage)
        place = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return [
            self._event("response.output_text.done", **place, text=answer.text, logprobs=[]),
            self._event("response.content_part.done", **place, part=self._part(answer.text)),
            self._event("response.output_item.done", output_index=0, item=whole["output"][0]),
            self._event(f"response.{whole['status']}", response=whole),
        ]

    def _message(self, text: str, status: str) -> dict[str, Any]:
        about = {"id": self.message_id, "type": "message", "role": "assistant", "status": status}
        return about | {"content": [self._part(text)]}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _event(self, kind: str, **fields: Any) -> Chunk:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _schema(body: ResponseRequest) -> dict[str, Any] | None:
    """The JSON schema of the answer, from `text.format`; None for text."""
    form = {"type": "text"} if body.text is None else body.text.format
    if form.get("type") == "json_schema":
        return JsonSchema.parse({key: value for key, value in form.items() if key != "type"}, "text.format").schema_
    if form.get("type") == "json_object":
        return {"type": "object"}
    if form.get("type") != "text":
        raise ApiError(
            400, f"text.format.type: {form.get('type')!r}: expected text, json_object or json_schema", "text"
        )
    return None


def messages_of(body: ResponseRequest, before: Sequence[Mapping[str, Any]]) -> tuple[Messages, Messages]:
    """The messages for the template, and those to be kept: instructions hold for one response alone."""
    new = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else []
    new = new or [message.plain() for message in body.input if not isinstance(message, str)]
    kept = [dict(message) for message in (*before, *new)]
    system = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    return [*system, *kept], kept


async def respond(
    host: Host, body: ResponseRequest, owner: str, conversations: Conversations, metrics: ServerMetrics
) -> Response:
    """`POST /v1/responses`."""
    before = [] if body.previous_response_id is None else conversations.get(owner, body.previous_response_id)
    messages, kept = messages_of(body, before)
    if not messages:
        raise ApiError(400, "input: empty; expected a text or messages", "input")
    sampling = SamplingFields(temperature=body.temperature, top_p=body.top_p, seed=body.seed)
    constraint = {"json_schema": _schema(body)}

    def make() -> list[Request]:
        prompt = chat_prompt(host, messages)
        max_tokens = body.max_output_tokens or host.room_behind(prompt)
        return requests_of(host, sampling, [prompt], max_tokens, None, constraint)

    requests = await asyncio.to_thread(make)
    shape, stops = ResponseShape(body, host.name), host.template.stops

    def keep(answer: Answer) -> None:
        if body.store is not False:
            conversations.put(owner, shape.id, [*kept, {"role": "assistant", "content": answer.text}])

    async def events() -> AsyncGenerator[Chunk]:
        async with Answers.of(host, requests, stops, metrics) as answers:
            for event in shape.opening():
                yield event
            async with aclosing(answers.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Piece):
                        yield shape.delta(piece)
            (answer,) = answers.answers
            keep(answer)
            for event in shape.closing(answer, answers.usage):
                yield event

    if body.stream:
        return event_stream(await first_taken(events()), host.limits.timeout_s, named=True)
    async with Answers.of(host, requests, stops, metrics) as answers:
        (answer,) = await answers.finished()
        keep(answer)
        return JSONResponse(shape.whole(answer, answers.usage))
