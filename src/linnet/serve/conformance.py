"""A conformance suite for servers with OpenAI's interface: `python -m linnet.serve.conformance URL [--json]`.

Each case is a fault that was public in some server, with the right behavior as the test; its source is named. A case
that needs what a server does not have (sessions, log-probabilities of a prompt, JSON schemas) is told as `absent`. The
suite asks for answers of a few tokens, greedily where nothing else is said, and needs a model of any quality.
"""

import argparse
import http.client
import json
import random
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

TOLERANCE = 2e-3
"""Largest accepted difference of log-probabilities: servers compute in other orders, some in bfloat16."""

TIMEOUT_S = 120.0

CERTAIN = -9.0
"""Log-probability of a text above which two seeds may well give it."""

MAX_WHITESPACE = 32
"""Longest accepted run of whitespace between the parts of a JSON text: two line feeds and the deepest usual indent."""

WORDS = [
    "the",
    "cat",
    "sat",
    "near",
    "a",
    "warm",
    "stove",
    "and",
    "looked",
    "at",
    "rain",
    "while",
    "two",
    "old",
    "friends",
    "talked",
    "about",
    "ships",
    "bread",
    "maps",
    "winter",
    "gold",
    "letters",
    "doors",
    "songs",
    "horses",
    "rivers",
    "kings",
    "apples",
    "lamps",
    "stones",
]


class AbsentError(Exception):
    """The server does not have what the case needs."""


@dataclass(frozen=True)
class Case:
    """One fault: its name, where it was reported, and the test, which raises `AssertionError` or `AbsentError`."""

    name: str
    source: str
    test: "Callable[[Client], None]"


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `passed`, `failed`, `absent`, with the reason."""

    name: str
    source: str
    result: str
    reason: str
    seconds: float


CASES: list[Case] = []


def case(name: str, source: str) -> "Callable[[Callable[[Client], None]], Callable[[Client], None]]":
    """Register a test of the suite."""

    def register(test: "Callable[[Client], None]") -> "Callable[[Client], None]":
        CASES.append(Case(name, source, test))
        return test

    return register


class Client:
    """Requests to a server by the standard library alone, so that nothing repairs what the server sends."""

    def __init__(self, url: str, model: str | None = None, api_key: str = "none") -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self.host, self.port, self.root = parts.hostname or "127.0.0.1", parts.port or 80, parts.path.rstrip("/")
        self.root = self.root.removesuffix("/v1")
        self.headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
        self.model = model or self.get("/v1/models")["data"][0]["id"]

    def connection(self) -> http.client.HTTPConnection:
        """A connection of its own."""
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of a request."""
        connection = self.connection()
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, self.root + path, payload, self.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """The JSON of a GET request."""
        status, body = self.send("GET", path)
        if status in (404, 405, 501):
            raise AbsentError(f"GET {path}: status {status}")
        assert status == 200, f"GET {path}: status {status}: {body[:200]!r}"
        return json.loads(body)

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of a POST request that names the model."""
        status, answer = self.send("POST", path, {"model": self.model, **body})
        if status in (404, 405, 501):
            raise AbsentError(f"POST {path}: status {status}")
        assert status == 200, f"POST {path}: status {status}: {answer[:300]!r}"
        return json.loads(answer)

    def complete(self, prompt: str, max_tokens: int = 8, **fields: Any) -> Any:
        """A greedy completion with log-probabilities."""
        fields = {"temperature": 0, "logprobs": 1, **fields}
        return self.post("/v1/completions", prompt=prompt, max_tokens=max_tokens, **fields)

    def chat(self, messages: list[dict[str, Any]], max_tokens: int = 8, **fields: Any) -> Any:
        """A greedy answer to a conversation."""
        return self.post("/v1/chat/completions", messages=messages, max_tokens=max_tokens, temperature=0, **fields)

    def lines(self, path: str, **body: Any) -> Generator[bytes]:
        """The lines of a stream, split at line feeds alone, as the standard of server-sent events wants it."""
        connection = self.connection()
        try:
            payload = json.dumps({"model": self.model, "stream": True, **body})
            connection.request("POST", self.root + path, payload, self.headers)
            answer = connection.getresponse()
            assert answer.status == 200, f"POST {path}: status {answer.status}: {answer.read()[:300]!r}"
            kind = answer.headers.get("content-type", "")
            assert kind.startswith("text/event-stream"), f"content-type of a stream: {kind!r}"
            while line := answer.readline():
                yield line.rstrip(b"\r\n")
        finally:
            connection.close()

    def chunks(self, path: str, **body: Any) -> list[Any]:
        """The chunks of a stream up to `[DONE]`."""
        data = [line.removeprefix(b"data:").strip() for line in self.lines(path, **body) if line.startswith(b"data:")]
        assert data and data[-1] == b"[DONE]", f"a stream ends with data: [DONE], not {data[-1:]!r}"
        return [json.loads(each) for each in data[:-1]]


def words(count: int, seed: int) -> str:
    """A text of that many words."""
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(count))


def figures(answer: Any) -> tuple[str, list[float]]:
    """Text and log-probabilities of the only choice of a completion, also in the form that chat completions have."""
    (choice,) = answer["choices"]
    logprobs = choice.get("logprobs") or {}
    if isinstance(logprobs.get("content"), list):
        return choice["text"], [token["logprob"] for token in logprobs["content"]]
    if "token_logprobs" not in logprobs:
        raise AbsentError("completions have no log-probabilities")
    return choice["text"], logprobs["token_logprobs"]


def check_same(first: Any, second: Any, what: str) -> None:
    """Two completions must have the same log-probabilities, up to rounding, as far as their texts agree."""
    (text, ours), (other, theirs) = figures(first), figures(second)
    assert len(ours) == len(theirs) or text != other, f"{what}: {len(ours)} tokens, then {len(theirs)}"
    for index, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        if one is None or two is None:
            assert one is two, f"{what}: log-probability {index}: {one}, then {two}"
            continue
        assert abs(one - two) <= TOLERANCE * max(1.0, abs(one)), f"{what}: log-probability {index}: {one}, then {two}"
    if text != other:  # rounding may decide between two tokens that are equally likely, and nothing else may
        at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
        assert at > 0 or abs(ours[0] - theirs[0]) <= TOLERANCE, f"{what}: {text!r}, then {other!r}"


def asked_in_any_order(client: Client, prompts: list[str], what: str) -> None:
    """The answers to prompts must not depend on what was asked before."""
    first = [client.complete(prompt) for prompt in prompts]
    for index in [*range(len(prompts))[::-1], *range(len(prompts))]:
        check_same(first[index], client.complete(prompts[index]), f"{what}, prompt {index}")


@case("the same prompt twice", "llama.cpp 24003")
def _same_prompt_twice(client: Client) -> None:
    prompt = words(60, 1)
    first = client.complete(prompt)
    for _ in range(3):
        check_same(first, client.complete(prompt), "the exact prompt again")


@case("a prefix shifted by a hundred words", "vLLM 45238")
def _shifted_prefix(client: Client) -> None:
    text = words(220, 2).split()
    asked_in_any_order(client, [" ".join(text), " ".join(text[100:]), " ".join(text[:100] + text[120:])], "shifted")


@case("prompts that part in the middle", "vLLM 43090, SGLang 22935")
def _parting_prompts(client: Client) -> None:
    shared = words(90, 3)
    asked_in_any_order(
        client, [shared, f"{shared} {words(30, 4)}", f"{shared} {words(30, 5)}", shared[:200]], "parting"
    )


@case("prompts a few tokens beyond a block", "vLLM 29633, 55600")
def _around_blocks(client: Client) -> None:
    text = words(300, 6).split()
    lengths = [size + more for size in (15, 31, 63, 127, 255) for more in (0, 1, 2, 3)]
    asked_in_any_order(client, [" ".join(text[:length]) for length in lengths], "around blocks")


@case("log-probabilities of a prompt that is cached", "vLLM 42245")
def _logprobs_when_cached(client: Client) -> None:
    prompt = words(40, 7)
    try:
        first = client.complete(prompt, 1, echo=True)
    except AssertionError as error:
        raise AbsentError(f"echo with logprobs: {error}") from None
    text, logprobs = figures(first)
    if not text.startswith(prompt):
        raise AbsentError("echo does not return the prompt")
    assert logprobs[0] is None and None not in logprobs[1:], f"log-probabilities: {logprobs[:3]}"
    check_same(first, client.complete(prompt, 1, echo=True), "the second time")
    check_same(first, client.complete(prompt, 1, echo=True), "the third time")


@case("an earlier turn is regenerated and edited", "mlx-lm 1162, 1596")
def _regenerate_and_edit(client: Client) -> None:
    talk = [{"role": "user", "content": words(40, 8)}]
    first = client.chat(talk)["choices"][0]["message"]["content"]
    longer = [*talk, {"role": "assistant", "content": first}, {"role": "user", "content": words(20, 9)}]
    second = client.chat(longer)["choices"][0]["message"]["content"]
    edited = [{"role": "user", "content": words(39, 8) + " ships"}]
    changed = client.chat(edited)["choices"][0]["message"]["content"]
    for messages, expected in ((talk, first), (longer, second), (edited, changed), (longer, second)):
        assert client.chat(messages)["choices"][0]["message"]["content"] == expected, "an answer depends on the cache"


@case("a turn whose thinking was stripped", "llama.cpp 24380")
def _stripped_thinking(client: Client) -> None:
    question, answer = words(30, 10), words(6, 11)
    kept = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"<think>{words(20, 12)}</think>{answer}"},
    ]
    stripped = [kept[0], {"role": "assistant", "content": answer}]
    last = {"role": "user", "content": words(10, 13)}
    expected = client.chat([*stripped, last])["choices"][0]["message"]["content"]
    client.chat([*kept, last])
    found = client.chat([*stripped, last])["choices"][0]["message"]["content"]
    assert found == expected, f"{expected!r}, then {found!r}"


@case("conversations at the same time", "llama.cpp 29092")
def _conversations_at_once(client: Client) -> None:
    prompts = [f"{words(25, 14)} {words(12, 20 + index)}" for index in range(8)]
    alone = [client.complete(prompt, 12) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: client.complete(prompt, 12), prompts * 2))
    for index, (expected, found) in enumerate(zip(alone * 2, together, strict=True)):
        check_same(expected, found, f"conversation {index}")


@case("a stream is the answer in pieces", "llama.cpp 28926")
def _streamed_text(client: Client) -> None:
    prompt = f"{words(12, 30)} 🦜🎉 é"
    body = {"prompt": prompt, "max_tokens": 48, "temperature": 1.5, "seed": 3}
    whole = client.post("/v1/completions", **body)["choices"][0]["text"]
    pieces = [chunk["choices"][0]["text"] for chunk in client.chunks("/v1/completions", **body) if chunk["choices"]]
    assert "".join(pieces) == whole, f"{whole!r}, in pieces {''.join(pieces)!r}"
    broken = sum(piece.count("\ufffd") for piece in pieces)
    assert broken <= whole.count("\ufffd"), "a piece has half a character"


@case("stop texts that lie across tokens", "llama.cpp 9867, 15007")
def _stop_texts(client: Client) -> None:
    body = {"prompt": words(20, 31), "max_tokens": 40, "temperature": 0}
    free = client.post("/v1/completions", **body)["choices"][0]["text"]
    if len(free) < 16:
        raise AbsentError("the model's answer is too short")
    for at in range(3, len(free) - 4, max(1, len(free) // 12)):
        stop = free[at : at + 4]
        expected = free[: free.find(stop)]
        answer = client.post("/v1/completions", **body, stop=[stop])["choices"][0]
        assert answer["text"] == expected, f"stop {stop!r}: {answer['text']!r} in place of {expected!r}"
        assert answer["finish_reason"] == "stop", f"finish_reason {answer['finish_reason']!r}"
        chunks = client.chunks("/v1/completions", **body, stop=[stop])
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
        assert text == expected, f"stop {stop!r}: streamed {text!r} in place of {expected!r}"
    near = free[3:6] + "\x00never"  # the beginning of a stop text that never comes
    assert client.post("/v1/completions", **body, stop=[near])["choices"][0]["text"] == free, "held text is lost"


@case("the fields of a stream", "OpenAI's reference")
def _stream_fields(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": words(10, 32)}], "max_tokens": 4, "temperature": 0}
    chunks = client.chunks("/v1/chat/completions", **body, stream_options={"include_usage": True})
    *others, last = chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] <= 4, f"the chunk with the usage: {last}"
    reasons = [choice["finish_reason"] for chunk in others for choice in chunk["choices"]]
    assert reasons and reasons[-1] in ("stop", "length"), f"the last finish_reason: {reasons[-1:]}"
    assert all(reason is None for reason in reasons[:-1]), f"finish_reason before the end: {reasons}"
    assert others[0]["choices"][0]["delta"].get("role") == "assistant", f"the first delta: {others[0]}"
    assert all(chunk.get("usage") is None for chunk in others), "usage before the last chunk"
    assert len({chunk["id"] for chunk in chunks}) == 1, "the chunks of an answer have several ids"


@case("characters that look like line ends", "httpx, U+0085")
def _line_ends(client: Client) -> None:
    body = {"prompt": "a\u0085b\u2028c\u000bd", "max_tokens": 4, "temperature": 0, "echo": True}
    try:
        lines = list(client.lines("/v1/completions", **body))
    except AssertionError as error:
        raise AbsentError(f"a streamed echo: {error}") from None
    for line in lines:
        text = line.decode()
        assert len(text.splitlines()) <= 1, f"clients split this line: {text!r}"
        if text.startswith("data:") and "[DONE]" not in text:
            json.loads(text.removeprefix("data:"))


def schema_answers(client: Client, name: str, schema: dict[str, Any], max_tokens: int) -> Iterator[tuple[str, Any]]:
    """Four chat answers by a schema, each as text and as what it holds; None for one that `max_tokens` cut off."""
    answer_format = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
    for seed in range(4):
        body = {"messages": [{"role": "user", "content": words(8, seed)}], "max_tokens": max_tokens, "seed": seed}
        try:
            answer = client.post("/v1/chat/completions", **body, temperature=1.0, response_format=answer_format)
        except AssertionError as error:
            raise AbsentError(f"response_format: {error}") from None
        text, reason = answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
        assert text.lstrip().startswith("{"), f"not JSON: {text[:80]!r}"
        yield text, None if reason == "length" else json.loads(text)


@case("an array with bounds by a schema", "empty arrays")
def _arrays(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}},
        "required": ["names"],
        "additionalProperties": False,
    }
    for text, found in schema_answers(client, "names", schema, max_tokens=120):
        if found is not None:
            names = found["names"]
            assert 1 <= len(names) <= 3 and set(names) <= {"a", "b"}, f"not what the schema describes: {text}"


@case("an answer without text is not null", "null and the empty text")
def _no_text(client: Client) -> None:
    body = {"prompt": words(20, 31), "max_tokens": 4, "temperature": 0}
    free = client.post("/v1/completions", **body)["choices"][0]["text"]
    if not free.strip():
        raise AbsentError("the model's answer has no text")
    choice = client.post("/v1/completions", **body, stop=[free[:1]])["choices"][0]
    assert choice["text"] == "" and choice["finish_reason"] == "stop", f"stopped at its first character: {choice}"


@case("usage counts what was cached", "OpenAI's reference")
def _cached_usage(client: Client) -> None:
    prompt = words(60, 37)
    first = client.post("/v1/completions", prompt=prompt, max_tokens=2, temperature=0)["usage"]
    again = client.post("/v1/completions", prompt=prompt, max_tokens=2, temperature=0)["usage"]
    assert first["prompt_tokens"] == again["prompt_tokens"], f"prompt_tokens: {first}, then {again}"
    assert first["total_tokens"] == first["prompt_tokens"] + first["completion_tokens"], f"total_tokens: {first}"
    details = again.get("prompt_tokens_details")
    if not details or details.get("cached_tokens") is None:
        raise AbsentError("usage has no cached_tokens")
    cached = details["cached_tokens"]
    assert 0 < cached < again["prompt_tokens"], f"cached_tokens of the same prompt again: {cached}"


@case("several answers, and seeds", "mlx-lm 1620")
def _seeds(client: Client) -> None:
    hot = {"prompt": words(8, 33), "max_tokens": 24, "top_p": 1.0}
    hot |= {"temperature": 20.0, "min_p": 0.0}
    if client.send("POST", "/v1/completions", {"model": client.model, **hot})[0] == 400:
        del hot["min_p"]  # which OpenAI's interface does not have
        hot["temperature"] = 2.0  # its largest value
    if sum(figures(client.post("/v1/completions", **hot, seed=40, logprobs=1))[1]) > CERTAIN:
        raise AbsentError("the model is so certain of its answer that seeds need not differ")

    def texts(**fields: Any) -> list[str]:
        body = {**hot, **fields}
        return [choice["text"] for choice in client.post("/v1/completions", **body)["choices"]]

    apart = [texts(seed=seed)[0] for seed in range(40, 46)]
    assert len(set(apart)) == len(apart), f"seeds have no influence: {apart}"
    three = texts(n=3, seed=5)
    if len(three) != 3:
        raise AbsentError(f"n: 3 gives {len(three)} answers")
    assert len(set(three)) == 3, f"n answers are the same: {three}"
    assert texts()[0] != texts()[0], "two requests without a seed have the same answer"
    with ThreadPoolExecutor(8) as pool:  # a seed gives its answers whatever runs beside it
        together = [pool.submit(texts, seed=seed) for seed in (40, 41, 40, 45)]
        together += [pool.submit(texts, n=3, seed=5), pool.submit(texts, seed=40), pool.submit(texts)]
        found = [each.result() for each in together]
    expected = [[apart[0]], [apart[1]], [apart[0]], [apart[5]], three, [apart[0]]]
    assert found[:-1] == expected, "a seed gives other answers beside other requests"
    assert texts(n=3, seed=5) == three, "a seed gives other answers"


@case("JSON by a schema", "unbounded whitespace, empty arrays, invalid JSON")
def _json_schema(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "age": {"type": "integer"},
        },
        "required": ["names", "age"],
        "additionalProperties": False,
    }
    for text, found in schema_answers(client, "person", schema, max_tokens=200):
        around = re.sub(r'"(\\.|[^"\\])*"?', "", text)  # what is outside of strings
        runs = re.findall(r"\s+", around)
        assert max(map(len, runs), default=0) <= MAX_WHITESPACE, f"whitespace without end: {text!r}"
        if found is not None:
            assert set(found) == {"names", "age"} and len(found["names"]) <= 2, f"not what the schema describes: {text}"


@case("clients that go away", "llama.cpp 24496")
def _cancelled(client: Client) -> None:
    expected = client.complete(words(10, 34))
    for _ in range(3):  # while it runs
        lines = client.lines("/v1/completions", prompt=words(10, 35), max_tokens=2000, temperature=1.0)
        next(lines)
        lines.close()
    for _ in range(20):  # while they wait
        connection = client.connection()
        payload = json.dumps({"model": client.model, "prompt": words(200, 36), "max_tokens": 500})
        connection.request("POST", f"{client.root}/v1/completions", payload, client.headers)
        connection.close()
    start_s = time.monotonic()
    check_same(expected, client.complete(words(10, 34)), "after clients have gone")
    assert time.monotonic() - start_s < 30, "streams of clients that have gone still run"


@case("errors have OpenAI's form", "OpenAI's reference")
def _errors(client: Client) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "a temperature that is no number": {"prompt": "a", "temperature": "hot"},
        "a negative number of tokens": {"prompt": "a", "max_tokens": -4},
        "no such model": {"prompt": "a", "model": "no such model"},
    }
    for what, body in wrong.items():
        status, answer = client.send("POST", "/v1/completions", {"model": client.model, **body})
        assert 400 <= status < 500, f"{what}: status {status}"
        error = json.loads(answer).get("error")
        assert isinstance(error, dict) and error.get("message"), f"{what}: {answer[:200]!r}"
    connection = client.connection()
    connection.request("POST", f"{client.root}/v1/completions", b'{"prompt": ', client.headers)
    assert connection.getresponse().status == 400, "a body that is not JSON"
    connection.close()


def session(client: Client, **body: Any) -> str:
    """The id of a new session."""
    return str(client.post("/v1/sessions", **body)["id"])


@case("a restored state is not computed again", "llama.cpp 25913, 28194")
def _restored_state(client: Client) -> None:
    text = words(80, 40)
    own = session(client, text=text)
    first = client.complete("", from_state=own)
    status, answer = client.send("POST", f"/v1/sessions/{own}/save", {"name": "conformance"})
    if status == 400 and b"--state-dir" in answer:
        raise AbsentError("the server saves no sessions (--state-dir)")
    assert status == 200, f"save: status {status}: {answer[:200]!r}"
    loaded = session(client, name="conformance")
    second = client.complete("", from_state=loaded)
    check_same(first, second, "after save and load")
    usage = second["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_tokens"] - cached <= 1, f"{usage['prompt_tokens'] - cached} tokens were computed again"
    check_same(first, client.complete("", from_state=loaded), "the exact prompt again after a restore")


@case("a refused rewind changes nothing", "llama.cpp 28007")
def _refused_rewind(client: Client) -> None:
    own = session(client, text=words(30, 41))
    first = client.complete("", from_state=own)
    status, _ = client.send("POST", f"/v1/sessions/{own}/rewind", {"tokens": 100_000})
    assert status == 400, f"a rewind by more tokens than there are: status {status}"
    check_same(first, client.complete("", from_state=own), "after a refused rewind")


@case("forks and rewinds", "states as values")
def _forks(client: Client) -> None:
    own = session(client, text=words(30, 42))
    first = client.complete("", from_state=own)
    twin = str(client.post(f"/v1/sessions/{own}/fork")["id"])
    before = client.get(f"/v1/sessions/{twin}")["tokens"]
    client.post(f"/v1/sessions/{twin}/feed", text=f" {words(10, 43)}")
    after = client.get(f"/v1/sessions/{twin}")["tokens"]
    check_same(first, client.complete("", from_state=own), "the original of a fork that went on")
    client.post(f"/v1/sessions/{twin}/rewind", tokens=after - before)
    check_same(first, client.complete("", from_state=twin), "a fork that went on and was rewound")


def run(client: Client, names: list[str]) -> Iterator[Outcome]:
    """The outcome of every case, or of those whose name contains one of `names`."""
    for each in CASES:
        if names and not any(name in each.name for name in names):
            continue
        start_s, result, reason = time.monotonic(), "passed", ""
        try:
            each.test(client)
        except AbsentError as error:
            result, reason = "absent", str(error)
        except (AssertionError, OSError, http.client.HTTPException, LookupError, TypeError, ValueError) as error:
            result, reason = (
                "failed",
                f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error),
            )
        yield Outcome(each.name, each.source, result, " ".join(reason.split())[:300], time.monotonic() - start_s)


def main() -> int:
    """Print the outcomes; the exit status is 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m linnet.serve.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8080")
    parser.add_argument("--model", help="the model to ask; default: the first that the server lists")
    parser.add_argument("--api-key", default="none", help="the key, if the server wants one")
    parser.add_argument("--only", action="append", default=[], help="cases whose name contains this (repeatable)")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    asked = parser.parse_args()
    try:
        client = Client(asked.url, asked.model, asked.api_key)
    except (OSError, AssertionError, AbsentError, LookupError, ValueError) as error:
        print(f"error: {asked.url}: no server with OpenAI's interface answers ({error})", file=sys.stderr)
        return 2
    outcomes: list[Outcome] = []
    for outcome in run(client, asked.only):
        outcomes.append(outcome)
        if not asked.json:
            told = f": {outcome.reason}" if outcome.reason else ""
            print(f"{outcome.result:7} {outcome.seconds:6.1f} s  {outcome.name} ({outcome.source}){told}", flush=True)
    if asked.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        count = {result: sum(each.result == result for each in outcomes) for result in ("passed", "failed", "absent")}
        print(", ".join(f"{number} {result}" for result, number in count.items()))
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
