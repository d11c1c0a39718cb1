"""OpenAI's endpoints: completions, chat completions, responses, embeddings, models.

References: https://platform.openai.com/docs/api-reference. The shapes are those of the classes of OpenAI's Python
client, which the tests read them with.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from time import time
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.inference.constrained import Grammar, constraint_of
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling, following_seed, fresh_seed
from linnet.inference.scoring import mean_hidden, token_log_probabilities
from linnet.inference.session import Session
from linnet.inference.streams import Event, Request
from linnet.inference.text_events import TextEvent, TextEvents, TokenChoice
from linnet.serve.answers import Answer, Answers, Piece
from linnet.serve.host import Host
from linnet.serve.metrics import ServerMetrics
from linnet.serve.protocol import ApiError, Chunk, event_stream, first_taken
from linnet.serve.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    SamplingFields,
    TokenizeRequest,
    each_text,
)


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}-{uuid4().hex}"


def requests_of(
    host: Host,
    body: SamplingFields,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    logprobs: int | None,
    constraint: Mapping[str, Any],
) -> list[Request]:
    """The streams of a request: `n` for each prompt, with seeds that follow one another.

    A grammar may take seconds to make: endpoints call this in a thread, beside the event loop.
    """
    settings, number = body.sampling_settings(), body.n or 1
    first_seed = settings.pop("seed", None)
    tokenizer = host.model.tokenizer
    made: list[Request] = []
    constraint_or_none = constraint_of(**constraint)
    for prompt in prompts:
        seed = fresh_seed() if first_seed is None else first_seed
        for index in range(number):
            made.append(
                Request(
                    prompt,
                    max_tokens,
                    Sampling(**settings, seed=following_seed(seed, index)),
                    () if body.ignore_eos else tokenizer.end_ids,
                    cache_policy=host.cache_policies(body.cache_policy, len(prompt) + max_tokens),
                    grammar=None if constraint_or_none is None else Grammar(tokenizer, constraint_or_none, prompt),
                    logprobs=logprobs,
                    keep_state=False,
                )
            )
    return made


@dataclass
class CompletionShape:
    """The objects of `/v1/completions`.

    echoes: for each prompt, what stands before its answers: its tokens, with log-probabilities if they are requested.
    """

    body: CompletionRequest
    model: str
    echoes: list[list[TextEvent]]
    id: str = field(default_factory=lambda: new_id("cmpl"))
    created: int = field(default_factory=lambda: int(time()))
    _lengths: dict[int, int] = field(default_factory=dict)

    def whole(self, answers: Sequence[Answer], usage: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [
            self._choice(answer.index, [*self._echo(answer.index), *answer.events], answer.finish_reason)
            for answer in answers
        ]
        return self._object(choices) | {"usage": usage}

    def only_prompts(self, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The answer to a request for no tokens: the prompts alone."""
        numbers = range(len(prompts) * (self.body.n or 1))
        choices = [self._choice(index, self._echo(index), "length") for index in numbers]
        return self._object(choices) | {"usage": _usage_of(prompts)}

    async def only_prompts_chunks(self, prompts: Sequence[Sequence[int]]) -> AsyncGenerator[Chunk]:
        """The same as a stream: each prompt, and its end."""
        for index in range(len(prompts) * (self.body.n or 1)):
            yield self._object([self._choice(index, self._echo(index), None)])
            yield self._object([self._choice(index, [], "length")])
        if _includes_usage(self.body):
            yield self.usage(_usage_of(prompts))

    def first(self, answers: Sequence[Answer]) -> list[Chunk]:
        """The chunks before the answers: the prompts, if they are to be repeated."""
        echoes = ((answer.index, self._echo(answer.index)) for answer in answers)
        return [self._object([self._choice(index, echo, None)]) for index, echo in echoes if echo]

    def piece(self, piece: Piece) -> Chunk:
        """A chunk with a piece of an answer."""
        return self._object([self._choice(piece.index, piece.events, None)])

    def end(self, answer: Answer) -> Chunk:
        """The last chunk of an answer."""
        return self._object([self._choice(answer.index, [], answer.finish_reason)])

    def usage(self, usage: Mapping[str, Any]) -> Chunk:
        """The chunk with the usage."""
        return self._object([]) | {"usage": usage}

    def _echo(self, index: int) -> list[TextEvent]:
        return self.echoes[index // (self.body.n or 1)] if self.echoes else []

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return kind | {"choices": choices, "system_fingerprint": None}

    def _choice(self, index: int, events: Sequence[TextEvent], finish_reason: str | None) -> dict[str, Any]:
        begin = self._lengths.get(index, 0)
        text = "".join(event.text for event in events)
        self._lengths[index] = begin + len(text)
        logprobs = None if self.body.logprobs is None or not events else self._logprobs(events, begin)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, events: Sequence[TextEvent], begin: int) -> dict[str, Any]:
        """Tokens with their log-probabilities; a token whose likeliest ones have the same text keeps the likelier."""
        offsets: list[int] = []
        for event in events:
            offsets.append(begin)
            begin += len(event.text)
        tops = [
            None if event.logprob is None else {top.text: top.logprob for top in reversed(event.top)}
            for event in events
        ]
        return {
            "tokens": [event.choice.text for event in events],
            "token_logprobs": [event.logprob for event in events],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _usage_of(prompts: Sequence[Sequence[int]]) -> dict[str, int]:
    """The usage of a request for no tokens."""
    tokens = sum(map(len, prompts))
    return {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}


@dataclass
class ChatShape:
    """The objects of `/v1/chat/completions`."""

    body: ChatRequest
    model: str
    id: str = field(default_factory=lambda: new_id("chatcmpl"))
    created: int = field(default_factory=lambda: int(time()))

    def whole(self, answers: Sequence[Answer], usage: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [
            {
                "index": answer.index,
                "message": {"role": "assistant", "content": answer.text, "refusal": None},
                "logprobs": self._logprobs(answer.events),
                "finish_reason": answer.finish_reason,
            }
            for answer in answers
        ]
        return self._object("chat.completion", choices) | {"usage": usage}

    def first(self, answers: Sequence[Answer]) -> list[Chunk]:
        """The chunks before the answers, with their role."""
        return [self._chunk(answer.index, {"role": "assistant", "content": ""}) for answer in answers]

    def piece(self, piece: Piece) -> Chunk:
        """A chunk with a piece of an answer."""
        return self._chunk(piece.index, {"content": piece.text}, self._logprobs(piece.events))

    def end(self, answer: Answer) -> Chunk:
        """The last chunk of an answer."""
        return self._chunk(answer.index, {}, None, answer.finish_reason)

    def usage(self, usage: Mapping[str, Any]) -> Chunk:
        """The chunk with the usage."""
        return self._object("chat.completion.chunk", []) | {"usage": usage}

    def _chunk(
        self, index: int, delta: Mapping[str, Any], logprobs: Any = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return about | {"choices": choices, "system_fingerprint": None}

    def _logprobs(self, events: Sequence[TextEvent]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        content = [
            {
                **_token(event.choice),
                "top_logprobs": [_token(top) for top in event.top],
            }
            for event in events
        ]
        return {"content": content, "refusal": None}


def _token(choice: TokenChoice) -> dict[str, Any]:
    """A token as chat completions describe it."""
    return {"token": choice.text, "logprob": choice.logprob, "bytes": list(choice.bytes)}


Shape = CompletionShape | ChatShape

Further = Callable[[Piece | Answer | None], Awaitable[Mapping[str, Any]]]
"""From a piece, an answer that has ended, or None for the prompt, to further fields of what is sent for it."""


def _includes_usage(body: SamplingFields) -> bool:
    """Whether the last chunk of a stream has the usage."""
    return body.stream_options is not None and body.stream_options.include_usage


async def _nothing_further(_: Piece | Answer | None) -> Mapping[str, Any]:
    return {}


async def answer(
    host: Host,
    requests: Sequence[Request],
    stops: Sequence[str],
    shape: Shape,
    body: SamplingFields,
    metrics: ServerMetrics,
    session: Session | None = None,
    further: Further | None = None,
) -> Response:
    """Run the streams of a request; their answers as one object, or as a stream of chunks.

    session: see `Answers.of`. further: the fields that it adds to the object, and to the chunks.
    """
    further = further or _nothing_further

    async def chunks() -> AsyncGenerator[Chunk]:
        async with Answers.of(host, requests, stops, metrics, session) as answers:
            for chunk in shape.first(answers.answers):
                yield {**chunk, **await further(None)}
            async with aclosing(answers.pieces()) as pieces:
                async for piece in pieces:
                    chunk = shape.end(piece) if isinstance(piece, Answer) else shape.piece(piece)
                    yield {**chunk, **await further(piece)}
            if _includes_usage(body):
                yield shape.usage(answers.usage)

    if body.stream:
        return event_stream(await first_taken(chunks()), host.limits.timeout_s)
    async with Answers.of(host, requests, stops, metrics, session) as answers:
        whole = shape.whole(await answers.finished(), answers.usage)
        return JSONResponse({**whole, **await further(answers.answers[0])})


async def complete(host: Host, body: CompletionRequest, metrics: ServerMetrics) -> Response:
    """`POST /v1/completions`: continue prompts, given as texts or as token ids."""
    model = host.special_model if body.parse_special else host.model
    texts = each_text(body.prompt)
    prompts = await asyncio.to_thread(lambda: [_ids(model, text, "prompt") for text in texts])
    echoes: list[list[TextEvent]] = []
    if body.echo:
        tops = body.logprobs
        if tops is not None:
            model.check_read_alone(prompts, "prompt")
        echoes = [await host.call(partial(prompt_events, model, prompt, tops)) for prompt in prompts]
    shape = CompletionShape(body, host.name, echoes)
    if body.max_tokens == 0 and body.stream:
        return event_stream(shape.only_prompts_chunks(prompts), host.limits.timeout_s)
    if body.max_tokens == 0:
        return JSONResponse(shape.only_prompts(prompts))
    constraint = {"json_schema": body.json_schema, "regex": body.regex, "choices": body.choices}
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = host.room_behind(max(prompts, key=len))
    requests = await asyncio.to_thread(requests_of, host, body, prompts, max_tokens, body.logprobs, constraint)
    return await answer(host, requests, body.stops, shape, body, metrics)


def prompt_events(model: LanguageModel, prompt: Sequence[int], top: int | None) -> list[TextEvent]:
    """The tokens of a prompt as events; with log-probabilities and the `top` likeliest tokens unless that is None.

    Nothing is before the first token, which has no log-probability.
    """
    events = [Event(token) for token in prompt]
    if top is not None and len(prompt) > 1:
        (later,) = token_log_probabilities(model.decoder, [prompt], model.tokenizer.vocab_size, top)
        events = [events[0], *later]
    texts = TextEvents(model.tokenizer)
    return [part for event in events for part in texts.push(event)] + texts.finish()


def _ids(model: LanguageModel, prompt: str | list[int], field: str) -> list[int]:
    """The token ids of a prompt; a text begins a document, ids are taken as they are, if the tokenizer has them."""
    if isinstance(prompt, str):
        return model.prompt_tokens(prompt)
    check_ids(model, prompt, field)
    return prompt


async def chat(host: Host, body: ChatRequest, metrics: ServerMetrics) -> Response:
    """`POST /v1/chat/completions`: answer the last message of a conversation."""
    messages = [message.plain() for message in body.messages]
    schema = None if body.response_format is None else body.response_format.schema_or_none
    constraint = {"json_schema": schema, "regex": body.regex, "choices": body.choices}
    logprobs = (body.top_logprobs or 0) if body.logprobs else None

    def make() -> list[Request]:
        prompt = chat_prompt(host, messages, body.tools, body.chat_template_kwargs)
        max_tokens = body.max_completion_tokens or body.max_tokens or host.room_behind(prompt)
        return requests_of(host, body, [prompt], max_tokens, logprobs, constraint)

    requests = await asyncio.to_thread(make)
    stops = [*body.stops, *host.template.stops]
    return await answer(host, requests, stops, ChatShape(body, host.name), body, metrics)


def chat_prompt(
    host: Host,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> list[int]:
    """The token ids of a conversation, with the beginning of an answer behind it.

    A last message of the assistant is continued instead.
    """
    given = dict(variables) | ({} if tools is None else {"tools": list(tools)})
    if messages[-1].get("role") == "assistant":
        text = _begun_answer(host.template, messages, given)
    else:
        text = host.template.render(messages, add_generation_prompt=True, **given)
    return host.special_model.prompt_tokens(text)


def _begun_answer(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    """The text of a conversation up to the end of the answer in its last message, without blanks behind that.

    The end is found by a mark that is rendered with the answer: the template may change its text, which may also stand
    elsewhere. An answer without text is asked for as every other. `UserError` if the template does not print it.
    """
    *before, last = messages
    if last.get("tool_calls"):
        problem = "the last one is of the assistant and has tool_calls, which cannot be continued"
        raise UserError(problem, field="messages", accepted="one with content alone, or of another role")
    content = str(last.get("content", "")).rstrip()
    if not content and last.keys() <= {"role", "content"}:
        return template.render(before, add_generation_prompt=True, **variables)
    mark = f"\ufdd0{uuid4().int}"  # no letters, blanks or signs, which a template may change
    marked = {**last, "content": content + mark}
    text, found, _ = template.render([*before, marked], add_generation_prompt=False, **variables).rpartition(mark)
    if not found:
        problem = f"{template.origin} does not print the end of the last one, which is of the assistant"
        raise UserError(problem, field="messages", accepted="a last message of another role")
    return text.replace(mark, "")


async def embed(host: Host, body: EmbeddingRequest, metrics: ServerMetrics) -> Response:
    """`POST /v1/embeddings`: what `LanguageModel.embed` gives for each input."""
    inputs = each_text(body.input)
    if not inputs or not all(inputs):
        raise ApiError(400, "input: empty; expected at least one text, none of them empty", "input")
    prompts = await asyncio.to_thread(lambda: [_ids(host.model, text, "input") for text in inputs])
    host.model.check_read_alone(prompts, "input")
    vectors_ND = await host.call(partial(mean_hidden, host.model.decoder, prompts))
    tokens = sum(map(len, prompts))
    metrics.prompt_tokens.labels(host.name).inc(tokens)
    rows = vectors_ND.cpu().numpy()
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row.tobytes()).decode() if body.encoding_format == "base64" else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": host.name, "usage": usage, "pooling": "mean"})


def tokens_of(host: Host, body: TokenizeRequest) -> dict[str, Any]:
    """`POST /tokenize`: the token ids of a text or a conversation, and the text of each token."""
    if body.messages is not None:
        ids = chat_prompt(host, [message.plain() for message in body.messages])
    else:
        model = host.special_model if body.parse_special else host.model
        text = body.text or ""
        ids = model.prompt_tokens(text) if body.add_special else model.tokenizer.encode(text)
    texts = [event.choice.text for event in prompt_events(host.model, ids, None)]
    return {"tokens": ids, "count": len(ids), "texts": texts}


def check_ids(model: LanguageModel, tokens: Sequence[int], field: str) -> None:
    """`ApiError` for an id that the tokenizer does not have."""
    size = model.tokenizer.vocab_size
    wrong = next((token for token in tokens if token >= size), None)
    if wrong is not None:
        raise ApiError(400, f"{field}: {wrong}: expected ids from 0 to {size - 1}", field)
