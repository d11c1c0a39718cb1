"""Greedy continuations of many prompts at once, each up to a text that ends it.

Legend: `B` rows of a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.pieces import TextStream
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.tasks.streams import StateFactory
from linnet.inference.prefill import left_pad
from linnet.model.state import DecoderState

TOKENS_AT_ONCE = 8192
"""Of a batch: for how many its state has room."""

LEAVING_SHARE = 0.25
"""Rows that have ended leave when they are so many of the batch: a copy of the state costs about a step."""

Advance = Callable[[int], None]


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt in token ids, the texts that end what follows (they are cut off), and its most tokens."""

    prompt: tuple[int, ...]
    until: tuple[str, ...]
    max_tokens: int

    def within(self, length: int) -> "GenerationRequest":
        """With the last tokens of the prompt that leave room for the answer; `UserError` where there is no room."""
        room = length - self.max_tokens
        if room < 1:
            found = f"{self.max_tokens} tokens to generate"
            raise UserError(f"{found}: the model has {length} for a prompt and what follows; expected fewer")
        return self if len(self.prompt) <= room else GenerationRequest(self.prompt[-room:], self.until, self.max_tokens)


class _Row:
    """One prompt and what has come behind it so far."""

    def __init__(self, place: int, asked: GenerationRequest, text: TextStream) -> None:
        self.place, self.asked, self.runs, self.text = place, asked, True, ""
        self._stream, self._tokens = text, 0
        self._overlap = max((len(stop) for stop in asked.until), default=1) - 1

    def take(self, token: int, end_id: int) -> None:
        """One more token; the row ends at the end token, at a stop, or when it has all it may have."""
        if token == end_id:
            self._end()
            return
        searched = max(0, len(self.text) - self._overlap)
        self.text += self._stream.push(token)
        self._tokens += 1
        self._cut(searched)
        if self.runs and self._tokens == self.asked.max_tokens:
            self._end()

    def _end(self) -> None:
        searched = max(0, len(self.text) - self._overlap)
        self.text += self._stream.finish()
        self._cut(searched)
        self.runs = False

    def _cut(self, searched: int) -> None:
        found = [at for stop in self.asked.until if (at := self.text.find(stop, searched)) >= 0]
        if found:
            self.text, self.runs = self.text[: min(found)], False


class Generator:
    """Answers prompts by one decoder: the likeliest token each time."""

    def __init__(self, streams: StateFactory, tokenizer: Tokenizer, tokens_at_once: int = TOKENS_AT_ONCE) -> None:
        self._streams, self._tokenizer, self._tokens_at_once = streams, tokenizer, tokens_at_once

    @torch.inference_mode()
    def generate(self, asked: Sequence[GenerationRequest], advance: Advance = lambda _: None) -> list[str]:
        """What follows each prompt up to a stop, the end of the document or its most tokens, in their order."""
        for one in asked:
            if one.max_tokens < 1 or not all(one.until):
                raise UserError("until: an empty text, or no token to generate; expected at least one of each")
        rows = [
            _Row(place, one.within(self._streams.context_length), self._tokenizer.stream())
            for place, one in enumerate(asked)
        ]
        for batch in self._batches(rows):
            self._finish(batch)
            advance(len(batch))
        return [row.text for row in rows]

    def _batches(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Prompts of like lengths together, the longest first."""
        batch: list[_Row] = []
        room = 0
        for row in sorted(rows, key=lambda row: len(row.asked.prompt), reverse=True):
            room = max(room, len(row.asked.prompt) + row.asked.max_tokens)
            if batch and (len(batch) + 1) * room > self._tokens_at_once:
                yield batch
                batch, room = [], len(row.asked.prompt) + row.asked.max_tokens
            batch.append(row)
        if batch:
            yield batch

    def _finish(self, rows: list[_Row]) -> None:
        """One token of each row at a time; rows that have ended leave the batch."""
        decoder = self._streams.decoder
        prompts = [row.asked.prompt for row in rows]
        capacity = max(map(len, prompts)) + max(row.asked.max_tokens for row in rows)
        state = self._streams.new_state(len(rows), capacity)
        tokens_BT, padding = left_pad(prompts, decoder.device)
        chosen_B = self._likeliest(decoder.hidden(tokens_BT, state, padding=padding))
        while True:
            for row, token in zip(rows, chosen_B.tolist(), strict=True):
                if row.runs:
                    row.take(token, self._tokenizer.end_id)
            rows, state, chosen_B = self._remaining(rows, state, chosen_B)
            if not any(row.runs for row in rows):
                return
            chosen_B = self._likeliest(decoder.hidden(chosen_B[:, None], state))

    def _likeliest(self, hidden_BTD: Tensor) -> Tensor:
        """Of the tokens that the tokenizer knows, int64 `[B]`."""
        decoder = self._streams.decoder
        return decoder.logits(hidden_BTD[:, -1:])[:, 0, : self._tokenizer.vocab_size].argmax(dim=-1)

    @staticmethod
    def _remaining(rows: list[_Row], state: DecoderState, chosen_B: Tensor) -> tuple[list[_Row], DecoderState, Tensor]:
        running = [number for number, row in enumerate(rows) if row.runs]
        if not running or len(rows) - len(running) < LEAVING_SHARE * len(rows):
            return rows, state, chosen_B
        kept = torch.tensor(running, device=chosen_B.device)
        return [rows[number] for number in running], state.select(kept), chosen_B[kept]
