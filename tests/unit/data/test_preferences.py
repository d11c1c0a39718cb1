"""Pairs of answers: read from files, encoded behind one prompt, and kept together in batches."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import chat_models
from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.preferences import (
    PreferenceBatches,
    PreferenceEncoder,
    parse_preference,
    prepare_preferences,
    read_preferences,
)
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer

TEMPLATE = ChatTemplate(chat_models.TEMPLATE, "template", {})
ASK, YES, NO = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "y"), ("assistant", "n"))
)


def turns(pair) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    chosen, rejected = ([(turn.role, turn.content) for turn in each.messages] for each in (pair.chosen, pair.rejected))
    return chosen, rejected


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "y", "rejected": "n"},
        {"prompt": [ASK], "chosen": [YES], "rejected": [NO]},
        {"chosen": [ASK, YES], "rejected": [ASK, NO]},
        {"chosen": "\n\nHuman: q\n\nAssistant: y", "rejected": "\n\nHuman: q\n\nAssistant: n"},
    ],
    ids=["texts", "messages", "conversations", "transcripts"],
)
def test_formats_are_one_pair(row: dict):
    pair = parse_preference(json.dumps(row), "file:1")
    assert turns(pair) == ([("user", "q"), ("assistant", "y")], [("user", "q"), ("assistant", "n")])
    assert pair.prompt == 1


def test_conversations_share_as_many_messages_as_are_equal():
    row = {"chosen": [ASK, YES, ASK, YES], "rejected": [ASK, YES, ASK, NO, ASK, NO]}
    assert parse_preference(json.dumps(row), "file:1").prompt == 3


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "q", "chosen": "y"}, r"file:1: field 'rejected': missing; there is 'prompt', 'chosen'"),
        ({"chosen": [ASK, YES], "rejected": [ASK, YES]}, r"file:1: field 'rejected': the same as 'chosen'"),
        ({"chosen": [YES], "rejected": [NO]}, r"file:1: field 'chosen': no message before the answers"),
        ({"prompt": [ASK], "chosen": [ASK], "rejected": [NO]}, r"file:1: field 'chosen': no answer behind the prompt"),
        ({"prompt": "q", "chosen": " ", "rejected": "n"}, r"file:1: field 'chosen': empty"),
        ({"chosen": "y", "rejected": "n"}, r"file:1: field 'chosen': \"y\": expected a field 'prompt' beside it"),
        ([1], r"file:1: \[1\]: expected a JSON object"),
    ],
    ids=["missing", "same", "no prompt", "no answer", "empty", "text alone", "no object"],
)
def test_what_is_wrong_is_named(row, expected: str):
    with pytest.raises(UserError, match=expected):
        parse_preference(json.dumps(row), "file:1")


def test_a_file_without_pairs_is_named(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no preferences; expected lines like"):
        list(read_preferences(tmp_path / "empty.jsonl"))


def test_only_the_answers_behind_the_prompt_count():
    encoder = PreferenceEncoder(TEMPLATE, Tokenizer.train("bytes", []))
    row = {"chosen": [ASK, YES, ASK, {**YES, "content": "yes"}], "rejected": [ASK, YES, ASK, NO]}
    pair = parse_preference(json.dumps(row), "file:1")
    for found, answer in zip(encoder.encode(pair), (b"yes", b"n"), strict=True):
        trained = [token for token, counts in zip(found.ids, found.trained, strict=True) if counts]
        assert trained == [*answer, encoder.tokenizer.end_id]


def test_a_template_that_prints_the_prompt_by_the_answer_is_refused():
    source = TEMPLATE.source.replace("U:", "{{ messages[-1].content | length }}:")
    encoder = PreferenceEncoder(ChatTemplate(source, "template", {}), Tokenizer.train("bytes", []))
    pair = parse_preference(json.dumps({"prompt": "q", "chosen": "yes", "rejected": "no"}), "file:7")
    with pytest.raises(UserError, match="file:7: the prompt has other tokens in front of the chosen answer"):
        encoder.encode(pair)


@pytest.fixture
def folder(tmp_path: Path) -> TokenData:
    rows = [{"prompt": f"q{n // 2}", "chosen": "y" * (1 + n % 5), "rejected": "n" * (1 + n % 3)} for n in range(40)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare_preferences(file, tmp_path / "data", TEMPLATE, Tokenizer.train("bytes", []), validation=0.2)
    return TokenData.open(tmp_path / "data")


def texts(data: TokenData, side: str) -> list[str]:
    sequence = data.split(side)
    starts = [*sequence.document_starts.tolist(), len(sequence) - 1]
    return [data.tokenizer.decode(sequence.read(start, end - start).tolist()) for start, end in pairwise(starts)]


def test_a_folder_has_rows_in_pairs_and_each_prompt_on_one_side(folder: TokenData):
    assert folder.is_preferences and folder.is_rows
    prompts = {}
    for side in ("train", "validation"):
        rows = texts(folder, side)
        assert all(
            "A:y" in chosen and "A:n" in rejected for chosen, rejected in zip(rows[::2], rows[1::2], strict=True)
        )
        prompts[side] = {row.split("A:")[0] for row in rows}
    assert len(texts(folder, "train")) + len(texts(folder, "validation")) == 80
    assert prompts["train"] and prompts["validation"] and not prompts["train"] & prompts["validation"]


def test_the_likelihood_is_that_of_the_preferred_answers(folder: TokenData):
    sequence = folder.split("validation")
    spans, measured = folder.spans(sequence, 64), folder.measured_spans(sequence, 64)
    assert len(spans) == 2 * len(measured) and measured.starts_N.tolist() == spans.starts_N[::2].tolist()
    assert folder.row_reading(sequence) == "each conversation is read by itself, and only its chosen answer counts"


def test_batches_keep_pairs_together_and_an_epoch_has_each_once(folder: TokenData):
    sequence = folder.split("train")
    rows = folder.spans(sequence, 64)
    batches = PreferenceBatches(sequence, rows, 4, 64, seed=3, apart=False)
    batches.extras_D = {"reference": torch.arange(len(rows))}
    seen = []
    for number in range(len(rows) // 8):
        batch = batches.batch(number)
        assert (batch.examples, batch.rows_per_example, batch.total_weight) == (4, 2, 4.0)
        reference = batch.extras["reference"]
        assert torch.equal(reference[1::2], reference[::2] + 1)
        seen += reference[::2].tolist()
        answers = [batch.targets[row][batch.weights[row]].tolist() for row in range(8)]
        assert [bytes(answer[:1]) for answer in answers] == [b"y", b"n"] * 4
    assert len(set(seen)) == len(seen) and seen != sorted(seen)
    again = PreferenceBatches(sequence, rows, 4, 64, seed=3, apart=False).batch(1)
    assert np.array_equal(again.tokens, batches.batch(1).tokens)
