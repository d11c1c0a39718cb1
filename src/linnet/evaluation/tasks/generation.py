"""Greedy continuations of many prompts at once, each up to a stop text.

Shapes: `B` rows of a batch.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from linnet.core.errors import UserError
from linnet.data.pieces import TextStream
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.tasks.scorer import Advance, StateFactory
from linnet.inference.prefill import left_pad

TOKENS_AT_ONCE = 8192

FINISHED_SHARE = 0.25
"""Finished rows are removed when they are this share of the batch: copying the state costs about one step."""


@dataclass(frozen=True)
class GenerationRequest:
    """Token ids of a prompt, the stop texts (which are cut off), and the maximum of generated tokens."""

    prompt: tuple[int, ...]
    until: tuple[str, ...]
    max_tokens: int

    def within(self, length: int) -> "GenerationRequest":
        """The request with the last tokens of its prompt that leave room for the answer.

        An answer that leaves no room for a prompt may take half of the model's context length.
        """
        max_tokens = self.max_tokens if self.max_tokens < length else max(1, length // 2)
        return GenerationRequest(self.prompt[-max(1, length - max_tokens) :], self.until, max_tokens)


class _Row:
    """One prompt and the text generated after it."""

    def __init__(self, request: GenerationRequest, stream: TextStream) -> None:
        self.request, self.running, self.text = request, True, ""
        self._stream, self._tokens = stream, 0
        self._overlap = max((len(stop) for stop in request.until), default=1) - 1

    def append(self, token: int, end_ids: Collection[int]) -> None:
        """Add one token; the row finishes at an end token, at a stop text, or at its maximum of tokens."""
        if token not in end_ids:
            self._add_text(self._stream.push(token))
            self._tokens += 1
        if token in end_ids or (self.running and self._tokens == self.request.max_tokens):
            self._add_text(self._stream.finish())
            self.running = False

    def _add_text(self, added: str) -> None:
        # A stop text may begin in the text before.
        searched = max(0, len(self.text) - self._overlap)
        self.text += added
        found = [at for stop in self.request.until if (at := self.text.find(stop, searched)) >= 0]
        if found:
            self.text, self.running = self.text[: min(found)], False


@dataclass(frozen=True)
class Generator:
    """Answers prompts greedily by one decoder. tokens_at_once: tokens of a batch that its state has room for."""

    states: StateFactory
    tokenizer: Tokenizer
    tokens_at_once: int = TOKENS_AT_ONCE

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest], advance: Advance = lambda _: None) -> list[str]:
        """The text after each prompt up to a stop text, the end of the document, or its maximum of tokens."""
        for request in requests:
            if request.max_tokens < 1 or not all(request.until):
                raise UserError("until: an empty text, or no token to generate; expected at least one of each")
        length = self.states.decoder.spec.context_length
        rows = [_Row(request.within(length), self.tokenizer.stream()) for request in requests]
        for batch in self._batches(rows):
            self._run(batch)
            advance(len(batch))
        return [row.text for row in rows]

    def _batches(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Batches of prompts of similar lengths, the longest first."""
        batch: list[_Row] = []
        room = 0
        for row in sorted(rows, key=lambda row: len(row.request.prompt), reverse=True):
            room = max(room, len(row.request.prompt) + row.request.max_tokens)
            if batch and (len(batch) + 1) * room > self.tokens_at_once:
                yield batch
                batch, room = [], len(row.request.prompt) + row.request.max_tokens
            batch.append(row)
        if batch:
            yield batch

    def _run(self, rows: list[_Row]) -> None:
        """Generate one token of each row at a time; finished rows leave the batch."""
        decoder, vocab_size = self.states.decoder, self.tokenizer.vocab_size
        prompts = [row.request.prompt for row in rows]
        capacity = max(map(len, prompts)) + max(row.request.max_tokens for row in rows)
        state = self.states.new_state(len(rows), capacity)
        tokens_BT, padding = left_pad(prompts, decoder.device)
        hidden_BTD = decoder.hidden(tokens_BT, state, padding=padding)
        while True:
            # The model may have logits for more tokens than the tokenizer knows.
            chosen_B = decoder.logits(hidden_BTD[:, -1:])[:, 0, :vocab_size].argmax(dim=-1)
            for row, token in zip(rows, chosen_B.tolist(), strict=True):
                if row.running:
                    row.append(token, self.tokenizer.end_ids)
            running = [number for number, row in enumerate(rows) if row.running]
            if not running:
                return
            if len(rows) - len(running) >= FINISHED_SHARE * len(rows):
                remaining = torch.tensor(running, device=chosen_B.device)
                rows, state = [rows[number] for number in running], state.select(remaining)
                chosen_B = chosen_B[remaining]
            hidden_BTD = decoder.hidden(chosen_B[:, None], state)
