"""Scores: counted as greedy decoding would answer, against chance, and not where a model cannot read the items."""

from pathlib import Path

import pytest
import torch

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities import measure as measure_module
from linnet.evaluation.abilities.contract import Ability, Chance, Question, SymbolEncoder
from linnet.evaluation.abilities.measure import (
    AbilityResult,
    AnswerCounts,
    corrected_figures,
    final_answer_matches,
    in_batches,
    measure,
    right_final_answers,
    score,
)
from linnet.evaluation.abilities.suite import default_abilities, read_abilities
from linnet.evaluation.abilities.symbols import Copying, Counting, Recall, Rules, Sorting
from linnet.evaluation.abilities.texts import Arithmetic, Whereabouts
from linnet.evaluation.models import frozen_state
from linnet.evaluation.statistics import exact_p_value
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops.cross_entropy import IGNORE_INDEX

EMPTY = torch.tensor([[256]])
MIXERS = [
    {"kind": "attention", "heads": 2},
    {"kind": "ted"},
    {"kind": "plga", "heads": 2, "metric_hidden": 8, "residual_units": 1},
]


def model(mixer: dict[str, object], context_length: int = 256) -> LanguageModel:
    torch.manual_seed(0)
    plain = {"vocab_size": 257, "d_model": 8, "context_length": context_length, "blocks": [{"mixer": mixer}]}
    decoder = Decoder(ModelSpec.parse(plain, "test"))
    with torch.no_grad():
        decoder.embedding.tokens.weight.mul_(100)
    return LanguageModel(decoder, Tokenizer.train("bytes", []))


def test_a_score_counts_whole_answers_and_places():
    found = AnswerCounts()
    for hits in ([True, True], [True, False], [False], [True, True, True]):
        found.add(hits)
    assert (found.items, found.right, found.accuracy) == (4, 2, 0.5)
    assert found.standard_error == pytest.approx((0.25 / 3) ** 0.5)
    assert found.accuracy_at == [3 / 4, 2 / 3, 1.0] and found.symbol_accuracy == 6 / 8
    figures = found.to_dict(Chance(None, 0.5))
    assert (figures["above_chance"], figures["symbols_chance"], figures["chance"]) == (False, None, 0.5)


@pytest.mark.parametrize(
    ("right", "chance", "above"),
    [(7, 0.25, True), (6, 0.25, True), (5, 0.25, False), (1, 0.0, True), (0, 0.5, False)],
)
def test_the_verdict_is_that_of_the_tasks(right: int, chance: float, above: bool):
    """Of 10 with a quarter: 6 or more have probability 0.0197, which is below 0.05 twice, 5 or more 0.0781. None right
    of 10 with a half is told from chance, but not above it.
    """
    figures = AnswerCounts(10, right, [right], [10]).to_dict(Chance(None, chance))
    assert figures["above_chance"] is above and figures["p_value"] == exact_p_value(right, [chance] * 10)


def test_several_abilities_are_corrected_for():
    def found(right: int) -> AbilityResult:
        return AbilityResult(Counting(), AnswerCounts(100, right, [right], [100]))

    alone = [corrected_figures([found(right)])[0]["above_chance"] for right in (17, 10)]
    unmeasured = AbilityResult(Counting(), None, "no symbols")
    several = corrected_figures([found(17), found(10), unmeasured, found(10)])
    assert alone == [True, False]
    assert [one.get("above_chance") for one in several] == [False, False, None, False]
    assert several[0]["p_value"] == pytest.approx(3 * exact_p_value(17, [0.1] * 100))


def greedy(decoder: Decoder, tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens one by one; a decoder that is not causal is settled by the empty prompt."""
    written: list[int] = []
    for _ in range(count):
        state = None if decoder.causal else frozen_state(decoder, EMPTY, 1, 64)
        written.append(int(decoder(torch.tensor([tokens + written]), state)[0, -1].argmax()))
    return written


@torch.no_grad()
@pytest.mark.parametrize("mixer", MIXERS, ids=lambda one: str(one["kind"]))
def test_right_is_what_greedy_decoding_writes(mixer: dict[str, object]):
    """Rows of different lengths in one batch; in one of them another token is wanted."""
    decoder = model(mixer).decoder
    rows = []
    for prompt in ("what is this?", "and that, then?", "so"):
        read = [256, *prompt.encode()]
        written = greedy(decoder, read, 3)
        rows.append(([*read, *written[:-1]], [*[IGNORE_INDEX] * len(prompt), *written]))
    rows[1][1][-2] = (rows[1][1][-2] + 1) % 256
    found = score(decoder, in_batches(rows, 256), EMPTY)
    assert (found.items, found.right, found.right_at) == (3, 2, [3, 2, 3])
    alone = score(decoder, [batch for row in rows for batch in in_batches([row], 256)], EMPTY)
    assert (alone.right, alone.right_at) == (2, [3, 2, 3])


def test_the_length_of_a_batch_is_bounded():
    rows = [([1] * length, [IGNORE_INDEX] * (length - 1) + [7]) for length in (5000, 10, 4000, 9000, 20)]
    batches = list(in_batches(rows, 0))
    assert sum(map(len, batches)) == 5
    assert all(batch.tokens.numel() <= 8192 or len(batch) == 1 for batch in batches)
    for batch in batches:
        tokens, targets = batch.tokens, batch.labels
        assert tokens.shape == targets.shape
        assert ((targets == 7).sum(dim=1) == 1).all() and (tokens[targets == 7] == 1).all()


@pytest.mark.parametrize(
    ("ability", "missing"),
    [
        (Recall(), "its symbols are not tokens of the model"),
        (Copying(length=40), "takes 81 tokens or more; the model reads 64"),
        (Arithmetic(shots=9), "tokens or more; the model reads 64"),
    ],
)
def test_items_that_a_model_cannot_read_are_not_measured(ability: Ability, missing: str):
    found = measure(model(MIXERS[1], context_length=64), ability, 3)
    assert found.score is None and missing in found.missing
    assert found.to_dict()["missing"] == found.missing and "right" not in found.to_dict()


def test_an_untrained_model_is_not_above_chance():
    found = measure(model(MIXERS[0], context_length=64), Counting(), 50)
    assert found.score is not None and found.score.items == 50
    assert not found.to_dict()["above_chance"] and found.to_dict()["chance"] == 0.1


def test_the_suite_has_every_kind_and_a_file_may_have_its_own(tmp_path: Path):
    assert {one.kind for one in default_abilities()} == {
        "arithmetic", "brackets", "copying", "counting", "facts", "induction", "needle", "recall", "rules",
        "selective_copying", "sorting", "tracking", "whereabouts",
    }  # fmt: skip
    assert len({one.label for one in default_abilities()}) == len(default_abilities())
    path = tmp_path / "own.yaml"
    path.write_text("abilities: [{kind: recall, pairs: 5}, {kind: sorting}]")
    assert read_abilities(path) == [Recall(pairs=5), Sorting()]


def test_rules_are_measured_by_the_number_of_examples():
    found = measure(model(MIXERS[0]), Rules(), 5)
    assert found.score is None  # their symbols are an own vocabulary
    speech = SymbolEncoder(Tokenizer.train("char", [Rules().alphabet]))
    targets = next(Rules(examples=3).items(1)).row(speech).targets
    assert [target != IGNORE_INDEX for target in targets] == [False, True, False, True, False, True]


STEPS = Question("Where is the kite?", " The kite is held by Mia. Mia is in the park.", " in the park.")
DIRECT = Question("Where is the kite?", " in the park.", " in the park.")


@pytest.mark.parametrize(
    ("question", "written", "right"),
    [
        (STEPS, " The kite is held by Mia. Mia is in the park.", True),
        (STEPS, " The kite is held by Ben. Ben is in the park. And so on", True),
        (STEPS, " The kite is held by Mia. Mia is in the yard.", False),
        (STEPS, " Mia is in the park.", False),
        (STEPS, " The kite is held by Mia. Mia is in the park", False),
        (STEPS, " Mia is in the park. Ben is at the farm. Mia is in the park.", False),
        (DIRECT, " in the park. in the yard.", True),
        (DIRECT, " in the yard. in the park.", False),
        (DIRECT, "", False),
    ],
)
def test_the_sentence_at_the_place_of_the_final_answer_counts(question: Question, written: str, right: bool):
    assert final_answer_matches(question, written) == right


@pytest.fixture(scope="module")
def speaker() -> LanguageModel:
    tokenizer = Tokenizer.train("char", ["letters"])
    torch.manual_seed(5)
    mixer = {"kind": "attention", "heads": 2}
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 256, "blocks": [{"mixer": mixer}]}
    return LanguageModel(Decoder(ModelSpec.parse(plain, "test")).eval(), tokenizer)


@torch.no_grad()
def greedy_text(speaker: LanguageModel, prompt: str, count: int) -> str:
    """So many tokens, one by one."""
    tokens = [speaker.tokenizer.end_id, *speaker.tokenizer.encode(prompt)]
    begin = len(tokens)
    for _ in range(count):
        tokens.append(int(speaker.decoder(torch.tensor([tokens]))[0, -1].argmax()))
    return speaker.tokenizer.decode(tokens[begin:])


def test_the_model_continues_its_own_words(speaker: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    """A sentence ends here with whatever character the model writes fifth, and what it writes until then is right."""
    prompts = ("so it is", "now, where is it?", "and")
    written = [greedy_text(speaker, prompt, 12) for prompt in prompts]
    end = written[0][4]
    monkeypatch.setattr(measure_module, "SENTENCE_END", end)
    first = written[0].split(end)[0] + end
    asked = [Question(prompts[0], first, first[-2:]), Question(prompts[0], first, "\0" + end)]
    asked += [Question(prompt, first, first) for prompt in prompts[1:]]
    streams = StateFactory(speaker.decoder, torch.tensor([[speaker.tokenizer.end_id]]))
    expected = [True, False, *((text.split(end)[0] + end).endswith(first) for text in written[1:])]
    assert right_final_answers(streams, speaker.tokenizer, asked) == expected and len(first) > 1


def test_direct_answers_are_their_own_end_and_others_have_none(speaker: LanguageModel):
    direct = measure(speaker, Whereabouts(moves=0), 8)
    assert direct.final is direct.score and direct.score is not None
    figures = direct.to_dict()
    assert (figures["final_right"], figures["final_chance"]) == (figures["right"], 1 / 3)
    steps = measure(speaker, Whereabouts(moves=0, steps=True), 8)
    assert steps.final is not None and steps.final is not steps.score and steps.final.items == 8
    assert steps.to_dict()["final_chance"] == 1 / 3
    assert steps.to_dict()["chance"] == pytest.approx(1 / 9)
    for ability in (Arithmetic(steps=True), Copying(length=3)):
        assert "final_right" not in measure(speaker, ability, 3).to_dict()
