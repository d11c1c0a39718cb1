"""Beam search: the likeliest continuations of a prompt, of which several are extended side by side.

The search is that of Transformers' `generate(num_beams=K)`, its scores, limits and stopping rules included. A text has
the score `log p / length ** length_penalty`, where the length counts its tokens and its end token.

Beams are rows of one state, which a `CachedReader` advances with the fastest step that there is, as for streams. A beam
keeps the row of its parent where it can, so that between two steps only the rows of beams that end are written.

Legend: `R` running beams, `V` vocabulary.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Literal

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.system import available_bytes
from linnet.inference.cache_policy import CachePolicies
from linnet.inference.prefill import EMPTY, PrefillContext, new_state
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling, TokenCounts, adjust, check_bias, check_finite
from linnet.layers.cache_policy import FULL
from linnet.model.decoder import Decoder

MAX_BEAMS = 1024
"""Far more than are useful: more beams find likelier texts, but from some tens on shorter and duller ones."""

GREEDY = Sampling(temperature=0)

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class BeamSearch:
    """The settings of a search, with the names and meanings of Transformers.

    beams: the number of texts that are extended side by side (`num_beams`). length_penalty: the power of the length by
    which a log-probability is divided: above 0 favors long texts, below 0 short ones. early_stopping: True stops as
    soon as there are `beams` ended texts; False when the best running beam, at its present length, has a lower score
    than all of them; "never" when none can have a higher one up to the most tokens.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        if not isinstance(self.beams, Integral) or isinstance(self.beams, bool) or not 1 <= self.beams <= MAX_BEAMS:
            raise UserError(field="beams", value=self.beams, accepted=f"a number of beams from 1 to {MAX_BEAMS}")
        penalty: object = self.length_penalty
        if not isinstance(penalty, Real) or isinstance(penalty, bool) or not abs(float(penalty)) <= 100:
            raise UserError(field="length_penalty", value=penalty, accepted="a number within 100 of 0")
        if self.early_stopping not in (True, False, "never"):
            raise UserError(field="early_stopping", value=self.early_stopping, accepted="True, False or 'never'")


@dataclass(frozen=True)
class Hypothesis:
    """A text that a search has found.

    tokens: without an end token. score: see the module. finish_reason: "stop" before an end token, "length" after the
    most tokens.
    """

    tokens: list[int]
    score: float
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class ScoredText:
    """A `Hypothesis` with its text."""

    text: str
    tokens: list[int]
    score: float
    finish_reason: Literal["stop", "length"]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Beam:
    """The tokens so far, their log-probability, and the row of the state that has read them, or all but the last."""

    tokens: list[int]
    log_probability: float
    row: int = 0


@torch.inference_mode()
def beam_search(
    decoder: Decoder,
    prompt: Sequence[int],
    max_tokens: int,
    search: BeamSearch,
    stop_ids: Collection[int] = (),
    *,
    cache_policy: CachePolicies = FULL,
    vocab_size: int | None = None,
    context: PrefillContext = EMPTY,
    sampling: Sampling = GREEDY,
) -> list[Hypothesis]:
    """The best texts of at most `max_tokens` tokens, the best first; as many as there are beams, where so many exist.

    context: of the prompt. sampling: bias and penalties of the log-probabilities; nothing is drawn. Only the first
    `vocab_size` ids are chosen from (None: all of them). Raises `UserError` as `new_state`.
    """
    check_bias(sampling, vocab_size or decoder.spec.vocab_size)
    reader = CachedReader(decoder, new_state(decoder, [prompt], max_tokens, cache_policy), context=context)
    needed = 2 * search.beams * reader.state.nbytes  # where their number changes, there are two states for a moment
    if needed > available_bytes(decoder.device):
        problem = f"no memory for the states of so many beams, {needed:,} bytes"
        raise UserError(problem, field="beams", value=search.beams)
    logits_RV = reader.logits(torch.tensor([list(prompt)], device=decoder.device))
    running, best = [_Beam([], 0.0)], _Finished(search, max_tokens)
    for length in range(1, max_tokens + 1):
        count = search.beams * max(2, 1 + len(stop_ids))
        candidates = _candidates(logits_RV[:, :vocab_size], running, prompt, sampling, count)
        ended = [beam.tokens[-1] in stop_ids or length == max_tokens for beam in candidates]
        best.add([beam for beam, ends in zip(candidates[: search.beams], ended, strict=False) if ends], stop_ids)
        running = [beam for beam, ends in zip(candidates, ended, strict=True) if not ends][: search.beams]
        if not running or best.is_final(running[0], length):
            break
        reader, running = _with_rows(reader, running)
        by_row = sorted(running, key=lambda beam: beam.row)
        logits_RV = reader.logits_behind([beam.tokens[-1] for beam in by_row])[[beam.row for beam in running]]
    return best.hypotheses


def _with_rows(reader: CachedReader, beams: Sequence[_Beam]) -> tuple[CachedReader, list[_Beam]]:
    """A reader whose state has a row for each beam, a copy of its parent's, and the beams with these rows.

    The state is changed in place as long as the number of rows stays, since steps keep its tensors; where it changes,
    the reader is another one, with steps for this number.
    """
    parents = [beam.row for beam in beams]
    if len(beams) != len(reader.state.positions):
        rows = torch.tensor(parents, device=reader.decoder.device)
        reader = replace(reader, state=reader.state.select(rows))
        return reader, [replace(beam, row=row) for row, beam in enumerate(beams)]
    free = sorted(set(range(len(beams))) - set(parents), reverse=True)
    taken, placed, copies = set[int](), list[_Beam](), list[tuple[int, int]]()
    for beam in beams:
        row = free.pop() if beam.row in taken else beam.row
        if row != beam.row:
            copies.append((row, beam.row))
        taken.add(row)
        placed.append(replace(beam, row=row))
    reader.state.copy_rows(copies)
    return reader, placed


class _Finished:
    """The best texts that have ended."""

    def __init__(self, search: BeamSearch, max_tokens: int) -> None:
        self.search, self.max_tokens = search, max_tokens
        self.hypotheses: list[Hypothesis] = []

    @property
    def is_full(self) -> bool:
        return len(self.hypotheses) == self.search.beams

    def add(self, beams: Sequence[_Beam], stop_ids: Collection[int]) -> None:
        """Add texts that end now, if they are among the best."""
        for beam in beams:
            score = beam.log_probability / len(beam.tokens) ** self.search.length_penalty
            stopped = beam.tokens[-1] in stop_ids
            tokens = beam.tokens[:-1] if stopped else beam.tokens
            self.hypotheses.append(Hypothesis(tokens, score, "stop" if stopped else "length"))
        self.hypotheses.sort(key=lambda one: -one.score)
        del self.hypotheses[self.search.beams :]

    def is_final(self, leader: _Beam, length: int) -> bool:
        """True if no better text is expected from the running beams, the best of which is `leader`."""
        if not self.is_full:
            return False
        if self.search.early_stopping is True:
            return True
        penalty = self.search.length_penalty
        hopes_for_long = self.search.early_stopping == "never" and penalty > 0
        possible = leader.log_probability / (self.max_tokens if hopes_for_long else length) ** penalty
        return bool(possible <= self.hypotheses[-1].score)


def _candidates(
    logits_RV: Tensor, running: Sequence[_Beam], prompt: Sequence[int], sampling: Sampling, count: int
) -> list[_Beam]:
    """The `count` likeliest beams that are one token longer, the likeliest first; `row` is their parent's."""
    check_finite(logits_RV.amax(dim=-1).tolist())
    log_RV = logits_RV.float().log_softmax(dim=-1)
    if sampling.penalizes or sampling.logit_bias:
        counts = [TokenCounts([*prompt, *beam.tokens], Counter(beam.tokens)) for beam in running]
        log_RV = adjust(log_RV, sampling, counts)
    total_RV = log_RV + torch.tensor([beam.log_probability for beam in running], device=log_RV.device)[:, None]
    best = total_RV.flatten().topk(min(count, total_RV.numel()))
    beams: list[_Beam] = []
    for place, total in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        index, token = divmod(place, total_RV.shape[1])
        if total > -math.inf:
            parent = running[index]
            beams.append(_Beam([*parent.tokens, token], total, parent.row))
    return beams
