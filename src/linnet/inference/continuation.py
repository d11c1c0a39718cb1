"""The text that continues a prompt, piece by piece as it is generated, and what it cost."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from linnet.data.pieces import TextStream
from linnet.inference.engine import Step
from linnet.model.state import DecoderState


@dataclass
class Figures:
    """What a generation has cost so far: time in the model, not in whoever reads the text.

    passes: the one over the prompt, which took seconds_prompt, and those over one token each, which took
    seconds_decode.
    """

    prompt_tokens: int
    bytes_of_state: Callable[[int], int]
    tokens: int = 0
    passes: int = 0
    seconds_prompt: float = 0.0
    seconds_decode: float = 0.0

    def count_pass(self, elapsed_s: float) -> None:
        """Add a pass."""
        self.passes += 1
        if self.passes == 1:
            self.seconds_prompt = elapsed_s
        else:
            self.seconds_decode += elapsed_s

    @property
    def state_bytes(self) -> int:
        """Bytes of the decode state that the tokens so far take."""
        return self.bytes_of_state(self.prompt_tokens + self.tokens)

    @property
    def tokens_per_second(self) -> float | None:
        """Passes over one token per second; None before the first."""
        return (self.passes - 1) / self.seconds_decode if self.passes > 1 else None


class Continuation(Iterator[str]):
    """Pieces of text that add up to the continuation of one prompt; every piece is whole characters, none is empty."""

    def __init__(
        self,
        steps: Iterator[Step],
        text: TextStream,
        prompt_tokens: int,
        bytes_of_state: Callable[[int], int],
        state: DecoderState | None = None,
        ends: bool = True,
    ) -> None:
        """`bytes_of_state`: of a state that holds so many tokens. `state`: the one that the steps advance.

        `ends`: nothing follows, so that what is left of a character is said as U+FFFD.
        """
        self.state = state
        self.figures = Figures(prompt_tokens, bytes_of_state)
        self._steps, self._text, self._ends = steps, text, ends
        self._pieces = self._run()

    def __next__(self) -> str:
        """The next piece."""
        return next(self._pieces)

    def _run(self) -> Iterator[str]:
        begun_s = time.perf_counter()
        for (token,) in self._steps:
            self.figures.count_pass(time.perf_counter() - begun_s)
            if token is None:
                break
            self.figures.tokens += 1
            if piece := self._text.push(token):
                yield piece
            begun_s = time.perf_counter()
        if self._ends and (piece := self._text.finish()):
            yield piece
