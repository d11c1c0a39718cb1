"""Conversations become rows of tokens of which the answers count, whole conversations on one side."""

import json
from itertools import pairwise

import numpy as np
import pytest

from chat_models import TEMPLATE as SOUND
from linnet.core.errors import UserError
from linnet.data.chat_template import PLAIN, ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import read_conversations
from linnet.data.prepare_conversations import prepare_conversations
from linnet.data.target_weights import ROLE_NUMBERS
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer

TEMPLATE = ChatTemplate(SOUND, "t.jinja", {})
TOKENIZER = Tokenizer.train("bytes", [])


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.jsonl"
    talk = [("user", "Who?"), ("assistant", "A bird."), ("user", "When?"), ("assistant", "Now.")]
    rows = [{"messages": [{"role": r, "content": f"{c}{n // 2}"} for r, c in talk]} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_rows_are_the_conversations_with_their_mask(chat, tmp_path):
    manifest = prepare_conversations(chat, tmp_path / "data", TEMPLATE, TOKENIZER, validation=0.2)
    data, encoder = TokenData.open(tmp_path / "data"), ChatEncoder(TEMPLATE, TOKENIZER)
    expected = [encoder.encode(each) for each in read_conversations(chat)]
    found = []
    for side in ("train", "validation"):
        sequence = data.split(side)
        bounds = sequence.document_bounds
        for start, stop in pairwise(bounds):
            mask = sequence.mask.read(start, stop - start)
            found.append((tuple(sequence.read(start, stop - start)), tuple(mask.tolist())))
        assert manifest.splits[side].targets == int(sequence.mask.read(0, len(sequence)).sum())
    assert sorted(found) == sorted((tuple(each.ids), tuple(each.trained)) for each in expected)
    assert manifest.layout == "rows" and manifest.splits["validation"].documents == 8
    first = np.array(expected[0].ids)[expected[0].trained]
    assert bytes(first[:8].tolist()) == b"A bird.0" and first[8] == TOKENIZER.end_id


def test_line_ends_of_windows_within_messages_are_told_and_those_of_the_file_are_none(chat, tmp_path, caplog):
    chat.write_bytes(chat.read_bytes().replace(b"\n", b"\r\n"))
    prepare_conversations(chat, tmp_path / "data", TEMPLATE, TOKENIZER, validation=0.2)
    assert "CRLF" not in caplog.text and 13 not in TokenData.open(tmp_path / "data").split("train").read(0, 500)
    chat.write_text(chat.read_text().replace("A bird.", r"A\r\nbird\n."))
    prepare_conversations(chat, tmp_path / "told", TEMPLATE, TOKENIZER, validation=0.2)
    assert f"{chat}: 40 of 80 lines within messages end in CRLF, which stays as it is" in caplog.text


def test_conversations_that_begin_alike_are_on_one_side(chat, tmp_path):
    prepare_conversations(chat, tmp_path / "data", TEMPLATE, TOKENIZER, validation=0.3)
    data = TokenData.open(tmp_path / "data")
    train, held_out = (data.split(side) for side in ("train", "validation"))

    def rows(sequence):
        bounds = sequence.document_bounds
        return {tuple(sequence.read(a, b - a)) for a, b in pairwise(bounds)}

    assert rows(train) and rows(held_out) and not rows(train) & rows(held_out)


def test_a_template_without_a_stop_token_is_refused_and_nothing_written(chat, tmp_path):
    with pytest.raises(UserError, match=r"line 1: the plain chat template: stop token .*; chat_template.jinja in"):
        prepare_conversations(chat, tmp_path / "data", ChatTemplate(PLAIN, "the plain chat template", {}), TOKENIZER)
    assert not (tmp_path / "data").exists()


def test_other_findings_are_told(chat, tmp_path, told):
    template = ChatTemplate(SOUND.replace("prompt %}A:", "prompt %}A: "), "t.jinja", {})
    prepare_conversations(chat, tmp_path / "data", template, TOKENIZER)
    assert any("t.jinja: generation prompt equals the training prefix: message 1" in line for line in told())


def test_conversations_that_all_begin_alike_cannot_be_divided(chat, tmp_path):
    chat.write_text(chat.read_text().splitlines()[0])
    with pytest.raises(UserError, match="all conversations begin with the same messages"):
        prepare_conversations(chat, tmp_path / "data", TEMPLATE, TOKENIZER)


def test_the_roles_of_tokens_are_kept(chat, tmp_path):
    prepare_conversations(chat, tmp_path / "data", TEMPLATE, TOKENIZER, validation=0.2)
    sequence = TokenData.open(tmp_path / "data").split("train")
    tokens, roles = sequence.read(0, len(sequence)), sequence.roles.read(0, len(sequence))
    assert np.array_equal(roles == ROLE_NUMBERS["assistant"], sequence.mask.read(0, len(sequence)))
    text = bytes(tokens[roles == ROLE_NUMBERS["user"]].tolist()).decode()
    assert text.startswith("U:Who?") and "A" not in text and set(roles.tolist()) == {0, 3, 4}
