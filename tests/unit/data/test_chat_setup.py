"""A model without a chat template gets linnet's, with control tokens and a stop token."""

import json
from pathlib import Path

import pytest

from linnet.data.chat_setup import CONTROL_TOKENS, OWN_TEMPLATE, chat_setup
from linnet.data.chat_template import CHAT_TEMPLATE, TOKENIZER_CONFIG, ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import parse_conversation
from linnet.data.template_doctor import doctor
from linnet.data.tokenizer import TOKENIZER, Tokenizer

TEXTS = ["Who sings? The bird sings.\n\nIt was glad, user and assistant.\n" * 20]
KINDS = ("bytes", "char", "bpe", "unigram")
TALK = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "\nWho sings? "},
    {"role": "assistant", "content": "\n The bird"},
    {"role": "user", "content": "<|im_end|> is text?"},
    {"role": "assistant", "content": " sings.\n\n"},
]


def conversation(messages: list[dict], **others):
    return parse_conversation(json.dumps({"messages": messages, **others}), "here")


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    Tokenizer.train(request.param, TEXTS, 400 if request.param in ("bpe", "unigram") else None).save(
        tmp_path / TOKENIZER
    )
    return tmp_path


def test_the_own_template_passes_every_check(model: Path):
    setup = chat_setup([model])
    before = Tokenizer.load(model)
    assert setup.added == CONTROL_TOKENS and setup.stops == ("<|im_end|>",)
    assert setup.tokenizer.vocab_size == before.vocab_size + 3 and setup.tokenizer.end_id == before.end_id
    assert doctor(setup.template, setup.tokenizer, [conversation(TALK[:3] + TALK[1:3])]) == []
    found = ChatEncoder(setup.template, setup.tokenizer).encode(conversation(TALK[:3]))
    trained = [token for token, counts in zip(found.ids, found.trained, strict=True) if counts]
    assert setup.tokenizer.decode(trained[:-1]) == "\n The bird"
    assert trained[-1] == setup.tokenizer.special_ids["<|im_end|>"] and found.torn == []


def test_a_grown_tokenizer_extends_the_one_it_is_from(model: Path, tmp_path: Path):
    before, grown = Tokenizer.load(model), chat_setup([model]).tokenizer
    assert grown.kind == before.kind and grown.encode(TEXTS[0]) == before.encode(TEXTS[0])
    (tmp_path / "grown").mkdir()
    grown.save(tmp_path / "grown" / TOKENIZER)
    again = Tokenizer.load(tmp_path / "grown")
    assert again.end_ids == grown.end_ids and again.added_to(before) == CONTROL_TOKENS
    assert before.added_to(before) == () and before.added_to(grown) is None
    assert Tokenizer.train("bytes", []).with_special(["<|x|>"]).added_to(Tokenizer.train("char", TEXTS)) is None


def test_tools_and_calls_are_printed_as_json(tmp_path: Path):
    Tokenizer.train("bytes", []).save(tmp_path / TOKENIZER)
    setup = chat_setup([tmp_path])
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    talk = [TALK[1], {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    rendered = ChatEncoder(setup.template, setup.tokenizer).render(conversation(talk, tools=[{"name": "add"}]))
    assert rendered.text == (
        '<|end|><|im_start|>system<|im_sep|>Tools:\n{"name": "add"}<|im_end|>'
        "<|im_start|>user<|im_sep|>\nWho sings? <|im_end|>"
        '<|im_start|>assistant<|im_sep|><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>'
        "<|im_start|>tool<|im_sep|>2<|im_end|>"
    )
    (span,) = rendered.trained
    assert rendered.text[span.start : span.stop].startswith("<tool_call>") and span.message == 1


def test_a_model_with_a_template_keeps_it(tmp_path: Path):
    Tokenizer.train("bytes", []).save(tmp_path / TOKENIZER)
    (tmp_path / CHAT_TEMPLATE).write_text("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    setup = chat_setup([tmp_path])
    assert setup.template == ChatTemplate.find(tmp_path) and setup.describe() is None and not setup.added
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}<|{{ m.role }}|><|turn|>{{ m.content }}<|stop|>{% endfor %}")
    setup = chat_setup([tmp_path], other)
    assert setup.added == ("<|turn|>", "<|stop|>") and setup.stops == ("<|stop|>",)
    assert setup.describe() == (
        f"chat template: {other}; 2 control tokens are added, <|turn|>, <|stop|>, at the mean of the others;"
        " <|stop|> ends an answer"
    )


def test_tokens_that_the_model_has_are_not_added_again(tmp_path: Path):
    Tokenizer.train("bytes", []).with_special([CONTROL_TOKENS[0], CONTROL_TOKENS[2]]).save(tmp_path / TOKENIZER)
    (tmp_path / TOKENIZER_CONFIG).write_text(json.dumps({"bos_token": "<s>", "pad_token": "<|end|>"}))
    setup = chat_setup([tmp_path])
    assert setup.added == ("<|im_sep|>",) and setup.tokenizer.vocab_size == 260
    assert setup.template.source == OWN_TEMPLATE
    assert setup.template.special_tokens == {"bos_token": "<|end|>", "eos_token": "<|im_end|>", "pad_token": "<|end|>"}
