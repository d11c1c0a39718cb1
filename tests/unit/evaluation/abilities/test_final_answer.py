"""The final answer: what counts of what a model writes, and that it writes from its own words."""

import pytest
import torch

from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.abilities import measure as measure_module
from linnet.evaluation.abilities.contract import Question
from linnet.evaluation.abilities.measure import final_answer_matches, measure, right_final_answers
from linnet.evaluation.abilities.symbols import Copying
from linnet.evaluation.abilities.texts import Arithmetic, Whereabouts
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.inference.language_model import LanguageModel
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

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
def greedy(speaker: LanguageModel, prompt: str, count: int) -> str:
    """So many tokens, one by one."""
    tokens = [speaker.tokenizer.end_id, *speaker.tokenizer.encode(prompt)]
    begin = len(tokens)
    for _ in range(count):
        tokens.append(int(speaker.decoder(torch.tensor([tokens]))[0, -1].argmax()))
    return speaker.tokenizer.decode(tokens[begin:])


def test_the_model_goes_on_from_its_own_words(speaker: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    """A sentence ends here with whatever character the model writes fifth, and what it writes until then is right."""
    prompts = ("so it is", "now, where is it?", "and")
    written = [greedy(speaker, prompt, 12) for prompt in prompts]
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
