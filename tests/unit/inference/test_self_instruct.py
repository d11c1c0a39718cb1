"""What a model writes after seeds is kept or left out by reason; it is what the model writes alone."""

import json

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.conversations import read_conversations
from linnet.data.tokenizer import Tokenizer
from linnet.inference import self_instruct as module
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.inference.self_instruct import REASONS, SelfInstructSpec, rouge_l, self_instruct
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

GOOD = " Name three birds that sing.\nAnswer: The robin, the lark and the wren."
SECOND = " How many legs has a spider?\nAnswer: Eight legs."
WRITTEN = {
    GOOD: None,
    SECOND: None,
    " Only a question?": "form",
    " Sing\nAnswer: La.": "length",
    " sing a song for me\nAnswer: La la.": "beginning",
    " Draw a picture of a bird.\nAnswer: I cannot.": "unsuitable",
    " Say something about the sea.\nAnswer: It is wet and it is wet and it is wet and it is wet.": "repetition",
    " Name three birds that can sing.\nAnswer: The lark.": "near_duplicate",
    " Who was the first queen of the hill?\nAnswer: Queen Anna.": "round_trip",
}
ANSWERS = {"birds": "The robin, the lark and a wren", "spider": "eight legs", "queen": "nobody knows"}


@pytest.fixture(scope="module")
def model():
    tokenizer = Tokenizer.train("bytes", [])
    torch.manual_seed(0)
    blocks = [{"mixer": {"kind": "attention", "heads": 2}}]
    plain = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 256, "blocks": blocks}
    return LanguageModel(Decoder(ModelSpec.parse(plain, "test")), tokenizer)


@pytest.fixture
def seeds(tmp_path):
    path = tmp_path / "seeds.jsonl"
    rows = [{"instruction": f"What is {n} plus {n}?", "output": f"It is {2 * n}."} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def scripted(monkeypatch):
    """The texts of `WRITTEN` as candidates, and `ANSWERS` in the round trip."""

    def complete(self, prompts, samplings, stops):
        asked = [prompt for prompt in prompts if prompt.endswith(module.ANSWER)]
        if asked:
            last = [prompt.rpartition(module.TASK)[2] for prompt in asked]
            return [next(answer for word, answer in ANSWERS.items() if word in one) for one in last]
        return [list(WRITTEN)[(self.candidates + place) % len(WRITTEN)] for place in range(len(prompts))]

    monkeypatch.setattr(module._Writer, "_complete", complete)


def test_each_reason_leaves_out_what_it_names(model, seeds, tmp_path, scripted):
    out = tmp_path / "own.jsonl"
    report = self_instruct(model, seeds, out, 9, spec=SelfInstructSpec(attempts=1))
    assert (report.kept, report.candidates, report.asked, report.seeds) == (2, 9, 9, 3)
    assert report.dropped == dict.fromkeys(REASONS, 1)
    for text, reason in WRITTEN.items():
        assert reason is None or report.examples[reason].startswith(text.strip()[:5]) or reason == "round_trip"
    kept = [(one.messages[0].content, one.messages[1].content) for one in read_conversations(out)]
    assert kept == [tuple(part.strip() for part in text.split(module.ANSWER)) for text in (GOOD, SECOND)]
    assert "2 examples after 3 seeds. 9 were asked for" in report.tables()[0].meaning
    assert report.to_dict()["dropped"]["round_trip"] == 1


def test_it_ends_with_the_number_asked_for(model, seeds, tmp_path, scripted):
    out = tmp_path / "own.jsonl"
    assert self_instruct(model, seeds, out, 1).kept == 1
    assert len(out.read_text().splitlines()) == 1
    with pytest.raises(UserError, match="exists already"):
        self_instruct(model, seeds, out, 1)


def test_a_model_that_writes_no_task_is_told(model, seeds, tmp_path):
    out = tmp_path / "own.jsonl"
    with pytest.raises(UserError, match="of 2 tasks that the model wrote none is kept \\(form 2\\)"):
        self_instruct(model, seeds, out, 1, spec=SelfInstructSpec(attempts=2, max_tokens=8))
    assert not out.exists()


def test_texts_are_those_of_the_model_alone(model, seeds):
    writer = module._Writer(model, list(module._seed_tasks(seeds)), SelfInstructSpec(max_tokens=12), module.Random(0))
    prompts = [writer._shown() + module.TASK, "Task: Who sang?"]
    found = writer._complete(prompts, [Sampling(0.0)] * 2, (":",))
    alone = [str(model.generate(prompt, max_tokens=12, temperature=0, stop=":")) for prompt in prompts]
    assert found == alone
    assert all("What is" in prompt for prompt in prompts[:1]) and prompts[0].startswith("Task: ")


def test_seeds_that_are_too_long_are_left_out_and_counted(model, seeds, tmp_path, scripted, caplog):
    with seeds.open("a") as file:
        file.write(json.dumps({"instruction": "Sing " * 100, "output": "La."}) + "\n")
    assert self_instruct(model, seeds, tmp_path / "own.jsonl", 1).seeds == 3
    assert f"note: {seeds}: 1 of 4 seeds do not fit into the" in caplog.text and "note: note:" not in caplog.text


def test_what_cannot_be_done_is_named(model, tmp_path):
    path = tmp_path / "seeds.jsonl"
    long = {"instruction": "Sing " * 100, "output": "La."}
    path.write_text(json.dumps(long) + "\n")
    with pytest.raises(UserError, match="1 seeds; expected at least 2"):
        self_instruct(model, path, tmp_path / "a.jsonl", 1)
    path.write_text((json.dumps(long) + "\n") * 2)
    room = r"the \d+ tokens that the model's context of 256 leaves for them"
    with pytest.raises(UserError, match=rf"seeds\.jsonl: 0 of 2 seeds fit into {room}; expected at least 2"):
        self_instruct(model, path, tmp_path / "a.jsonl", 1)
    with pytest.raises(UserError, match=r"ends in \.jsonl"):
        self_instruct(model, path, tmp_path / "a.txt", 1)


def test_rouge_l_is_the_longest_common_subsequence():
    one, other = ["the", "cat", "sat", "on", "the", "mat"], ["the", "cat", "on", "a", "mat"]
    assert rouge_l(one, other) == pytest.approx(2 * 4 / 11)
    assert rouge_l(one, one) == 1 and rouge_l([], []) == 1 and rouge_l(one, ["dog"]) == 0
    assert rouge_l(["a", "b"], ["b", "a"]) == 0.5 and rouge_l(one, other, at_least=0.9) == 0
