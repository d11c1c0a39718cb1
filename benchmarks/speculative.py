"""Decoding with guesses (`linnet.inference.speculative`) against the same decoding without them.

Llama's shape with 1, 10 and 106 M random weights (those of `quantized_decode.py`), one stream, on one processor thread.
Every model generates a given text, which a grammar forces, so that only times and the share of right guesses count:

- `copy`: look-up in the prompt, of which the text is a copy in which every 12th token is another;
- `no repetition`: look-up in a text without any: what asking costs;
- `draft`: a draft model of 1 M whose guesses are right as often as the row says, by chance.

The gate: with guesses, greedy tokens of float32 are the same, and logits of a pass are those of single steps.
`python benchmarks/speculative.py`
"""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness import contest, gate, report, threads_from_command_line
from linnet.inference.decode import decode, decode_streams
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling, TokenCounts
from linnet.inference.speculative import DraftModel, PromptLookup, Proposer, Speculation
from linnet.inference.weights import convert_weights
from linnet.model.decoder import Decoder
from quantized_decode import model

TOKENS, MOST, GREEDY = 192, 8, Sampling(temperature=0)
SIZES, PRECISIONS, RIGHT = ("1m", "10m", "110m"), ("float32", "int8"), (0.95, 0.8, 0.6, 0.0)
MAX_ERROR = 1e-3
"""Of the size of logits: keys and values of int8 are in bfloat16."""


class ForcedText:
    """A grammar of one text."""

    def __init__(self, text: Sequence[int], vocab_size: int) -> None:
        self._rest, self._vocab_size = list(text), vocab_size

    @property
    def is_finished(self) -> bool:
        """True at its end."""
        return not self._rest

    def mask_V(self) -> Tensor:
        """Its next token alone."""
        mask_V = torch.zeros(self._vocab_size, dtype=torch.bool)
        mask_V[self._rest[0]] = True
        return mask_V

    def accept(self, token: int) -> None:
        """The next one."""
        assert self._rest.pop(0) == token


class KnownDraft(DraftModel):
    """A draft model that takes its time, but guesses the known text, each token right with a probability.

    Its vocabulary may be smaller than that of the text.
    """

    known: Sequence[int]
    right: float

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        """Guesses behind `text`."""
        found = super().propose([token % self.decoder.spec.vocab_size for token in text], most)
        known = self.known[len(text) : len(text) + len(found)]
        return [token ^ (token % self.decoder.spec.vocab_size != own) for token, own in zip(known, found, strict=True)]

    def guess(self, logits_1V: Tensor, counts: TokenCounts, index: int) -> tuple[int, float]:
        """A known token, or by chance another, after the time that a choice takes."""
        super().guess(logits_1V, counts, index)
        token = self.known[self.prompt_tokens + index] % self.decoder.spec.vocab_size
        return token ^ (random.Random(index).random() >= self.right), 1.0


def draft_of(draft: Decoder, prompt: list[int], text: list[int], right: float) -> KnownDraft:
    """A draft of the text behind the prompt."""
    own = [token % draft.spec.vocab_size for token in prompt]
    reader = CachedReader(draft, draft.initial_state(1, len(prompt) + TOKENS))
    proposer = KnownDraft(draft, reader, own, len(prompt), GREEDY, TokenCounts(own))
    proposer.known, proposer.right = [*prompt, *text], right
    return proposer


@torch.inference_mode()
def check(decoder: Decoder, name: str, prompt: list[int], text: list[int]) -> None:
    """The gate."""
    logits: list[Tensor] = []
    for pieces in ([text[:MOST]], [[token] for token in text[:MOST]]):
        reader = CachedReader(decoder, decoder.initial_state(1, len(prompt) + MOST))
        reader.logits(torch.tensor([prompt]))
        if len(pieces) > 1:
            logits.append(torch.cat([reader.logits(torch.tensor([piece])) for piece in pieces]))
        else:
            logits.append(decoder.logits(decoder.hidden(torch.tensor(pieces), reader.state))[0])
    error = float((logits[0] - logits[1]).norm() / logits[1].norm())
    gate(name, error <= MAX_ERROR, f"logits of a pass are off by {error:.1e} of their size")
    if decoder.head is not None and decoder.dtype == torch.float32 and "int8" not in name:
        plain = [token for (token,) in decode(decoder, [prompt], TOKENS, GREEDY)]
        asked = Speculation([PromptLookup(MOST)], MOST, adapts=False)
        (stream,) = decode_streams(decoder, [prompt], TOKENS, GREEDY, speculation=asked)
        same = sum(event.token == token for event, token in zip(stream, plain, strict=True))
        gate(name, same == TOKENS, f"{same} of {TOKENS} greedy tokens are those without guesses")


def measured(
    decoder: Decoder, prompt: list[int], text: list[int], proposer: Proposer | None, right: float, runs: int
) -> dict[str, Any]:
    """Both in turn; with the figures of the last run. proposer: a draft of `right`, or None for look-up."""
    used: list[Speculation] = []

    def generate(speculation: Speculation | None) -> None:
        grammars = [ForcedText(text, decoder.spec.vocab_size)]
        options = {"grammars": grammars, "speculation": speculation}
        list(decode_streams(decoder, [prompt], len(text), GREEDY, **options)[0])

    def guessed() -> None:
        own = PromptLookup(MOST) if proposer is None else draft_of(proposer.decoder, prompt, text, right)
        used.append(Speculation([own], MOST))
        generate(used[-1])

    found = contest(guessed, lambda: generate(None), runs)
    figures = used[-1].figures
    rate = figures.acceptance_rate
    counted = {"proposed": figures.proposed, "accepted": figures.accepted, "passes": figures.passes}
    rates = {"acceptance_rate": None if rate is None else round(rate, 2), "pauses": figures.pauses}
    return found.summary() | counted | rates


def main() -> None:
    """Check, then time, each size and precision."""
    runs, results = threads_from_command_line(__doc__), {}
    chance, small = random.Random(0), model("1m")
    draft = draft_of(small, [1], [1], 1.0)
    for size in SIZES:
        for precision in PRECISIONS:
            decoder, name = model(size), f"{size} {precision}"
            if precision != "float32":
                convert_weights(decoder, precision)
            prompt = chance.sample(range(decoder.spec.vocab_size), TOKENS)
            copy = [chance.randrange(1024) if index % 12 == 11 else token for index, token in enumerate(prompt)]
            other = chance.sample(range(decoder.spec.vocab_size), TOKENS)
            check(decoder, name, prompt, other)
            rows = {"copy": measured(decoder, prompt, copy, None, 0.0, runs)}
            rows["no repetition"] = measured(decoder, prompt, other, None, 0.0, runs)
            for right in RIGHT if size != "1m" else ():
                rows[f"draft, {right:.0%} right"] = measured(decoder, prompt, other, draft, right, runs)
            results[name] = rows
    shape = f"{TOKENS} tokens behind {TOKENS}, one stream, at most {MOST} guesses"
    report("speculative", {"shape": shape, **results})


if __name__ == "__main__":
    main()
