"""Answers to prompts are what the model writes alone, with its own probability of them."""

import json
import math

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.prompts import prompt_of
from linnet.data.tokenizer import Tokenizer
from linnet.evaluation.instructions.measure import default_prompts, load_prompts, measure_instructions, says_unknown
from linnet.evaluation.instructions.report import InstructionReport
from linnet.evaluation.models import ModelOptions
from linnet.evaluation.tasks.generation import Generator
from linnet.inference.language_model import load
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import save_decoder
from linnet.stories.instructions import KINDS, SPLITS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("instructions") / "model"
    tokenizer = Tokenizer.train("bytes", [])
    torch.manual_seed(0)
    blocks = [{"mixer": {"kind": "attention", "heads": 2}}]
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 64, "blocks": blocks}
    save_decoder(Decoder(ModelSpec.parse(plain, "test")), path)
    tokenizer.save(path / "tokenizer.json")
    return path


def prompt(text, checker, **fields):
    return prompt_of({"messages": [{"role": "user", "content": text}], "checker": checker, **fields}, "row")


@torch.no_grad()
def test_answers_and_probabilities_are_those_of_the_model_alone(folder):
    prompts = [prompt(text, {"kind": "length", "unit": "words", "at_least": 0}, answer="ab") for text in ("Hi", "Sing")]
    found = measure_instructions(folder, prompts, ModelOptions())
    model = load(folder)
    for one, answer, probability in zip(prompts, found.answers, found.probability_N, strict=True):
        text = model.chat_template.render([turn.as_dict() for turn in one.messages])
        alone = model.generate(text, max_tokens=20, temperature=0, stop=list(model.chat_template.stops))
        assert answer == str(alone)
        asked, tokens = model.prompt_tokens(text), model.tokenizer.encode(answer)
        logits_TV = model.decoder(torch.tensor([[*asked, *tokens]]))[0].log_softmax(-1)
        nats = sum(float(logits_TV[len(asked) - 1 + place, token]) for place, token in enumerate(tokens))
        assert probability == pytest.approx(math.exp(nats), rel=1e-4)
    assert found.cut == 0


def test_a_prompt_beyond_the_context_is_counted(folder):
    prompts = [prompt("a" * 100, {"kind": "exact", "answer": "b"}, answer="b"), prompt("a", {"kind": "json"})]
    assert measure_instructions(folder, prompts, ModelOptions()).cut == 1


def test_default_prompts_are_held_out():
    found = default_prompts(2, seed=3)
    assert len(found) == 2 * len(KINDS) * 3
    assert {one.row["split"] for one in found} == set(SPLITS) - {"train"}
    assert all(one.checker.passes(one.reference) for one in found)


def test_a_limit_counts_each_type(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"{n}", "answer": "b", "type": name} for n in range(5) for name in ("one", "two")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [one.type for one in load_prompts([path], 2)] == ["one", "two", "one", "two"]
    assert len(load_prompts([path])) == 10
    with pytest.raises(UserError, match=r"none\.jsonl"):
        load_prompts([tmp_path / "none.jsonl"])


def test_what_says_that_it_cannot_be_known():
    assert says_unknown("The story does not say.") and says_unknown("I don't know that")
    assert not says_unknown("The dog does not bark.")


def test_calls_of_the_calculator_are_run_and_the_last_answer_is_judged(folder, monkeypatch):
    script = {"call": ["calculator(2 * 21)", "That is 42."], "twice": ["calculator(1)"] * 3, "alone": ["42"]}
    rounds, asked, longest = {name: iter(answers) for name, answers in script.items()}, [], []

    def scripted(self, requests, advance=None):
        texts = [self.tokenizer.decode(list(request.prompt)) for request in requests]
        asked.append(texts)
        longest.append([request.max_tokens for request in requests])
        return [next(rounds[next(name for name in script if name in text)]) for text in texts]

    monkeypatch.setattr(Generator, "generate", scripted)
    checker = {"kind": "number", "value": 42}
    prompts = [
        prompt("call", checker, tool_rounds=2, answer="42"),
        prompt("twice", checker, tool_rounds=1),
        prompt("alone", checker, answer="42"),
    ]
    found = measure_instructions(folder, prompts, ModelOptions())
    assert longest[0][0] > len("calculator(12345 * 67890)") > longest[0][2]  # a call is longer than the answer
    assert found.answers == ["That is 42.", "calculator(1)", "42"]
    assert (found.passed_N.tolist(), found.called_N.tolist()) == ([1, 0, 1], [1, 1, 0])
    assert [len(texts) for texts in asked] == [3, 2] and "Tool: 42" in asked[1][0].title()
    table = InstructionReport(prompts, [found]).tables()[0]
    assert "In 2 of 2 prompts with a tool the model called it." in table.meaning
