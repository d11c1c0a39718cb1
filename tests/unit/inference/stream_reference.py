"""What a stream of an engine must give: a loop over the decoder, with one stream and without anything of the engine.

The first prompt is read in one pass, the rest of the text in another, then token by token.
"""

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import tokenizers
import torch
import torch.nn.functional as F
from tokenizers import decoders, models
from torch import Tensor

from linnet.data.tokenizer import Tokenizer
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.constrained import Grammar
from linnet.inference.sampling import Sampling, TokenCounts, adjust, choose, uniform_numbers
from linnet.inference.streams import Event, Request, Stream, likeliest
from linnet.model.decoder import Decoder


def letters(text: str) -> Tokenizer:
    """A tokenizer of single letters, without tokens for bytes: a vocabulary smaller than that of small decoders."""
    pieces = ["<unk>", "</s>", *text]
    model = models.BPE({piece: place for place, piece in enumerate(pieces)}, [], unk_token="<unk>")
    library = tokenizers.Tokenizer(model)
    library.decoder = decoders.Fuse()
    library.add_special_tokens(["<unk>", "</s>"])
    return Tokenizer(json.loads(library.to_str()), "letters")


@dataclass
class Case:
    """A stream, and what its request was, to compute it again.

    before: the tokens that its first state had read. first: how many of its text are read in the first pass. policies:
    of its layers. counts, grammar: as they were at the beginning. events: those that were taken.
    """

    stream: Stream
    before: list[int]
    first: int
    policies: CachePolicies
    counts: TokenCounts
    grammar: Grammar | None
    events: list[Event] = field(default_factory=list)

    @property
    def request(self) -> Request:
        return self.stream.request

    @property
    def tokens(self) -> list[int]:
        """Those that were taken, and the stop id behind them that ended the stream."""
        return [event.token for event in self.events] + self.stream.pending[-1:] * self.stream.met_stop_id


def counts_behind(tokens: Sequence[int], is_generated: Sequence[bool]) -> TokenCounts:
    """The counts behind a text; tokens generated since the last one that was not."""
    last_fed = max((place for place, own in enumerate(is_generated) if not own), default=-1)
    return TokenCounts(tokens, Counter(tokens[last_fed + 1 :]))


@torch.no_grad()
def alone(decoder: Decoder, case: Case, vocab_size: int, border: float) -> list[Event]:
    """The events of a stream; with a `border`, a token of the case is right where the choice is that close."""
    request, sampling, events = case.request, case.request.sampling, list[Event]()
    uniforms = uniform_numbers(sampling.seed or 0, sampling.drawn)
    counts, grammar = copy.deepcopy(case.counts), case.grammar
    state, hidden = read_text(decoder, case)
    while len(events) < request.max_tokens:
        logits_1V = decoder.logits(hidden[:, -1:])[:, 0]
        adjusted_1V = adjust(logits_1V[:, :vocab_size], sampling, [counts])
        permitted_1V = None if grammar is None else F.pad(mask := grammar.mask_V(), (0, vocab_size - len(mask)))[None]
        uniform_1 = None if sampling.greedy else torch.tensor([next(uniforms)], dtype=torch.float64)
        token = int(choose(adjusted_1V, sampling, uniform_1, permitted_1V))
        found = case.tokens[len(events) : len(events) + 1]
        if border and found and is_near(adjusted_1V, sampling, uniform_1, permitted_1V, token, found[0], border):
            token = found[0]
        if token in request.stop_ids:
            break
        events.append(event_of(token, logits_1V.float().log_softmax(-1)[0, :vocab_size], request.logprobs))
        counts.add(token)
        if grammar is not None:
            grammar.accept(token)
            if grammar.is_finished:
                break
        hidden = decoder.hidden(torch.tensor([[token]]), state)
    return events


def read_text(decoder: Decoder, case: Case):
    """A state that has read the text before the stream's own tokens, and the output of the layers behind it."""
    request = case.request
    text = [*case.before, *request.prompt]
    state = cache_policy_state(decoder, 1, len(text) + request.max_tokens, case.policies)
    memory = request.context.memory
    for part in filter(None, (text[: case.first], text[case.first :])):
        hidden = decoder.hidden(torch.tensor([part]), state, memory=memory)
        memory = None
    return state, hidden


def is_near(
    logits_1V: Tensor,
    sampling: Sampling,
    uniform_1: Tensor | None,
    permitted_1V: Tensor | None,
    token: int,
    found: int,
    border: float,
) -> bool:
    """True if logits, or a random number, that differ by `border` could have led to the other token."""
    if uniform_1 is None:
        is_permitted = permitted_1V is None or bool(permitted_1V[0, found])
        return is_permitted and bool(logits_1V[0, token] - logits_1V[0, found] <= border)
    around = (uniform_1 - border).clamp(min=1e-12), (uniform_1 + border).clamp(max=1)
    return found in {int(choose(logits_1V, sampling, each_1, permitted_1V)) for each_1 in around}


def event_of(token: int, log_V: Tensor, logprobs: int | None) -> Event:
    if logprobs is None:
        return Event(token)
    return Event(token, float(log_V[token]), likeliest(log_V, logprobs) if logprobs else [])


def assert_alike(found: Sequence[Event], expected: Sequence[Event], tolerance: float) -> None:
    """The same tokens, with log-probabilities that differ by rounding."""
    assert [event.token for event in found] == [event.token for event in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.logprob is None) == (other.logprob is None)
        if one.logprob is not None:
            assert abs(one.logprob - other.logprob) <= tolerance
            values = [[value for _, value in event.top] for event in (one, other)]
            torch.testing.assert_close(*map(torch.tensor, values), rtol=0, atol=tolerance)
