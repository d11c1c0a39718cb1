"""A model answers, its calls of tools are run, and it goes on with the results."""

import pytest

from linnet.core.errors import UserError
from linnet.data.chat_setup import CONTROL_TOKENS, OWN_TEMPLATE
from linnet.data.chat_template import CHAT_TEMPLATE
from linnet.data.tokenizer import Tokenizer
from linnet.data.tools import load_tools
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.sampling import Sampling
from linnet.inference.tool_loop import announced, converse
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model
from linnet.stories.instructions.facts import TOOL

BLOCK = {"repeat": 1, "mixer": {"kind": "attention", "heads": 1}, "feed_forward": {"kind": "glu", "hidden": 8}}
SPEC = {"vocab_size": 260, "d_model": 8, "context_length": 512, "blocks": [BLOCK]}
QUESTION = [{"role": "user", "content": "How many?"}]


@pytest.fixture
def model(tmp_path) -> LanguageModel:
    """A random model with a chat template, in the folder `m`."""
    tokenizer = Tokenizer.train("bytes", []).with_special(CONTROL_TOKENS, ("<|im_end|>",))
    write_model(tmp_path / "m", Decoder(ModelSpec.parse(SPEC, "test")), tokenizer, {})
    (tmp_path / "m" / CHAT_TEMPLATE).write_text(OWN_TEMPLATE)
    return load(tmp_path / "m")


@pytest.fixture
def script(monkeypatch) -> list[tuple[str, Sampling]]:
    """Answers of a script in place of the model's; what it was asked with, which comes as tokens, and how."""
    answers, asked = iter(["calculator(12 * 3)", "calculator(36 + 1)", "That is 37."]), list[tuple[str, Sampling]]()

    def stream(self, prompt, max_tokens, sampling, stop=(), **others):
        assert self.tokenizer.parses_special and max_tokens == 30
        names = (self.tokenizer.decode([token]) or self.tokenizer.token_name(token) for token in prompt)
        asked.append(("".join(names), sampling))
        return iter(next(answers).partition("("))

    monkeypatch.setattr(LanguageModel, "stream", stream)
    return asked


def test_calls_are_run_until_an_answer_has_none(model, script):
    shown = list[str]()
    found = converse(model, QUESTION, load_tools(["calculator"]), 30, Sampling(seed=4), show=shown.append)
    assert [(message["role"], message["content"]) for message in found] == [
        ("assistant", "calculator(12 * 3)"), ("tool", "36"), ("assistant", "calculator(36 + 1)"), ("tool", "37"),
        ("assistant", "That is 37."),
    ]  # fmt: skip
    lines = "calculator(12 * 3)\n[calculator] 36\ncalculator(36 + 1)\n[calculator] 37\nThat is 37.\n"
    assert "".join(shown) == lines and [sampling.seed for _, sampling in script] == [4, 5, 6]
    prompts = [prompt for prompt, _ in script]
    assert prompts[0].startswith(f"<|im_start|>system<|im_sep|>{TOOL}<|im_end|><|im_start|>user<|im_sep|>How many?")
    result = "<|im_end|><|im_start|>tool<|im_sep|>36<|im_end|><|im_start|>assistant<|im_sep|>"
    assert prompts[1] == f"{prompts[0]}calculator(12 * 3){result}"


def test_the_seed_behind_the_largest_one_is_0(model, script):
    converse(model, QUESTION, load_tools(["calculator"]), 30, Sampling(seed=2**63 - 1))
    assert [sampling.seed for _, sampling in script] == [2**63 - 1, 0, 1]


def test_rounds_are_bounded_and_a_system_message_is_kept(model, script):
    own = [{"role": "system", "content": "Count."}, *QUESTION]
    found = converse(model, own, load_tools(["calculator"]), 30, rounds=1)
    assert [message["role"] for message in found] == ["assistant", "tool", "assistant"]
    assert found[-1]["content"] == "calculator(36 + 1)" and script[0][0].startswith("<|im_start|>system<|im_sep|>Count")
    assert announced(own, load_tools(["calculator"])) == own and announced(QUESTION, None) == QUESTION


def test_learned_positions_bound_answers_and_a_full_context_is_told(tmp_path):
    learned = Decoder(ModelSpec.parse({**SPEC, "context_length": 64, "embedding": {"positions": "learned"}}, "test"))
    model = LanguageModel(learned, Tokenizer.train("bytes", []).with_special(CONTROL_TOKENS, ()))
    tools, own = load_tools(["calculator"]), [{"role": "system", "content": ""}, *QUESTION]
    found = converse(model, own, tools, 512)
    assert found[-1]["role"] == "assistant"
    told = r"^the context of 64 tokens is full: the conversation has 173 before the answer; expected fewer messages"
    with pytest.raises(UserError, match=told):
        converse(model, own * 6, tools, 512)
