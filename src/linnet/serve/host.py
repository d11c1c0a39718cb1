"""Models in memory, each with an engine that a thread of its own drives.

The event loop of the server hands requests to that thread and gets events back; PyTorch runs in no other place. A
model is loaded when it is first asked for, and unloaded, least recently used first, when another needs its memory.
"""

import asyncio
import gc
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from linnet.core.errors import UserError, did_you_mean, note
from linnet.inference.cache_policy import CachePolicies, layer_cache_policies, open_ended_policies
from linnet.inference.engine import Engine
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.prefill import room_behind
from linnet.inference.prefix_store import PrefixStore
from linnet.inference.streams import Event, Request, Stream
from linnet.inference.weights import weights_nbytes
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.model.decoder import meta_decoder
from linnet.model.folder import model_folder
from linnet.model.spec import ModelSpec
from linnet.serve.requests import MAX_TOKENS_WITHOUT_LIMIT

Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """What a server accepts.

    max_batch: streams of one model that run at the same time. max_queue: further streams that wait, of all requests.
    max_state: bytes of states that a model keeps of sessions and of prompts seen before. max_memory: bytes of the
    weights of all models. timeout_s: of one request. max_body: bytes of a request. cache_policy: of streams whose
    request names none.
    """

    max_batch: int = 16
    max_queue: int = 64
    max_state: int = 1 << 30
    max_memory: int | None = None
    timeout_s: float = 600.0
    max_body: int = 8 << 20
    device: str = "auto"
    precision: str | None = None
    cache_policy: str = FULL.label


class OverloadedError(Exception):
    """The queue of a model is full, or the server is about to end; `retry_after_s` says when to ask again."""

    def __init__(self, message: str, retry_after_s: int = 1, closing: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s, self.closing = retry_after_s, closing


@dataclass(eq=False)
class HostedStream:
    """One stream of an engine, as the event loop sees it; `begun` is set when the engine has taken or refused it."""

    request: Request
    loop: asyncio.AbstractEventLoop
    stream: Stream | None = None
    error: Exception | None = None
    is_cancelled: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    _queue: "asyncio.Queue[list[Event]]" = field(default_factory=asyncio.Queue)
    _ended: bool = False

    async def events(self) -> AsyncGenerator[list[Event]]:
        """The tokens as they come, several at a time if the reader is slow; raises the error that ended the stream."""
        while True:
            if self._ended and self._queue.empty():
                break
            events = await self._queue.get()
            while not self._queue.empty():
                events = events + self._queue.get_nowait()
            if events:
                yield events
        if self.error is not None:
            raise self.error

    def deliver(self, events: list[Event], ended: bool) -> None:
        """Hand events to the reader; runs in the event loop."""
        self._ended = self._ended or ended
        self._queue.put_nowait(events)

    def cancel(self) -> None:
        """End the stream and free its row; from any thread."""
        self.is_cancelled = True
        if self.stream is not None:
            self.stream.cancel()


class Host:
    """One model, its engine and the thread that drives it."""

    def __init__(self, name: str, model: LanguageModel, limits: Limits, cache_policy: CachePolicies = FULL) -> None:
        """cache_policy: of streams whose request names none."""
        self.name, self.model, self.limits, self.cache_policy = name, model, limits, cache_policy
        self.prefixes = PrefixStore(limits.max_state // 2)
        self.engine = self._new_engine()
        self.template = model.chat_template
        self.special_model = model.parsing_special()  # made once: its tokenizer is built when it is first used
        self.last_used_s = monotonic()
        self.weights_bytes = weights_nbytes(model.decoder)
        self.sessions = 0  # that clients hold
        self._hosted: list[HostedStream] = []
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name=f"engine of {name}", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """Streams that run or wait."""
        return len(self._hosted)

    def room_behind(self, prompt: Sequence[int]) -> int:
        """The tokens of an answer that no request limits: at most `MAX_TOKENS_WITHOUT_LIMIT`; `UserError` for none."""
        return room_behind(self.model.decoder, prompt, MAX_TOKENS_WITHOUT_LIMIT)

    def cache_policies(self, asked: str | None, tokens: int) -> list[CachePolicy]:
        """What the layers keep of a stream of at least so many tokens; None asks for the policy of the server."""
        return open_ended_policies(self.model.decoder, asked or self.cache_policy, tokens)

    @property
    def is_idle(self) -> bool:
        """True if nothing runs, waits, or is called, and no client holds a session."""
        return not self._hosted and not self._calls and not self.sessions

    def hosted(self, requests: Sequence[Request]) -> list[HostedStream]:
        """The streams of these requests that run or wait."""
        return [hosted for hosted in list(self._hosted) if any(hosted.request is one for one in requests)]

    def submit(self, *requests: Request) -> list[HostedStream]:
        """Begin streams, all or none; `OverloadedError` if the queue has no room for them now, `UserError` if never."""
        most = self.limits.max_batch + self.limits.max_queue
        if len(requests) > most:
            problem = f"{len(requests)} answers (n for each prompt) at once"
            raise UserError(problem, field="prompt", accepted=f"at most {most} (--max-batch and --max-queue)")
        if len(requests) > most - self.load:
            raise OverloadedError(f"{self.name}: {self.load} streams run or wait, of at most {most}; try again")
        loop = asyncio.get_running_loop()
        streams = [HostedStream(request, loop) for request in requests]
        with self._changed:
            if self._is_closing:
                raise OverloadedError(f"{self.name} is being unloaded; try again", closing=True)
            self._hosted += streams
            self._changed.notify()
        self.last_used_s = monotonic()
        return streams

    async def call(self, function: Callable[[], Result]) -> Result:
        """The result of a function that runs in the engine's thread, between two of its steps."""
        future: Future[Result] = Future()
        with self._changed:
            if self._is_closing:
                raise OverloadedError(f"{self.name} is being unloaded; try again", closing=True)
            self._calls.append((function, future))
            self._changed.notify()
        self.last_used_s = monotonic()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the thread; streams that still run are cancelled."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _new_engine(self) -> Engine:
        vocab_size, max_batch = self.model.tokenizer.vocab_size, self.limits.max_batch
        return Engine(self.model.decoder, vocab_size=vocab_size, max_batch=max_batch, prefixes=self.prefixes)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hosted or self._calls or self._is_closing)
                streams, calls = list(self._hosted), list(self._calls)
                self._calls.clear()
                if self._is_closing:
                    break
            with self.engine.paused():  # a client that goes away has its rows freed by the event loop
                for function, future in calls:
                    _run(function, future)
            self._begin(hosted for hosted in streams if hosted.stream is None)
            try:
                self.engine.step()
            except Exception as error:  # not of one stream, whose error the engine does not raise
                self._restart(streams, error)
            self._deliver(streams)
        for hosted in streams:
            hosted.cancel()
            hosted.error = OverloadedError("the server ends", closing=True)
            hosted.loop.call_soon_threadsafe(hosted.begun.set)
            hosted.loop.call_soon_threadsafe(hosted.deliver, [], True)
        for _, future in calls:
            future.set_exception(OverloadedError("the server ends", closing=True))

    def _restart(self, streams: Iterable[HostedStream], error: Exception) -> None:
        """Go on with a new engine behind an error of this one, whose streams end with it: their states are unknown."""
        for hosted in streams:
            if hosted.stream is not None and hosted.stream.finish_reason is None:
                hosted.stream.fail(error)
        self.engine = self._new_engine()

    def _begin(self, streams: Iterable[HostedStream]) -> None:
        for hosted in streams:
            try:
                hosted.stream = self.engine.submit(hosted.request)
            except Exception as error:  # of any kind: the thread must go on with the other streams
                hosted.error = error
            if hosted.is_cancelled and hosted.stream is not None:
                hosted.stream.cancel()
            hosted.loop.call_soon_threadsafe(hosted.begun.set)

    def _deliver(self, streams: list[HostedStream]) -> None:
        """Hand what the step made to the event loop, in one call of it for each loop."""
        ended: set[HostedStream] = set()
        deliveries: list[tuple[HostedStream, list[Event], bool]] = []
        for hosted in streams:
            events = [] if hosted.stream is None else hosted.stream.take()
            has_ended = hosted.error is not None or (
                hosted.stream is not None and hosted.stream.finish_reason is not None
            )
            if hosted.stream is not None and hosted.stream.error is not None:
                hosted.error = hosted.stream.error
            if has_ended:
                ended.add(hosted)
            if events or has_ended:
                deliveries.append((hosted, events, has_ended))
        if ended:  # before the event loop hears of it: the model may be asked for, or unloaded, at once
            with self._changed:
                self._hosted = [hosted for hosted in self._hosted if hosted not in ended]
        if deliveries:
            streams[0].loop.call_soon_threadsafe(_deliver_all, deliveries)


def _deliver_all(deliveries: list[tuple[HostedStream, list[Event], bool]]) -> None:
    for hosted, events, ended in deliveries:
        hosted.deliver(events, ended)


def _run(function: Callable[[], Any], future: "Future[Any]") -> None:
    """Call the function; its result or error becomes that of the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def default_cache_policies(folders: Mapping[str, Path], cache_policy: str) -> dict[str, CachePolicies]:
    """The cache policy of each model whose requests name none: this one, or the full cache where a model lacks it.

    A note names the models that lack it; `UserError` if all do.
    """
    if cache_policy == FULL.label:
        return dict.fromkeys(folders, FULL)
    found: dict[str, CachePolicies] = dict.fromkeys(folders, FULL)
    errors: dict[str, UserError] = {}
    for name, folder in folders.items():
        try:
            found[name] = layer_cache_policies(meta_decoder(ModelSpec.load(folder)), cache_policy)
        except UserError as error:
            errors[name] = error
    if len(errors) == len(folders):
        raise next(iter(errors.values()))
    for name, problem in errors.items():
        note(f"{name} keeps the full cache: {problem}")
    return found


class Hosts:
    """The models of a server by name; each is loaded when it is first asked for."""

    def __init__(self, sources: Mapping[str, str], limits: Limits) -> None:
        self.sources = {name: Path(model_folder(source)) for name, source in sources.items()}
        self.cache_policies = default_cache_policies(self.sources, limits.cache_policy)
        self.limits = limits
        self.loaded: dict[str, Host] = {}
        self._loads: dict[str, asyncio.Task[Host]] = {}
        self._loading = asyncio.Lock()
        self.is_closing = False

    async def get(self, name: str) -> Host:
        """The host of a model; without a name, that of the only one. `UserError` for an unknown name."""
        if not name and len(self.sources) == 1:
            (name,) = self.sources
        if name not in self.sources:
            listed = f"one of {', '.join(self.sources)}"
            if not name:
                raise UserError("missing", field="model", accepted=listed)
            raise UserError(
                f"unknown; {did_you_mean(name, self.sources, f'expected {listed}')}", field="model", value=name
            )
        if self.is_closing:
            raise OverloadedError("the server ends", closing=True)
        host = self.loaded.get(name)
        if host is None:
            if name not in self._loads:
                self._loads[name] = asyncio.create_task(self._load(name))
                self._loads[name].add_done_callback(lambda task: self._loaded(name, task))
            host = await asyncio.shield(self._loads[name])  # which goes on for others, or the next request
        host.last_used_s = monotonic()
        return host

    def _loaded(self, name: str, task: "asyncio.Task[Host]") -> None:
        """Forget a load that has ended; an error of it has been told to who waited."""
        del self._loads[name]
        if not task.cancelled():
            task.exception()

    async def _load(self, name: str) -> Host:
        async with self._loading:
            host = self.loaded[name] = await self._read(name)
        return host

    async def _read(self, name: str) -> Host:
        folder, limits = self.sources[name], self.limits
        needed = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        await self._make_room(needed)
        model = await asyncio.to_thread(load, folder, limits.device, limits.precision)
        host = Host(name, model, limits, self.cache_policies[name])
        if host.template.is_plain:
            note(f"{name}: the model has no chat template; chat requests use a plain one (User: ... Assistant:)")
        return host

    async def _make_room(self, needed: int) -> None:
        """Unload idle models, least recently used first, until the weights of another fit."""
        limit = self.limits.max_memory
        while limit is not None and sum(host.weights_bytes for host in self.loaded.values()) + needed > limit:
            idle = [host for host in self.loaded.values() if host.is_idle]
            if not idle:
                if not self.loaded:
                    return  # the only model is larger than the limit, and is loaded all the same
                problem = "no memory for a further model while the others are in use, or sessions of them are held"
                raise OverloadedError(f"{problem}; try again", 5)
            oldest = min(idle, key=lambda host: host.last_used_s)
            del self.loaded[oldest.name]
            await asyncio.to_thread(oldest.close)
            del oldest, idle
            gc.collect()

    async def close(self) -> None:
        """End the threads of all models."""
        self.is_closing = True
        await asyncio.gather(*self._loads.values(), return_exceptions=True)
        for host in self.loaded.values():
            await asyncio.to_thread(host.close)
        self.loaded.clear()
