"""Data folders of prompts: the template is checked with an answer behind each, and what fails is told."""

import json
from pathlib import Path

import pytest

from chat_models import TEMPLATE
from linnet.data.chat_template import ChatTemplate
from linnet.data.prepare_prompts import prepare_prompts, rows_of
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [{"prompt": f"q{n}", "answer": "b"} for n in range(40)]
    rows[3]["prompt"] = "Is <|end|> a word?"
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(prompts: Path, source: str, **settings: bool) -> TokenData:
    tokenizer = Tokenizer.train("bytes", [])
    out = prompts.parent / "data"
    prepare_prompts(prompts, out, ChatTemplate(source, "t.jinja", {}), tokenizer, overwrite=True, **settings)
    return TokenData.open(out)


def test_a_sound_template_is_not_spoken_of_and_a_forged_token_is(prompts: Path, told):
    data = prepared(prompts, TEMPLATE)
    assert sum(len(rows_of(data, side)) for side in ("train", "validation")) == 40
    (line,) = told()
    assert "prompts.jsonl, line 4: t.jinja: no control token within a message: message 0 contains <|end|>" in line


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (TEMPLATE.replace("prompt %}A:", "prompt %}A: "), "generation prompt equals the training prefix"),
        (TEMPLATE.replace("<|end|>", ""), "stop token trained after every answer"),
        (f"<|end|><|end|>{TEMPLATE}", "one token begins the text"),
    ],
    ids=["another prompt", "no stop token", "two beginnings"],
)
def test_a_template_that_fails_a_check_is_told_and_no_error(wrong: str, check: str, prompts: Path, told):
    data = prepared(prompts, wrong)
    assert len(rows_of(data, "train")) > 0
    assert any(f"prompts.jsonl, line 1: t.jinja: {check}: " in line for line in told())


def test_a_template_that_was_checked_already_is_not_told_again(prompts: Path, told):
    prepared(prompts, TEMPLATE.replace("<|end|>", ""), checked=True)
    assert told() == []
