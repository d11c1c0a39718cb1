"""How often a model answers right: greedily, all of the answer, against chance.

An answer is right where each of its tokens is the likeliest, given the true ones before it: greedy decoding would then
write just that. Legend: `B` rows, `T` tokens, `A` answers' tokens.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.item import Chance, Speech
from linnet.evaluation.frozen import frozen_state
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of
from linnet.ops.cross_entropy import IGNORED

TOKENS_AT_ONCE = 8192
SURE = 0.01
"""Of the guesses of chance, fewer than this share may be right as often, for an ability to be told from chance."""


@dataclass
class Answered:
    """`right` of so many `items` were answered wholly; of the answers' tokens, `right_at` and `asked_at` by place.

    The place is that among the tokens that are wanted of an item: 0 is the first.
    """

    items: int = 0
    right: int = 0
    right_at: list[int] = field(default_factory=list)
    asked_at: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the items that were answered wholly."""
        return self.right / self.items

    @property
    def standard_error(self) -> float:
        """Of `share`, from that of a binomial."""
        return math.sqrt(self.share * (1 - self.share) / self.items)

    @property
    def symbols(self) -> float:
        """Share of the tokens that are right."""
        return sum(self.right_at) / sum(self.asked_at)

    @property
    def by_place(self) -> list[float]:
        """The same for each place."""
        return [right / asked for right, asked in zip(self.right_at, self.asked_at, strict=True)]

    def beats(self, chance: float) -> bool:
        """Whether chance has so many items right less often than in `SURE` of its tries (binomial, one-sided)."""
        return tail(self.right, self.items, chance) < SURE

    def figures(self, chance: Chance) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "items": self.items,
            "right": self.share,
            "standard_error": self.standard_error,
            "chance": chance.answer,
            "above_chance": self.beats(chance.answer),
            "symbols_right": self.symbols,
            "symbols_chance": chance.symbol,
            "by_place": self.by_place,
        }

    def add(self, hits: Iterable[bool]) -> None:
        """Which of the tokens of one item's answer were right."""
        found = list(hits)
        self.items += 1
        self.right += all(found)
        self.right_at += [0] * (len(found) - len(self.right_at))
        self.asked_at += [0] * (len(found) - len(self.asked_at))
        for place, hit in enumerate(found):
            self.right_at[place] += hit
            self.asked_at[place] += 1


def tail(right: int, items: int, chance: float) -> float:
    """The probability that of so many items at least `right` are right by chance: the tail of a binomial."""
    if right == 0 or chance == 1:
        return 1.0
    if chance == 0:
        return 0.0
    whole, hit, miss = math.lgamma(items + 1), math.log(chance), math.log1p(-chance)
    return math.fsum(
        math.exp(whole - math.lgamma(n + 1) - math.lgamma(items - n + 1) + n * hit + (items - n) * miss)
        for n in range(right, items + 1)
    )


@torch.no_grad()
def score(decoder: Decoder, batches: Iterable[tuple[Tensor, Tensor]], calibration_1T: Tensor) -> Answered:
    """Of rows, tokens and targets `[B, T]` each; `calibration_1T` settles a decoder that is not causal by itself."""
    found = Answered()
    frozen: DecoderState | None = None
    for tokens, targets in batches:
        tokens_BT, wanted_BT = tokens.to(decoder.device), targets.to(decoder.device)
        state = None
        if not decoder.causal:
            if frozen is None or frozen.capacity < tokens_BT.shape[1]:
                frozen = frozen_state(decoder, calibration_1T, 1, tokens_BT.shape[1])
            state = rows_of(frozen, len(tokens_BT))
        asked_BT = wanted_BT != IGNORED
        logits_AV = decoder.logits(decoder.hidden(tokens_BT, state)[asked_BT])
        hits_A = (logits_AV.argmax(dim=-1) == wanted_BT[asked_BT]).tolist()
        first = 0
        for count in asked_BT.sum(dim=1).tolist():
            found.add(hits_A[first : first + count])
            first += count
    return found


@dataclass(frozen=True)
class MeasuredAbility:
    """An ability with its score, or the reason why it was not measured."""

    ability: Ability
    score: Answered | None
    missing: str = ""

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        plain = {"ability": self.ability.model_dump(), "missing": self.missing or None}
        return plain if self.score is None else plain | self.score.figures(self.ability.chance)


def measure(model: LanguageModel, ability: Ability, items: int, seed: int = 0) -> MeasuredAbility:
    """So many held-out items of one ability; not measured where the model cannot read them."""
    speech = Speech(model.tokenizer)
    if not speech.speaks(ability.alphabet):
        return MeasuredAbility(ability, None, "its symbols are no tokens of the model")
    if model.spec.reads_pairs:
        return MeasuredAbility(ability, None, "the model reads pairs")
    context, rows = model.spec.context_length, []
    for item in ability.items(items, seed):
        rows.append(item.row(speech))
        if len(rows[-1].tokens) > context:
            return MeasuredAbility(
                ability, None, f"takes {len(rows[-1].tokens):,} tokens or more; the model reads {context:,}"
            )
    empty_11 = torch.tensor([[speech.end_id]])
    return MeasuredAbility(ability, score(model.decoder, in_batches(rows, speech.end_id), empty_11))


def in_batches(rows: Sequence[tuple[list[int], list[int]]], end_id: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Rows of about one length together, each filled up behind its end."""
    ordered = sorted(rows, key=lambda row: len(row[0]))
    while ordered:
        at_once = max(1, TOKENS_AT_ONCE // len(ordered[-1][0]))
        part, ordered = ordered[-at_once:], ordered[:-at_once]
        length = len(part[-1][0])
        yield (
            torch.tensor([tokens + [end_id] * (length - len(tokens)) for tokens, _ in part]),
            torch.tensor([targets + [IGNORED] * (length - len(targets)) for _, targets in part]),
        )
