"""What follows a prompt: its text piece by piece, its events, and what it cost."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from linnet.inference.speculative import SpeculationFigures
from linnet.inference.streams import Event, FinishReason, Stream
from linnet.inference.text_events import TextEvent, TextEvents
from linnet.model.state import DecoderState


@dataclass
class GenerationFigures:
    """The cost of a generation so far: time in the model, without the time that the caller takes for the text.

    passes: one over the prompt, which took seconds_prompt, and one per token, which together took seconds_decode.
    bytes_of_state: from a number of tokens to the bytes of a state that holds them. speculation: how guesses went; None
    without any.
    """

    prompt_tokens: int
    bytes_of_state: Callable[[int], int]
    tokens: int = 0
    passes: int = 0
    seconds_prompt: float = 0.0
    seconds_decode: float = 0.0
    speculation: SpeculationFigures | None = None

    @property
    def state_bytes(self) -> int:
        """Bytes of the decode state for the tokens so far."""
        return self.bytes_of_state(self.prompt_tokens + self.tokens)

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens per second; None before the first."""
        return (self.passes - 1) / self.seconds_decode if self.passes > 1 else None


class Continuation(Iterator[str]):
    """Pieces of text whose concatenation continues one prompt; each piece is whole characters and not empty."""

    def __init__(
        self,
        stream: Stream,
        text: TextEvents,
        prompt_tokens: int,
        bytes_of_state: Callable[[int], int],
        state: DecoderState | None = None,
        *,
        accept: Callable[[Event], object] = lambda event: None,
        finish: Callable[[Stream], object] = lambda stream: None,
    ) -> None:
        """bytes_of_state: see `GenerationFigures`. state: of the stream, before its prompt is read.

        accept: is called with each generated token. finish: is called with the stream when it has ended, or when the
        iterator is closed.
        """
        self._state, self.has_ended = state, False
        self._accept, self._finish = accept, finish
        self.figures = GenerationFigures(prompt_tokens, bytes_of_state)
        if stream.request.speculation is not None:
            self.figures.speculation = stream.request.speculation.figures
        self._stream, self._text = stream, text
        self._events = self._run()

    def __next__(self) -> str:
        return next(event.text for event in self._events if event.text)

    @property
    def state(self) -> DecoderState | None:
        """The state that the stream advances; None if none is kept."""
        return self._state if self._stream.rows is None else self._stream.rows

    def events(self) -> Iterator[TextEvent]:
        """What follows as events, one for each token, instead of pieces of text."""
        return self._events

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while it goes on; "stop" at an end token, a stop text or the end of a grammar; "length"."""
        return "stop" if self._text.has_stopped else self._stream.finish_reason

    def advance(self) -> list[TextEvent]:
        """Generate one token; the events that are certain with it, those that were held back if it has ended."""
        event = self._next_event()
        events = [] if event is None else self._text.push(event)
        if event is None or self._text.has_stopped:
            self._end()
            events += self._text.finish()
        return events

    def _run(self) -> Iterator[TextEvent]:
        try:
            while not self.has_ended:
                yield from self.advance()
        finally:
            self._end()

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._stream.cancel()
            self._finish(self._stream)

    def _next_event(self) -> Event | None:
        """The next event of the stream, with its time added to the figures."""
        start_s = time.perf_counter()
        event = next(self._stream, None)
        elapsed_s, figures = time.perf_counter() - start_s, self.figures
        if event is not None or self._stream.met_stop_id:
            figures.passes += 1
            figures.tokens += event is not None
            if figures.passes == 1:
                figures.seconds_prompt = elapsed_s
            else:
                figures.seconds_decode += elapsed_s
        if event is not None:
            self._accept(event)
        return event


@dataclass(frozen=True)
class Completion:
    """A whole continuation with its log-probabilities.

    events: one for each token, with the log-probabilities of the likeliest tokens at its place. finish_reason: "stop"
    at an end token, a stop text or the end of a grammar; "length" at `max_tokens`.
    """

    text: str
    events: list[TextEvent]
    finish_reason: FinishReason

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of its tokens, which were requested; minus infinity without any token."""
        logprobs = [event.logprob for event in self.events if event.logprob is not None]
        assert len(logprobs) == len(self.events), "log-probabilities that were not requested"
        return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf

    def __str__(self) -> str:
        return self.text
