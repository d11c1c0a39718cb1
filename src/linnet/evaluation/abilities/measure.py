"""How often a model answers right: greedily, all of the answer, against chance.

An answer is right where each of its tokens is the likeliest, given the true ones before it: greedy decoding would then
write just that. Legend: `B` rows, `T` tokens, `A` answers' tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.final_answer import final_answers
from linnet.evaluation.abilities.item import AbilityItem, Chance, Question, SymbolEncoder
from linnet.evaluation.abilities.questions import TextAbility
from linnet.evaluation.frozen import frozen_state
from linnet.evaluation.statistics import accuracy, beats_chance, exact_p_value, holm_correction
from linnet.evaluation.tasks.streams import StateFactory
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.present.progress import progress

TOKENS_AT_ONCE = 8192


@dataclass
class AnswerCounts:
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
    def standard_error(self) -> float | None:
        """Of `share` (`statistics.accuracy`); None of a single item."""
        return accuracy(self.right, self.items).standard_error

    @property
    def symbols(self) -> float:
        """Share of the tokens that are right."""
        return sum(self.right_at) / sum(self.asked_at)

    @property
    def by_place(self) -> list[float]:
        """The same for each place."""
        return [right / asked for right, asked in zip(self.right_at, self.asked_at, strict=True)]

    def p_value(self, chance: float) -> float:
        """Of so many right items by chance, which is right so often (`statistics.exact_p_value`)."""
        return exact_p_value(self.right, np.full(self.items, chance))

    def beats(self, chance: float) -> bool:
        """Whether so many right items are more than chance gives, as one test."""
        return beats_chance(self.p_value(chance), self.share, chance)

    @property
    def percent(self) -> str:
        """The share, with its error where it has one."""
        error = self.standard_error
        return f"{100 * self.share:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")

    def figures(self, chance: Chance, corrected: float | None = None) -> dict[str, Any]:
        """Ready for JSON. corrected: the p-value where it is one of several (Holm); None: it is the only one."""
        p_value = self.p_value(chance.answer) if corrected is None else corrected
        return {
            "items": self.items,
            "right": self.share,
            "standard_error": self.standard_error,
            "chance": chance.answer,
            "p_value": p_value,
            "above_chance": beats_chance(p_value, self.share, chance.answer),
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


@torch.no_grad()
def score(decoder: Decoder, batches: Iterable[tuple[Tensor, Tensor]], calibration_1T: Tensor) -> AnswerCounts:
    """Of rows, tokens and targets `[B, T]` each; `calibration_1T` settles a decoder that is not causal by itself."""
    found = AnswerCounts()
    frozen: DecoderState | None = None
    for tokens, targets in batches:
        tokens_BT, wanted_BT = tokens.to(decoder.device), targets.to(decoder.device)
        state = None
        if not decoder.causal:
            if frozen is None or frozen.capacity < tokens_BT.shape[1]:
                frozen = frozen_state(decoder, calibration_1T, 1, tokens_BT.shape[1])
            state = rows_of(frozen, len(tokens_BT))
        asked_BT = wanted_BT != IGNORE_INDEX
        logits_AV = decoder.logits(decoder.hidden(tokens_BT, state)[asked_BT])
        hits_A = (logits_AV.argmax(dim=-1) == wanted_BT[asked_BT]).tolist()
        first = 0
        for count in asked_BT.sum(dim=1).tolist():
            found.add(hits_A[first : first + count])
            first += count
    return found


@dataclass(frozen=True)
class AbilityResult:
    """An ability with its score, or the reason why it was not measured; `final` of answers in sentences alone."""

    ability: Ability
    score: AnswerCounts | None
    missing: str = ""
    final: AnswerCounts | None = None

    def figures(self, corrected: float | None = None) -> dict[str, Any]:
        """Ready for JSON. corrected: as in `AnswerCounts.figures`."""
        plain = {"ability": self.ability.model_dump(), "missing": self.missing or None}
        if self.score is None:
            return plain
        own = self.score.figures(self.ability.chance, corrected)
        return plain | own | final_figures(self.ability, self.final)


def figures_of(found: Sequence[AbilityResult]) -> list[dict[str, Any]]:
    """Of several abilities, their p-values against chance corrected for their number (Holm)."""
    p_values = [None if one.score is None else one.score.p_value(one.ability.chance.answer) for one in found]
    return [one.figures(corrected) for one, corrected in zip(found, holm_correction(p_values), strict=True)]


def above_chance(found: Sequence[AbilityResult]) -> list[bool]:
    """Of each of several abilities, whether its score is more than chance explains, by those p-values."""
    return [figures.get("above_chance", False) for figures in figures_of(found)]


def measure_all(
    model: LanguageModel, abilities: Sequence[Ability], items: int, seed: int = 0, said: str = "measuring"
) -> list[AbilityResult]:
    """`measure` each, with a bar of progress that says what is done."""
    found = []
    with progress(said, len(abilities), "abilities") as advance:
        for ability in abilities:
            found.append(measure(model, ability, items, seed))
            advance(1)
    return found


def measure(model: LanguageModel, ability: Ability, items: int, seed: int = 0) -> AbilityResult:
    """So many held-out items of one ability; not measured where the model cannot read them."""
    speech = SymbolEncoder(model.tokenizer)
    if not speech.can_encode(ability.alphabet):
        return AbilityResult(ability, None, "its symbols are no tokens of the model")
    if model.spec.reads_pairs:
        return AbilityResult(ability, None, "the model reads pairs")
    context, rows, asked = model.spec.context_length, [], list[AbilityItem]()
    for item in ability.items(items, seed):
        asked.append(item)
        rows.append(item.row(speech))
        if len(rows[-1].tokens) > context:
            return AbilityResult(
                ability, None, f"takes {len(rows[-1].tokens):,} tokens or more; the model reads {context:,}"
            )
    empty_11 = torch.tensor([[speech.end_id]])
    whole = score(model.decoder, in_batches(rows, speech.end_id), empty_11)
    final = final_score(StateFactory(model.decoder, empty_11), model.tokenizer, ability, asked, whole)
    return AbilityResult(ability, whole, final=final)


def final_score(
    streams: StateFactory, tokenizer: Tokenizer, ability: Ability, items: Sequence[AbilityItem], whole: AnswerCounts
) -> AnswerCounts | None:
    """How many of the items end with the right answer, whatever steps are written before; None of what has no end.

    Without steps the answer is nothing but its end: `whole`, which is its score.
    """
    questions = [item for item in items if isinstance(item, Question) and item.final is not None]
    if not questions or not isinstance(ability, TextAbility):
        return None
    if not ability.steps:
        return whole
    found = AnswerCounts()
    for hit in final_answers(streams, tokenizer, questions):
        found.add([hit])
    return found


def final_figures(ability: Ability, final: AnswerCounts | None) -> dict[str, Any]:
    """Of final answers, ready for JSON: their share, its standard error, chance; nothing where there are none."""
    if final is None or not isinstance(ability, TextAbility):
        return {}
    return {
        "final_right": final.share,
        "final_standard_error": final.standard_error,
        "final_chance": ability.guesses[-1],
        "final_above_chance": final.beats(ability.guesses[-1]),
    }


def in_batches(rows: Sequence[tuple[list[int], list[int]]], end_id: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Rows of about one length together, each filled up behind its end."""
    ordered = sorted(rows, key=lambda row: len(row[0]))
    while ordered:
        at_once = max(1, TOKENS_AT_ONCE // len(ordered[-1][0]))
        part, ordered = ordered[-at_once:], ordered[:-at_once]
        length = len(part[-1][0])
        yield (
            torch.tensor([tokens + [end_id] * (length - len(tokens)) for tokens, _ in part]),
            torch.tensor([targets + [IGNORE_INDEX] * (length - len(targets)) for _, targets in part]),
        )
