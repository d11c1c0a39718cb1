"""The text of a comparison, cut into parts that share what they are measured on."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linnet.core.errors import UserError
from linnet.data.token_data import TokenData
from linnet.experiments.data import prepare_data, text_hash
from linnet.experiments.suite import Suite


def prepared(folder: Path, text: dict[str, Any], say: Callable[[str], None] = lambda line: None) -> list[TokenData]:
    plain = {"text": text, "tokenizer": {"kind": "bytes"}, "model": "tiny-ted", "runs": [{"name": "one"}]}
    spec = Suite.parse(plain, "test")
    return [TokenData.open(part) for part in prepare_data(spec, folder, log=say)]


def test_parts_share_tokenizer_and_validation_and_no_training_document(tmp_path: Path):
    first, second = prepared(tmp_path, {"stories": 60, "parts": 2})
    assert first.tokenizer.hash == second.tokenizer.hash

    def text(data: TokenData, split: str) -> str:
        sequence = data.split(split)
        return data.tokenizer.decode(sequence.read(0, len(sequence)).tolist())

    assert text(first, "validation") == text(second, "validation")
    whole = TokenData.open(tmp_path / "data" / "whole")
    assert text(first, "train") + text(second, "train") == text(whole, "train")
    assert first.manifest.splits["train"].documents == second.manifest.splits["train"].documents == 30


def test_the_text_may_be_files(tmp_path: Path):
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"document {i} of the first file" for i in range(30)))
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"text": f"document {i} of the second"}) + "\n" for i in range(30))
    )
    parts = prepared(tmp_path, {"files": [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")], "parts": 3})
    trained = sum(part.manifest.splits["train"].documents for part in parts)
    assert trained + parts[0].manifest.splits["validation"].documents == 60


def test_single_document_files_are_reported(tmp_path: Path):
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"document {i} of the first file" for i in range(30)))
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), str(tmp_path / "c.txt")]
    for name in files[1:]:
        Path(name).write_text("one long text")
    told: list[str] = []
    prepared(tmp_path, {"files": files}, told.append)
    assert (
        told[0] == "preparing the text"
        and len(told) == 2
        and told[1].startswith(f"note: {files[1]}, {files[2]} are each one document")
    )


def test_fewer_documents_than_parts_are_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one<|endoftext|>two")
    with pytest.raises(UserError, match=r"text\.parts: 2: the text has only 1 documents to train on"):
        prepared(tmp_path, {"files": [str(tmp_path / "a.txt")], "parts": 2})


INSTRUCTIONS = {"text": {"instructions": 60, "types": ["order", "questions"]}, "tokenizer": {"kind": "bytes"}}


def instructions(text: dict[str, Any]) -> Suite:
    return Suite.parse({**INSTRUCTIONS, "text": text, "model": "tiny-ted", "runs": [{"name": "one"}]}, "test")


def test_instructions_become_conversations_of_which_the_answers_count(tmp_path: Path):
    suite = instructions(INSTRUCTIONS["text"])
    data = TokenData.open(prepare_data(suite, tmp_path)[0])
    assert sum(split.documents for split in data.manifest.splits.values()) == 60
    assert {"<|im_start|>", "<|im_end|>"} <= data.tokenizer.special_ids.keys()
    first = data.split("train").read(0, 2000).tolist()
    control = [data.tokenizer.token_name(token) for token in first if token > 255][:8]
    message = ["<|im_start|>", "<|im_sep|>", "<|im_end|>"]
    assert control == ["<|end|>", *message, *message, "<|end|>"]
    targets = data.manifest.splits["train"].targets
    assert targets is not None and 0 < targets < 0.2 * data.manifest.splits["train"].tokens
    told: list[str] = []
    prepare_data(suite, tmp_path, log=told.append)
    assert not told
    prepare_data(instructions({"instructions": 50}), tmp_path, log=told.append)
    assert told == ["preparing the text"]


def test_the_hash_of_instructions_depends_on_their_number_and_types():
    texts = ({"instructions": 20}, {"instructions": 21}, {"instructions": 20, "types": ["order"]})
    assert len({text_hash(instructions(text)) for text in texts}) == 3
    assert text_hash(instructions(texts[0])) == text_hash(instructions(dict(texts[0])))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ({"instructions": 9, "types": ["question"]}, "types: did you mean questions?"),
        ({"stories": 9, "types": ["order"]}, "types: order: go with instructions"),
        ({"instructions": 9, "parts": 2}, "parts: 2: expected 1 with instructions"),
        ({"instructions": 9, "stories": 9}, "give one of stories, files, ability, instructions"),
    ],
    ids=["unknown type", "no instructions", "parts", "two sources"],
)
def test_instructions_that_do_not_fit_are_refused(text: dict[str, Any], problem: str):
    with pytest.raises(UserError, match=re.escape(problem)):
        instructions(text)
