"""Accuracy of a model on generated questions: whole answers, greedily, against chance.

An answer is right if each of its tokens is the likeliest one given the true tokens before it, which is what greedy
decoding would write. Shapes: `B` rows, `T` tokens, `A` tokens of answers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.data.data_folder import TokenRow
from linnet.data.loader import Batch
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities.contract import Ability, AbilityItem, Chance, Question, SymbolEncoder, TextAbility
from linnet.evaluation.models import ModelOptions, frozen_state
from linnet.evaluation.statistics import NOT_ABOVE_CHANCE, accuracy, beats_chance, exact_p_value, holm_correction
from linnet.evaluation.tasks.generation import GenerationRequest, Generator
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState, rows_of
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.present import numbers
from linnet.present.progress import progress
from linnet.present.result import Result
from linnet.present.table import Table

TOKENS_AT_ONCE = 8192
SENTENCE_END = "."
TOO_LONG = "takes"
"""How the reason begins that the items of an ability are longer than the model's context."""

SPARE_TOKENS = 4
"""Tokens generated beyond the longest true answer: another name may be longer."""


@dataclass
class AnswerCounts:
    """Counts of right answers.

    items, right: answers, and those that are wholly right. asked_at, right_at: the same for single tokens, by their
    place among the target tokens of an item.
    """

    items: int = 0
    right: int = 0
    right_at: list[int] = field(default_factory=list)
    asked_at: list[int] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        return self.right / self.items

    @property
    def standard_error(self) -> float | None:
        return accuracy(self.right, self.items).standard_error

    @property
    def symbol_accuracy(self) -> float:
        return sum(self.right_at) / sum(self.asked_at)

    @property
    def accuracy_at(self) -> list[float]:
        return [right / asked for right, asked in zip(self.right_at, self.asked_at, strict=True)]

    @property
    def percent(self) -> str:
        """The accuracy in percent, with its standard error if it has one."""
        error = self.standard_error
        return f"{100 * self.accuracy:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")

    def p_value(self, chance: float) -> float:
        """Probability that a guesser with this chance level is as far from its expected count (`exact_p_value`)."""
        return exact_p_value(self.right, np.full(self.items, chance))

    def beats(self, chance: float) -> bool:
        """True if the accuracy is above chance, as a single test."""
        return beats_chance(self.p_value(chance), self.accuracy, chance)

    def add(self, hits: Sequence[bool]) -> None:
        """Add one item: which of the tokens of its answer are right."""
        self.items += 1
        self.right += all(hits)
        self.right_at += [0] * (len(hits) - len(self.right_at))
        self.asked_at += [0] * (len(hits) - len(self.asked_at))
        for place, hit in enumerate(hits):
            self.right_at[place] += hit
            self.asked_at[place] += 1

    def to_dict(self, chance: Chance, corrected_p_value: float | None = None) -> dict[str, Any]:
        """The figures for JSON. corrected_p_value: for one of several tests (Holm); None for a single test."""
        p_value = self.p_value(chance.answer) if corrected_p_value is None else corrected_p_value
        return {
            "items": self.items,
            "right": self.accuracy,
            "standard_error": self.standard_error,
            "chance": chance.answer,
            "p_value": p_value,
            "above_chance": beats_chance(p_value, self.accuracy, chance.answer),
            "symbols_right": self.symbol_accuracy,
            "symbols_chance": chance.symbol,
            "by_place": self.accuracy_at,
        }


@dataclass(frozen=True)
class AbilityResult:
    """An ability with its score, or the reason why it was not measured.

    final: counts of right final answers, for answers that are sentences; None otherwise.
    """

    ability: Ability
    score: AnswerCounts | None
    missing: str = ""
    final: AnswerCounts | None = None

    def to_dict(self, corrected_p_value: float | None = None) -> dict[str, Any]:
        figures: dict[str, Any] = {"ability": self.ability.model_dump(), "missing": self.missing or None}
        if self.score is None:
            return figures
        own = self.score.to_dict(self.ability.chance, corrected_p_value)
        return figures | own | final_answer_figures(self.ability, self.final)


def corrected_figures(results: Sequence[AbilityResult]) -> list[dict[str, Any]]:
    """The figures of several abilities; their p-values against chance are corrected for their number (Holm)."""
    p_values = [None if one.score is None else one.score.p_value(one.ability.chance.answer) for one in results]
    return [one.to_dict(p_value) for one, p_value in zip(results, holm_correction(p_values), strict=True)]


def above_chance(results: Sequence[AbilityResult]) -> list[bool]:
    """For each of several abilities: True if its score is above chance, by the corrected p-value."""
    return [figures.get("above_chance", False) for figures in corrected_figures(results)]


@dataclass(frozen=True)
class AbilityReport(Result):
    """The results of one model on several abilities, with `items` items each."""

    model: str
    options: ModelOptions
    items: int
    results: Sequence[AbilityResult]

    def title(self) -> str:
        """What the model cannot be asked, and why: the line above the table; empty if it was asked everything."""
        reasons: dict[str, list[str]] = {}
        for one in self.results:
            if one.score is None:
                # Each takes another number of tokens, while the context is the model's.
                reason = one.missing.rpartition("; ")[2] if one.missing.startswith(TOO_LONG) else one.missing
                reasons.setdefault(reason, []).append(one.ability.label)
        count = sum(map(len, reasons.values()))
        if not count:
            return ""
        why = "; ".join(f"{reason} ({len(labels)}, such as {labels[0]})" for reason, labels in reasons.items())
        return f"{count} of {len(self.results)} abilities cannot be asked: {why}"

    def to_dict(self) -> dict[str, Any]:
        options = {name: getattr(self.options, name) for name in ("seed", "precision", "calibration")}
        return {"model": self.model, **options, "abilities": corrected_figures(self.results)}

    def tables(self) -> list[Table]:
        rows = []
        for one, above in zip(self.results, above_chance(self.results), strict=True):
            if one.score is None:
                rows.append([one.ability.label, "", "", "", "", f"not measured: {one.missing}"])
                continue
            chance, notes = one.ability.chance, [] if above else [NOT_ABOVE_CHANCE]
            if one.final is not None and one.final is not one.score:
                notes.insert(0, f"final answer {one.final.percent} % right")
            symbols = ["", ""]
            if chance.symbol is not None:
                symbols = [f"{100 * one.score.symbol_accuracy:.1f}", numbers.percent_of(chance.symbol)]
            answers = [one.score.percent, numbers.percent_of(chance.answer)]
            rows.append([one.ability.label, *answers, *symbols, "; ".join(notes)])
        columns = ("ability", "right, %", "chance, %", "symbols, %", "chance, %", "")
        note = (
            f"right: whole answers of {self.items:,} items each, decoded greedily, with their standard error; symbols:"
            " single symbols of answers, given the true ones before them. Tests against chance are two-sided, at 5 %"
            " for all abilities together (Holm)"
        )
        return [Table("Abilities", columns, rows, note)]


def measure_all(
    model: LanguageModel, abilities: Sequence[Ability], items: int, seed: int = 0, description: str = "measuring"
) -> list[AbilityResult]:
    """Measure several abilities with a progress bar."""
    results = []
    with progress(description, len(abilities), "abilities") as advance:
        for ability in abilities:
            results.append(measure(model, ability, items, seed))
            advance(1)
    return results


def measure(model: LanguageModel, ability: Ability, items: int, seed: int = 0) -> AbilityResult:
    """Measure `items` held-out items of one ability; not measured if the model cannot read them."""
    encoder = SymbolEncoder(model.tokenizer)
    if not encoder.can_encode(ability.alphabet):
        return AbilityResult(ability, None, "its symbols are not tokens of the model")
    if model.spec.prefix_field is not None:
        return AbilityResult(ability, None, "the model reads pairs")
    context, rows, asked = model.spec.context_length, [], list[AbilityItem]()
    for item in ability.items(items, seed):
        asked.append(item)
        rows.append(item.row(encoder))
        if len(rows[-1].tokens) > context:
            missing = f"{TOO_LONG} {len(rows[-1].tokens):,} tokens or more; the model reads {context:,} at once"
            return AbilityResult(ability, None, missing)
    end_11 = torch.tensor([[encoder.end_id]])
    counts = score(model.decoder, in_batches(rows, encoder.end_id), end_11)
    final = final_answer_counts(StateFactory(model.decoder, end_11), model.tokenizer, ability, asked, counts)
    return AbilityResult(ability, counts, final=final)


def in_batches(rows: Sequence[TokenRow], end_id: int) -> Iterator[Batch]:
    """Batches of rows of similar length, padded on the right."""
    ordered = sorted(rows, key=lambda row: len(row[0]))
    while ordered:
        at_once = max(1, TOKENS_AT_ONCE // len(ordered[-1][0]))
        part, ordered = ordered[-at_once:], ordered[:-at_once]
        length = len(part[-1][0])
        tokens_BT = torch.tensor([tokens + [end_id] * (length - len(tokens)) for tokens, _ in part])
        labels_BT = torch.tensor([targets + [IGNORE_INDEX] * (length - len(targets)) for _, targets in part])
        yield Batch.from_labels(tokens_BT, labels_BT)


@torch.no_grad()
def score(decoder: Decoder, batches: Iterable[Batch], calibration_1T: Tensor) -> AnswerCounts:
    """Count the right answers in batches of rows.

    calibration_1T: the calibration text of a decoder that is not causal by itself.
    """
    counts = AnswerCounts()
    frozen: DecoderState | None = None
    for batch in batches:
        tokens_BT, targets_BT = batch.tokens.to(decoder.device), batch.labels.to(decoder.device)
        state = None
        if not decoder.causal:
            if frozen is None or frozen.capacity < tokens_BT.shape[1]:
                frozen = frozen_state(decoder, calibration_1T, 1, tokens_BT.shape[1])
            state = rows_of(frozen, len(tokens_BT))
        asked_BT = targets_BT != IGNORE_INDEX
        logits_AV = decoder.logits(decoder.hidden(tokens_BT, state)[asked_BT])
        hits_A = (logits_AV.argmax(dim=-1) == targets_BT[asked_BT]).tolist()
        first = 0
        for count in asked_BT.sum(dim=1).tolist():
            counts.add(hits_A[first : first + count])
            first += count
    return counts


def final_answer_counts(
    states: StateFactory, tokenizer: Tokenizer, ability: Ability, items: Sequence[AbilityItem], counts: AnswerCounts
) -> AnswerCounts | None:
    """Counts of items that a model ends with the right final answer, whatever steps it writes before.

    None for items without a final answer. Without steps an answer is its final answer, so the result is `counts`.
    """
    questions = [item for item in items if isinstance(item, Question) and item.final is not None]
    if not questions or not isinstance(ability, TextAbility):
        return None
    if not ability.steps:
        return counts
    found = AnswerCounts()
    for hit in right_final_answers(states, tokenizer, questions):
        found.add([hit])
    return found


def final_answer_figures(ability: Ability, final: AnswerCounts | None) -> dict[str, Any]:
    """Figures of final answers for JSON; empty if there are none."""
    if final is None or not isinstance(ability, TextAbility):
        return {}
    return {
        "final_right": final.accuracy,
        "final_standard_error": final.standard_error,
        "final_chance": ability.guesses[-1],
        "final_above_chance": final.beats(ability.guesses[-1]),
    }


def right_final_answers(states: StateFactory, tokenizer: Tokenizer, questions: Sequence[Question]) -> list[bool]:
    """For each question: True if the text that the model writes greedily ends with the right final answer.

    With intermediate steps the model continues its own words, not the true ones: an answer can be right although a step
    is wrong, and wrong although each word would be right after the true ones. A prompt that leaves no room for the
    answer in the model's context loses its beginning.
    """
    max_tokens = SPARE_TOKENS + max(len(tokenizer.encode(question.answer)) for question in questions)
    prompts = [(tokenizer.end_id, *tokenizer.encode(question.prompt)) for question in questions]
    requests = [GenerationRequest(prompt, (), max_tokens) for prompt in prompts]
    texts = Generator(states, tokenizer).generate(requests)
    return [final_answer_matches(question, text) for question, text in zip(questions, texts, strict=True)]


def final_answer_matches(question: Question, text: str) -> bool:
    """True if the text has as many sentences as the true answer and the last of them ends with the final answer.

    The sentences before it and the text after it do not count.
    """
    assert question.final is not None
    count = question.answer.count(SENTENCE_END)
    sentences = text.split(SENTENCE_END)
    return len(sentences) > count and f"{sentences[count - 1]}{SENTENCE_END}".endswith(question.final)
